"""Hypotheses with their weights, and what the trials so far amount to."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine import beyond, gain, rates, rows
from diag.bisect.engine.posterior import Posterior, posterior, unexplained
from diag.bisect.engine.rows import FALSE, TRUE, Bools, Codes, Floats, Ints
from diag.bisect.expr import Value
from diag.bisect.hypotheses import enumerate_all
from diag.bisect.space import Config, Space, same
from diag.bisect.trial import Outcome, Trial

UNEXPLAINED_PRIOR = 5e-3
"""Of "none of the hypotheses". More keeps rules outside from being taken for one of them; less ends earlier."""
HOLD_OUT = "hold-out: nobody has tried it"
"""How the purpose of a hold-out begins: where one trial is a proof, that is what tells them from other trials."""


@dataclass(frozen=True)
class View:
    """What the trials so far amount to."""

    trials: Sequence[Trial]
    evidence: list[Trial]
    active: Codes  # (evidence, rows)
    x: Floats
    n: Floats
    groups: list[int]
    exact: bool
    rates: rates.Rates
    post: Posterior
    weight: Floats  # (rows,), with `outside` they sum to 1
    outside: float
    fixed: Mapping[str, Value]

    @property
    def leader(self) -> int:
        return int(self.weight.argmax())

    @property
    def requests(self) -> int:
        return int(np.median(self.n)) if len(self.n) else 1


class Model:
    """What is possible, and how likely it was before the first trial. seed: draws among equals."""

    def __init__(self, space: Space, deterministic: bool | None, stop: float, seed: int) -> None:
        self.space, self.deterministic, self.stop, self.seed = space, deterministic, stop, seed
        prior = enumerate_all(space)
        self.hypotheses = [h for h, _ in prior]
        self.log_prior = np.log([w for _, w in prior])
        self.table = rows.table(self.hypotheses)
        self.suspects = [i for i, m in enumerate(self.table.members) if m in space.factors]
        self.beyond = beyond.rules(len(self.suspects))
        self.sizes = math.prod(len(f.levels) for f in space.factors)
        self._rows: dict[tuple[tuple[str, Value], ...], Codes] = {}
        self._led: dict[int, int] = {}
        self._last: View | None = None  # of one set of trials much is asked
        self._codes: dict[tuple[tuple[str, Value], ...], Codes] = {}

    def view(self, trials: Sequence[Trial], evidence: list[Trial]) -> View:
        """evidence: those of the trials that say something about the fault, see `decision.evidence_of`."""
        last = self._last
        if last is None or len(last.trials) != len(trials) or not all(map(operator.is_, last.trials, trials)):
            self._last = last = self._view(list(trials), evidence)
        return last

    def _view(self, trials: Sequence[Trial], evidence: list[Trial]) -> View:
        active = (
            np.stack([self.row(t.effective) for t in evidence])
            if evidence
            else np.zeros((0, len(self.hypotheses)), dtype=np.int8)
        )
        keys = [tuple(t.effective.items()) for t in evidence]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        groups = [number[key] for key in keys]
        exact, x, n, over = self._read(evidence, active, groups)
        post = posterior(active, x, n, self.log_prior, over)
        log = np.append(post.log_evidence + self.log_prior, -np.inf)
        if not exact and evidence:
            log[-1] = unexplained(groups, x, n, over) + math.log(UNEXPLAINED_PRIOR)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        view = View(
            trials,
            evidence,
            active,
            x,
            n,
            groups,
            exact,
            over,
            post,
            weight[:-1],
            float(weight[-1]),
            self.fixed(evidence),
        )
        self._led[_trails(keys, x)[-1]] = view.leader
        return view

    def _read(
        self, evidence: Sequence[Trial], active: Codes, groups: Sequence[int]
    ) -> tuple[bool, Floats, Floats, rates.Rates]:
        """(one trial is a proof, garbled of each, asked of each, what rates are possible)."""
        failed = np.array([t.outcome is Outcome.FAIL for t in evidence], dtype=float)
        exact = self.deterministic is True and self.consistent(active, failed, groups)
        counted = not exact and bool(evidence) and all(t.texts for t in evidence)
        x = np.array([float(t.garbled) for t in evidence]) if counted else failed
        n = np.array([float(len(t.texts)) for t in evidence]) if counted else np.ones(len(evidence))
        certain = 0.0 if self.deterministic is False else rates.CERTAIN
        return exact, x, n, rates.constant() if exact else rates.counts(certain) if counted else rates.bits(certain)

    def row(self, effective: Mapping[str, Value]) -> Codes:
        """(rows,) what each hypothesis says of these effective values."""
        key = tuple(effective.items())
        if key not in self._rows:
            self._rows[key] = self.table.active(self.table.columns([effective]))[0]
        return self._rows[key]

    @staticmethod
    def consistent(active: Codes, failed: Floats, groups: Sequence[int]) -> bool:
        """Whether any hypothesis foretells every trial, and no configuration did both."""
        if contradictory(failed > 0, groups):
            return False
        wrong = np.where(failed[:, None] == 1, active != TRUE, active == TRUE).any(axis=0)
        return not bool(wrong.all())

    def fixed(self, evidence: Sequence[Trial]) -> dict[str, Value]:
        """Factors that the server reports the same whatever was asked for."""
        fixed: dict[str, Value] = {}
        for factor in self.space.factors:
            name = factor.name
            # From the end, where trials differ most: the many of a long run are looked at for few factors.
            if not all(same(t.effective[name], evidence[0].effective[name]) for t in reversed(evidence)):
                continue
            if any(not same(t.config[name], t.effective[name]) for t in evidence):
                fixed[name] = evidence[0].effective[name]
        return fixed

    def code(self, view: View, trial: Trial) -> Codes:
        """(factors,) level codes of what a trial had the effect of."""
        code = self.code_of(trial.config)
        if view.fixed:
            dead = [f.name in view.fixed for f in self.space.factors]
            code = np.where(dead, self.code_of(self.space.bad), code)
        return code

    def code_of(self, config: Config) -> Codes:
        key = tuple(config.items())
        if key not in self._codes:
            self._codes[key] = rows.codes_of(self.space.factors, config)
        return self._codes[key]

    def foretold(self, view: View, which: Ints) -> tuple[Floats, Floats]:
        """What a boot shows where each of these rows is active, idle: (rows, bins) each."""
        groups, back = np.unique(view.post.group[which], return_inverse=True)
        hot, cold = gain.predictions(view.post.spread[groups], view.rates, view.requests)
        return hot[back], cold[back]

    def shows(self, view: View) -> float:
        """How often a boot that the leader calls active is seen to garble."""
        hot, _ = self.foretold(view, np.array([view.leader]))
        return float(1 - hot[0, 0])

    def loud(self, view: View, own: Sequence[int]) -> bool:
        """Whether these boots look more like active ones than like a false alarm within the leader's rates."""
        hot, idle = view.rates.logs(view.x[own], view.n[own])
        theta = np.exp(view.rates.log_weight) if view.n.max() == 1 else view.post.theta_of(np.array([view.leader]))[0]
        return bool(theta @ np.exp(hot.sum(axis=0)) > theta @ np.exp(idle.sum(axis=0)))

    @staticmethod
    def contradictions(view: View) -> Bools:
        """(evidence, rows): the trial went otherwise than the row says."""
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence], dtype=bool).reshape(-1, 1)
        wrong: Bools = np.where(failed, view.active == FALSE, view.active == TRUE)
        return wrong

    def fitting(self, view: View) -> list[beyond.Rule]:
        """Rules outside the hypotheses that foretell every trial."""
        members = [self.table.members[i] for i in self.suspects]
        facts = np.stack([rows.member_column(m, [t.effective for t in view.evidence]) for m in members], axis=1)
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        fits = (beyond.columns(self.beyond, facts) == failed[:, None]).all(axis=0)
        return [rule for rule, fit in zip(self.beyond, fits) if fit]

    def leads_since(self, view: View) -> int:
        """Number of trials after which the leader has always been ahead: what came later did not choose it."""
        trails = _trails([tuple(t.effective.items()) for t in view.evidence], view.x)
        for upto in range(len(view.evidence) - 1, 1, -1):
            if trails[upto] not in self._led:
                self._led[trails[upto]] = self._leader(view, upto)
            if self._led[trails[upto]] != view.leader:
                return upto + 1
        return 2

    def _leader(self, view: View, upto: int) -> int:
        """Who was ahead after so many trials: what a view of them would say, for less."""
        active = view.active[:upto]
        _, x, n, over = self._read(view.evidence[:upto], active, view.groups[:upto])
        post = posterior(active, x, n, self.log_prior, over)
        return int((post.log_evidence + self.log_prior).argmax())

    def held(self, view: View) -> list[int]:
        """Trials that took no part in finding the leader: of configurations that it calls idle and that nobody had
        tried before it led. Where one trial is a proof: those that were chosen for that alone."""
        if view.exact:
            return [i for i, t in enumerate(view.evidence) if t.purpose.startswith(HOLD_OUT)]
        since = self.leads_since(view)
        before = set(view.groups[:since])
        idle = view.active[:, view.leader] == FALSE
        return [i for i in range(since, len(view.evidence)) if idle[i] and view.groups[i] not in before]


def _trails(keys: Sequence[tuple[tuple[str, Value], ...]], x: Floats) -> list[int]:
    """A number for what was seen up to each trial, from 0 trials to all."""
    return list(itertools.accumulate(zip(keys, x.tolist()), lambda before, seen: hash((before, seen)), initial=0))


def contradictory(failed: Bools, groups: Sequence[int]) -> bool:
    """Whether a configuration did both."""
    return len({(group, bool(f)) for group, f in zip(groups, failed)}) > len(set(groups))
