"""Verdicts, with what speaks for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from diag.bisect.bayes.model import Model, View, contradictory
from diag.bisect.bayes.pools import MAX_ENUMERATED
from diag.bisect.decision import (
    Rate,
    Rates,
    Rejected,
    Verdict,
    VerdictKind,
    cleared,
    fails_otherwise,
    necessary,
    signature_of,
    sufficient,
)
from diag.bisect.engine import beyond, rows, stopping
from diag.bisect.engine.rows import FALSE, TRUE, UNKNOWN, Bools
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.trial import Outcome, Trial


class Naming:
    """The end of a search in words that a person can check."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def name(self, view: View, alike: Bools, sure: float) -> Verdict:
        """The leader is the culprit. alike: rows that nothing tells from it; sure: what they hold together."""
        leader, evidence = self.model.hypotheses[view.leader], view.evidence
        same_everywhere = tuple(h for i, h in enumerate(self.model.hypotheses) if alike[i] and i != view.leader)
        alive = self.alive(view)
        silent = (view.active == UNKNOWN)[[t.outcome is Outcome.FAIL for t in evidence]].any(axis=0)
        untested = tuple(h for i, h in enumerate(self.model.hypotheses) if silent[i] and h.kind == "derived")
        rest = 1 - float(view.weight[[h in untested for h in self.model.hypotheses]].sum())
        alone = " and nothing else does" if view.exact and len(alive) == 1 + len(untested) else ""
        return Verdict(
            kind="culprit",
            why=f"predicts every trial{',' if alone else ''}{alone}" if view.exact else self.how_sure(view, sure),
            culprit=leader,
            confidence=1.0 if alone else min(1.0, sure / rest) if rest > 0 else sure,
            inseparable=same_everywhere,
            untested=untested,
            sufficient=sufficient(leader, self.model.space, evidence),
            necessary=necessary(leader, self.model.space, evidence),
            cleared=cleared(leader, self.model.space, evidence),
            rejected=self.rejected(view),
            alive=alive,
            rates=None if view.exact else self.rates(view),
            held_out=tuple(evidence[i].number for i in self.model.held(view)),
            forbidden=self.forbidden(leader, same_everywhere),
            other_failures=self.other_failures(view),
        )

    def other_failures(self, view: View) -> tuple[tuple[int, str], ...]:
        """Trials that failed in another way than the failing end does."""
        wanted = signature_of(self.model.space, view.trials)
        return tuple((t.number, t.signature) for t in view.trials if fails_otherwise(t, wanted))

    def forbidden(self, leader: Hypothesis, others: Sequence[Hypothesis]) -> dict[str, str]:
        """Which constraint forbids what would tell the leader from each of the others."""
        out: dict[str, str] = {}
        if not self.model.space.constraints or not others or self.model.sizes > MAX_ENUMERATED:
            return out
        anything = rows.everything(self.model.space.factors)
        table = rows.table([leader, *others])
        active = table.active(anything.columns(table.members, {}))
        broken = {c.name: anything.told(c.when) == FALSE for c in self.model.space.constraints}
        for column, other in enumerate(others, 1):
            tells = (active[:, 0] != active[:, column]) & (active[:, [0, column]] != UNKNOWN).all(axis=1)
            count = {name: int((tells & which).sum()) for name, which in broken.items()}
            if tells.any() and max(count.values()):
                out[other.name] = max(count, key=lambda name: count[name])
        return out

    @staticmethod
    def how_sure(view: View, sure: float) -> str:
        why = f"holds {min(sure, 0.999):.1%} of what is possible"
        active = view.active[:, view.leader] == TRUE
        shown = [t.outcome is Outcome.FAIL for t, on in zip(view.evidence, active) if on]
        return f"{why}, but how often it shows changed during the run" if stopping.drifted(shown) else why

    def rates(self, view: View) -> Rates:
        """How often the fault showed with the leader active, and idle."""
        column = view.active[:, view.leader]
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        garbled = view.rates.garbled
        share = None if garbled is None else float(view.post.theta_of(np.array([view.leader]))[0] @ garbled)
        return Rates(
            _rate(int((failed & (column == TRUE)).sum()), int((column == TRUE).sum())),
            _rate(int((failed & (column == FALSE)).sum()), int((column == FALSE).sum())),
            share,
        )

    def alive(self, view: View) -> tuple[tuple[Hypothesis, float], ...]:
        """What is left, likeliest first."""
        order = np.argsort(-view.weight, kind="stable")
        floor = 1e-3 if not view.exact else 0.0
        wrong: Bools = np.logical_or.reduce(self.model.contradictions(view), axis=0)
        return tuple(
            (self.model.hypotheses[i], float(view.weight[i]))
            for i in order
            if view.weight[i] > floor and not (view.exact and wrong[i])
        )

    def rejected(self, view: View) -> tuple[Rejected, ...]:
        """Hypotheses that hold less than a thousandth, each with the trial that speaks loudest against it."""
        wrong = self.model.contradictions(view)
        if not len(wrong):
            return ()
        proofs = self.model.deterministic is True and not contradictory(view.x > 0, view.groups)
        which = np.flatnonzero(((view.weight <= 1e-3) | proofs) & wrong.any(axis=0))
        theta = view.post.theta_of(np.array([view.leader]))[0]
        on, off = (np.exp(part) @ theta for part in view.rates.logs(view.x, view.n))
        like = np.where(view.active[:, which] == TRUE, on[:, None], off[:, None])
        loudest = wrong[:, which].argmax(axis=0) if proofs else np.where(wrong[:, which], like, np.inf).argmin(axis=0)
        out = []
        for i, against in zip(which, loudest):
            trial = view.evidence[against]
            verb = "failed without it" if trial.outcome is Outcome.FAIL else "passed with it"
            out.append(Rejected(self.model.hypotheses[i], trial.number, verb))
        return tuple(out)

    def nothing_to_blame(self, view: View) -> Verdict:
        if self.model.hypotheses[view.leader].kind == "always":
            return self.end("environmental", view, "every configuration fails now and then, the good one too")
        return self.end("not_reproduced", view, "what failed looks like a false alarm: nothing fails again")

    def unexplained(self, view: View) -> Verdict:
        """With the rule over three factors that would explain the trials, where it is the only one."""
        rules = self.model.fitting(view) if self.model.suspects else []
        names = [f"{f.name}" for f in (self.model.table.members[i] for i in self.model.suspects)]
        rule = beyond.told(rules[0], names) if len(rules) == 1 else ""
        why = "no single factor, pair or rule predicts what was seen"
        return self.end("unexplained", view, f"{why}; `{rule}` would" if rule else why, rule)

    def end(self, kind: VerdictKind, view: View, why: str, rule: str = "") -> Verdict:
        return Verdict(
            kind,
            why,
            rejected=self.rejected(view),
            alive=self.alive(view),
            beyond=rule,
            other_failures=self.other_failures(view),
        )

    def bare(self, kind: VerdictKind, trials: Sequence[Trial], evidence: list[Trial], why: str) -> Verdict:
        """An end before there is a leader."""
        return self.end(kind, self.model.view(trials, evidence), why)


def _rate(garbled: int, tried: int) -> Rate:
    """With its 95 % interval (Jeffreys)."""
    low = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.025)) if garbled else 0.0
    high = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.975)) if garbled < tried else 1.0
    return Rate(garbled, tried, low, high)
