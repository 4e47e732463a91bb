"""The search: `decision.Search`, decided by diag.bisect.engine. Pure; equals are drawn by a seed.

The boot is the unit of evidence, x garbled of n requests its result; rates are unknown and integrated out; the next
trial is the one with the most information per minute. Before a name is said the claim is tried from both ends and on
configurations nobody has tried (hold-outs), and a rule outside the hypotheses must not explain the trials better.

A fault is taken to show every time (`deterministic=True`) until a trial contradicts that: then one trial is a proof,
and a search is short. Where the first failure already needed a second try, it ends and says so: a search for a fault
that comes and goes takes several times as many trials, which is for whoever waits to decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaincinv

from diag.bisect.decision import (
    Next,
    Rate,
    Rates,
    Rejected,
    Verdict,
    VerdictKind,
    claims,
    cleared,
    evidence_of,
    explains,
    fails_otherwise,
    necessary,
    same_config,
    signature_of,
    sufficient,
)
from diag.bisect.engine import batch, beyond, gain, rates, rows, starts, stopping
from diag.bisect.engine.posterior import Posterior, posterior, unexplained
from diag.bisect.engine.rows import FALSE, TRUE, UNKNOWN, Bools, Codes, Floats, Ints, Singles
from diag.bisect.expr import Value
from diag.bisect.hypotheses import Hypothesis, enumerate_all
from diag.bisect.space import Config, Space, same
from diag.bisect.trial import Outcome, Trial

MAX_ENUMERATED = 1 << 14
POOL = 64
UNEXPLAINED_PRIOR = 5e-3
BEYOND_PRIOR = 1.0
"""Of rules outside the hypotheses, all together: how long an exact search goes on trying to meet one."""
LEADERS = 3
MAX_TIES = 128
MAX_REPEATED = 3
OUTSIDE = 0.99
LOOKED_AT = 1024
NOISY_BEYOND = 0.1
MAX_DOUBTS = 256
EQUAL = 1e-6
HOLD_OUT = "hold-out: nobody has tried it"
UNLIKELY = 0.02
"""Two configurations that did not start for one possible reason: others with that reason are not waited for."""

Minutes = Callable[[Config, Config | None], float]
"""What a trial of the first configuration costs while the second one is running (None: nothing is)."""


@dataclass(frozen=True)
class _View:
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


@dataclass(frozen=True)
class _Pool:
    """What can be tried, one configuration for each effect."""

    candidates: rows.Candidates
    active: Codes  # (candidates, rows)
    facts: Codes  # (candidates, members)

    @cached_property
    def unknown(self) -> bool:
        return bool((self.active == UNKNOWN).any())

    def share(self, keep: Ints) -> Singles:
        """(candidates, keep) 1 where active, 0 where idle, a half where that cannot be told."""
        half: Singles = self.active[:, keep].astype(np.float32)
        half *= 0.5
        return half

    def part(self, which: Ints) -> _Pool:
        candidates = rows.Candidates(self.candidates.factors, self.candidates.codes[which])
        return _Pool(candidates, self.active[which], self.facts[which])


class BayesianSearch:
    def __init__(
        self,
        space: Space,
        *,
        deterministic: bool | None = None,
        strict: bool = False,
        quick: bool = False,
        max_trials: int = 200,
        seed: int = 0,
        minutes: Minutes | None = None,
        valid: Callable[[Config], bool] | None = None,
        confirm: bool = True,
    ) -> None:
        """deterministic: True taken for granted until a trial contradicts it, False never, None learned. strict: where
        it is contradicted, that is the end. minutes: cost of a trial, by default as the space tells it. valid: what
        else a configuration must satisfy to be tried. confirm: False names the leader without trying its claims (for
        measurements)."""
        self.space = space
        self.deterministic, self.strict = deterministic, strict
        self.stop = stopping.QUICK if quick else stopping.STOP
        self.max_trials = max_trials
        self.minutes = minutes or (space.minutes if _priced(space) else None)
        self.valid, self.confirm = valid, confirm
        self._seed = seed
        prior = enumerate_all(space)
        self.hypotheses = [h for h, _ in prior]
        self._log_prior = np.log([w for _, w in prior])
        self._table = rows.table(self.hypotheses)
        self._suspects = [i for i, m in enumerate(self._table.members) if m in space.factors]
        self._beyond = beyond.rules(len(self._suspects))
        self._sizes = math.prod(len(f.levels) for f in space.factors)
        self._rows: dict[tuple[tuple[str, Value], ...], Codes] = {}
        self._pools: dict[tuple[tuple[str, Value], ...], _Pool] = {}
        self._led: dict[int, int] = {}
        self._codes: dict[tuple[tuple[str, Value], ...], Codes] = {}

    # protocol

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        evidence = evidence_of(self.space, trials)
        opening = self._opening(trials, evidence)
        if opening is not None:
            return opening
        view = self._view(trials, evidence)
        if self.deterministic is True and not view.exact:
            again = self._contradicted(view)
            if again is not None:
                return again
        if view.outside > OUTSIDE or self._misfit(view):
            return self._unexplained(view)
        leader = self.hypotheses[view.leader]
        pool = self._pool(view)
        alike = self._alike(view, pool)
        sure = float(view.weight[alike].sum())
        step = None
        if sure < self.stop:
            step = self._most_informative(view, pool)
        if sure >= self.stop or (step is None and view.exact and explains(leader, evidence)):
            if leader.kind in ("always", "never"):
                return self._nothing_to_blame(view)
            step = self._to_confirm(view, pool) if self.confirm else None
            if step is None:
                return self._name(view, alike, sure)
        spent = len(trials) >= self.max_trials
        if (step is None or spent) and leader.kind in ("always", "never") and sure > 0.5:
            return self._nothing_to_blame(view)
        if step is None:
            if view.outside > 0.5 or not explains(leader, evidence):
                return self._unexplained(view)
            return self._end("narrowed", view, "nothing that is left to try tells the rest apart")
        if spent:
            return self._end("narrowed", view, f"{self.max_trials} trials are spent")
        return step

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        evidence = evidence_of(self.space, trials)
        view = self._view(trials, evidence)
        share = float(np.clip(view.weight, 1e-12, 1) @ -np.log2(np.clip(view.weight, 1e-12, 1)))
        ends = sum(not any(same_config(t.config, end) for t in evidence) for end in (self.space.good, self.space.bad))
        show = self._shows(view)
        bits_a_trial = 1.0 if view.exact else max(0.15, 0.8 * show**2)
        rest = 0 if not self.confirm else 2 if view.exact else stopping.HOLD_OUTS
        return len(trials) + ends + math.ceil(share / bits_a_trial) + rest

    def leader(self, trials: Sequence[Trial]) -> tuple[Hypothesis, float] | None:
        """What explains the trials best, and its share of what is possible; None before both ends are known."""
        evidence = evidence_of(self.space, trials)
        if self._opening(trials, evidence) is not None:
            return None
        view = self._view(trials, evidence)
        return self.hypotheses[view.leader], float(view.weight[view.leader])

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        """Where the search looks for information: jointly, over all outcomes of what runs. Where it confirms, or opens:
        what would come next if everything goes as foretold.
        """
        step = self.next(trials)
        if isinstance(step, Verdict):
            return step if not pending else []
        if hosts < 1:
            return []
        view = self._view(trials, evidence_of(self.space, trials))
        # Several hosts begin with the good configuration each: two trials are not yet both ends.
        opens = self._opening(trials, view.evidence) is not None
        if opens or float(view.weight.max()) >= self.stop or (view.exact and view.weight.max() > 0.5):
            return self._foreseen(trials, pending, hosts)
        pool = self._pool(view)
        where = [p for p in (pool.candidates.position(config) for config in pending) if p is not None]
        keep = np.flatnonzero(view.weight > gain.NEGLIGIBLE)
        hot, cold = self._foretold(view, keep)
        random = np.random.default_rng((self._seed, len(trials), len(pending)))
        chance = self._chances(view, pool)
        if view.exact:
            chance = chance * ~self._tried(view, pool)
        weight = view.weight[keep] / view.weight[keep].sum()
        picks = batch.joint(pool.share(keep), weight, 1 - hot[:, 0], 1 - cold[:, 0], where, hosts, chance, random)
        return [Next(pool.candidates.config(i), self._purpose(view, pool, i)) for i in picks] or [step]

    def _foreseen(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next]:
        out: list[Next] = []
        imagined = list(trials)
        for config in pending:
            imagined.append(self._imagined(imagined, config))
        while len(out) < hosts and isinstance(step := self.next(imagined), Next):
            out.append(step)
            imagined.append(self._imagined(imagined, step.config))
        return out

    def _imagined(self, trials: Sequence[Trial], config: Config) -> Trial:
        """This trial, if it goes as the leader foretells."""
        view = self._view(trials, evidence_of(self.space, trials))
        effective = self.space.effective(config, view.fixed)
        active = self.hypotheses[view.leader].active(effective) if view.evidence else False
        if same_config(config, self.space.bad):
            active = True
        outcome = Outcome.FAIL if active else Outcome.PASS
        return Trial(len(trials) + 1, "", config, effective, outcome)

    # the steps

    def _opening(self, trials: Sequence[Trial], evidence: list[Trial]) -> Next | Verdict | None:
        """Without a good text there is nothing to compare with, without a failure nothing to find."""
        space = self.space
        good = [t for t in evidence if same_config(t.config, space.good)]
        bad = [t for t in evidence if same_config(t.config, space.bad)]
        good_failed = sum(self._not_healthy(t) for t in good)
        bad_failed = sum(t.outcome is Outcome.FAIL for t in bad)
        answered = [t for t in trials if t.outcome is not Outcome.INFRA]
        asked = [sum(same_config(t.config, end) for t in answered) for end in (space.good, space.bad)]
        if not good:
            if asked[0] >= 2:
                return self._bare("environmental", trials, evidence, "the good configuration gave no answers, twice")
            return Next(space.good, "the good configuration: its texts are what others are compared with")
        at_once = self.deterministic is True and good[0].outcome is Outcome.FAIL
        if good_failed and (at_once or good_failed > len(good) // 2) and len(good) < stopping.GOOD_CAP:
            if at_once or good_failed >= 2:
                return self._bare("environmental", trials, evidence, "the good configuration is not healthy itself")
            return Next(space.good, "the good configuration failed: once more, in a new process")
        if not bad:
            if asked[1] >= 2:
                return self._bare(
                    "not_reproduced", trials, evidence, "the failing configuration gave no answers, twice"
                )
            return Next(space.bad, "the failing configuration: does it fail here at all?")
        tries = 2 if self.deterministic else stopping.REPRODUCE_TRIES
        if not bad_failed:
            if len(bad) < tries:
                return Next(space.bad, "it did not fail: once more, in a new process")
            times = {2: "twice"}.get(len(bad), f"{len(bad)} times")
            return self._bare(
                "not_reproduced", trials, evidence, f"the failing configuration gave healthy output {times}"
            )
        first = next(i for i, t in enumerate(bad) if t.outcome is Outcome.FAIL) + 1
        if self.deterministic and first > 1:
            alike = f"trials {bad[0].number} and {bad[first - 1].number} are alike and differ"
            return self._bare("unexplained", trials, evidence, f"{alike}: it does not show every time")
        wanted = 1 if self.deterministic else stopping.good_passes(1, first)
        if len(good) - good_failed < wanted and good_failed < 2:
            return Next(space.good, f"it fails only sometimes: the good configuration must pass {wanted} times")
        if good_failed >= 2 and good_failed * 4 > len(good):
            return self._bare("environmental", trials, evidence, "the good configuration is not healthy itself")
        return None

    def _not_healthy(self, trial: Trial) -> bool:
        """One garbled request in many may be a false alarm, and says nothing against the good end yet."""
        if self.deterministic or not trial.texts:
            return trial.outcome is Outcome.FAIL
        return trial.garbled > stopping.ALARM_SHARE * len(trial.texts)

    def _view(self, trials: Sequence[Trial], evidence: list[Trial]) -> _View:
        active = (
            np.stack([self._row(t.effective) for t in evidence])
            if evidence
            else np.zeros((0, len(self.hypotheses)), dtype=np.int8)
        )
        failed = np.array([t.outcome is Outcome.FAIL for t in evidence], dtype=float)
        keys = [tuple(t.effective.items()) for t in evidence]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        groups = [number[key] for key in keys]
        exact = self.deterministic is True and self._consistent(active, failed, groups)
        counted = not exact and bool(evidence) and all(t.texts for t in evidence)
        x = np.array([float(t.garbled) for t in evidence]) if counted else failed
        n = np.array([float(len(t.texts)) for t in evidence]) if counted else np.ones(len(evidence))
        certain = 0.0 if self.deterministic is False else rates.CERTAIN
        over = rates.constant() if exact else rates.counts(certain) if counted else rates.bits(certain)
        post = posterior(active, x, n, self._log_prior, over)
        log = np.append(post.log_evidence + self._log_prior, -np.inf)
        if not exact and evidence:
            log[-1] = unexplained(groups, x, n, over) + math.log(UNEXPLAINED_PRIOR)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        view = _View(
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
            self._fixed(evidence),
        )
        self._led[hash((tuple(keys), tuple(x)))] = view.leader
        return view

    def _row(self, effective: Mapping[str, Value]) -> Codes:
        key = tuple(effective.items())
        if key not in self._rows:
            self._rows[key] = self._table.active(self._table.columns([effective]))[0]
        return self._rows[key]

    @staticmethod
    def _consistent(active: Codes, failed: Floats, groups: Sequence[int]) -> bool:
        """Whether any hypothesis foretells every trial, and no configuration did both."""
        if _contradictory(failed > 0, groups):
            return False
        wrong = np.where(failed[:, None] == 1, active != TRUE, active == TRUE).any(axis=0)
        return not bool(wrong.all())

    def _fixed(self, evidence: Sequence[Trial]) -> dict[str, Value]:
        """Factors that the server reports the same whatever was asked for."""
        fixed: dict[str, Value] = {}
        for factor in self.space.factors:
            name = factor.name
            if all(same(t.config[name], t.effective[name]) for t in evidence):
                continue
            if all(same(t.effective[name], evidence[0].effective[name]) for t in evidence):
                fixed[name] = evidence[0].effective[name]
        return fixed

    def _pool(self, view: _View) -> _Pool:
        fixed = view.fixed
        key = tuple(fixed.items())
        if self._sizes <= MAX_ENUMERATED:
            if key not in self._pools:
                self._pools[key] = self._evaluated(rows.everything(self.space.factors), fixed)
            return self._with_readings(view, self._pools[key])
        random = np.random.default_rng((self._seed, len(view.trials)))
        near = [rows.codes_of(self.space.factors, c) for c in (self.space.good, self.space.bad)]
        for leader in np.argsort(-view.weight)[:LEADERS]:
            wanted = set(self.hypotheses[leader].factors)
            for base, other in ((self.space.good, self.space.bad), (self.space.bad, self.space.good)):
                config = {name: other[name] if name in wanted else base[name] for name in base}
                near.append(rows.codes_of(self.space.factors, config))
        return self._evaluated(rows.pool(self.space.factors, near, POOL, random), fixed)

    def _with_readings(self, view: _View, pool: _Pool) -> _Pool:
        """What a server told in a trial is known there from then on."""
        if not pool.unknown:
            return pool
        active = pool.active.copy()
        for trial, row in zip(view.evidence, view.active):
            active[(pool.candidates.codes == self._code(view, trial)).all(axis=1)] = row
        return _Pool(pool.candidates, active, pool.facts)

    def _evaluated(self, candidates: rows.Candidates, fixed: Mapping[str, Value]) -> _Pool:
        for constraint in self.space.constraints:
            codes = candidates.codes[candidates.told(constraint.when) != FALSE]
            candidates = rows.Candidates(candidates.factors, codes)
        if self.valid is not None:
            keep = [i for i in range(len(candidates.codes)) if self.valid(candidates.config(i))]
            candidates = rows.Candidates(candidates.factors, candidates.codes[keep])
        if fixed:
            # Two command lines with one effect are one trial: the one nearest to the failing configuration stays.
            dead = [j for j, f in enumerate(candidates.factors) if f.name in fixed]
            wanted = rows.codes_of(candidates.factors, self.space.bad)
            codes = candidates.codes[(candidates.codes[:, dead] == wanted[dead]).all(axis=1)]
            candidates = rows.Candidates(candidates.factors, codes)
        facts = candidates.columns(self._table.members, fixed)
        return _Pool(candidates, self._table.active(facts), facts)

    def _chances(self, view: _View, pool: _Pool) -> Floats:
        """Of each candidate to start, and to show what is looked for if it fails. One that did not is not tried
        again."""
        if len(view.evidence) == len(view.trials):
            return np.ones(len(pool.candidates.codes))
        codes: dict[bool, list[Codes]] = {True: [], False: []}
        wanted = signature_of(self.space, view.trials)
        for t in view.trials:
            if t.outcome is not Outcome.INFRA:
                lost = t.outcome is Outcome.SKIP or fails_otherwise(t, wanted)
                codes[lost].append(self._code_of(t.config))
        empty = np.zeros((0, len(self.space.factors)), dtype=np.int8)
        refused = np.array(codes[True], dtype=np.int8) if codes[True] else empty
        started = np.array(codes[False], dtype=np.int8) if codes[False] else empty
        chance = starts.probability(pool.candidates.codes, started, refused)
        return chance * ~self._among(pool, refused)

    def _among(self, pool: _Pool, codes: Codes) -> Bools:
        out = np.zeros(len(pool.candidates.codes), dtype=bool)
        for code in codes:
            out |= (pool.candidates.codes == code).all(axis=1)
        return out

    def _tried(self, view: _View, pool: _Pool) -> Bools:
        """Candidates with the effect of a trial."""
        answered = [t for t in view.trials if t.outcome is not Outcome.INFRA]
        return self._among(pool, np.array([self._code(view, t) for t in answered], dtype=np.int8))

    def _code(self, view: _View, trial: Trial) -> Codes:
        code = self._code_of(trial.config)
        if view.fixed:
            dead = [f.name in view.fixed for f in self.space.factors]
            code = np.where(dead, self._code_of(self.space.bad), code)
        return code

    def _code_of(self, config: Config) -> Codes:
        key = tuple(config.items())
        if key not in self._codes:
            self._codes[key] = rows.codes_of(self.space.factors, config)
        return self._codes[key]

    def _alike(self, view: _View, pool: _Pool) -> Bools:
        """Rows that no configuration and no trial tells from the leader."""
        near = np.flatnonzero(view.weight > view.weight[view.leader] * 1e-6)
        same_trials = (view.active[:, near] == view.active[:, [view.leader]]).all(axis=0)
        near = near[same_trials]
        # What most likely does not start tells nothing apart.
        left = (
            pool.active[self._chances(view, pool) > UNLIKELY] if len(view.evidence) < len(view.trials) else pool.active
        )
        out = np.zeros(len(view.weight), dtype=bool)
        mine, other = left[:, [view.leader]], left[:, near]
        out[near] = ((other == mine) | (other == UNKNOWN) | (mine == UNKNOWN)).all(axis=0)
        return out

    def _most_informative(self, view: _View, pool: _Pool) -> Next | None:
        keep = np.flatnonzero(view.weight > gain.NEGLIGIBLE)
        weight = view.weight[keep] / view.weight[keep].sum()
        pool = self._looked_at(view, pool)
        hot, cold = self._foretold(view, keep)
        bits = gain.information(pool.share(keep), weight, hot, cold) * self._chances(view, pool)
        if view.exact:
            bits = bits * ~self._tried(view, pool)
        if bits.max() <= (stopping.SEPARABLE_BITS if view.exact else stopping.NOISY_BITS):
            return None
        score = bits if self.minutes is None else bits / self._costs(view, pool)
        random = np.random.default_rng((self._seed, len(view.trials)))
        best = gain.choose(score, self._ties(view, pool, score), random, EQUAL if view.exact else gain.TIE)
        return Next(pool.candidates.config(best), self._purpose(view, pool, best))

    def _looked_at(self, view: _View, pool: _Pool) -> _Pool:
        """Of many candidates some by lot, and what is near the leaders: as good a trial is among them."""
        count = len(pool.candidates.codes)
        if view.exact or count <= LOOKED_AT:
            return pool
        random = np.random.default_rng((self._seed, len(view.trials), 1))
        which = random.choice(count, LOOKED_AT, replace=False)
        return pool.part(np.sort(which))

    def _foretold(self, view: _View, which: Ints) -> tuple[Floats, Floats]:
        """What a boot shows where each of these rows is active, idle: (rows, bins) each."""
        groups, back = np.unique(view.post.group[which], return_inverse=True)
        hot, cold = gain.predictions(view.post.spread[groups], view.rates, view.requests)
        return hot[back], cold[back]

    def _ties(self, view: _View, pool: _Pool, score: Floats) -> Floats:
        """(candidates,) what decides among equals, least first: what is nearest to the failing configuration, levels of
        neither end last; then what makes hold-outs needless later."""
        if not view.exact:
            return np.zeros(len(score))
        away = [
            pool.candidates.codes != rows.codes_of(self.space.factors, end) for end in (self.space.bad, self.space.good)
        ]
        near: Floats = away[0].sum(axis=1) + 0.6 * (away[0] & away[1]).sum(axis=1)
        good = np.flatnonzero(score >= score.max() * (1 - EQUAL))
        good = good[np.argsort(near[good], kind="stable")][:MAX_TIES]
        fitting = self._fitting(view)
        if len(fitting) > 1:
            p = beyond.columns(fitting, pool.facts[good][:, self._suspects]).mean(axis=1)
            near[good] += np.abs(0.5 - p) - 1
        return near

    def _contradicted(self, view: _View) -> Next | Verdict | None:
        """Said to show every time, but nothing foretells every trial: the ones too many again, those first without
        which the likeliest hypothesis would do. If all say the same, no hypothesis is right; if one does not, the fault
        flakes, and the search goes on as one for flakes."""
        failed = view.x > 0
        repeated = [g for g in set(view.groups) if view.groups.count(g) > 1]
        for group in repeated:
            own = [i for i, g in enumerate(view.groups) if g == group]
            if len({bool(failed[i]) for i in own}) > 1:
                first, other = view.evidence[own[0]].number, view.evidence[own[-1]].number
                why = f"trials {first} and {other} are alike and differ: it does not show every time"
                return self._end("unexplained", view, why) if self.strict else None
        wrong = np.where(failed[:, None], view.active != TRUE, view.active == TRUE)
        alone = wrong & (wrong.sum(axis=0) == 1)
        worth = alone @ np.exp(self._log_prior)
        for i in np.argsort(-worth, kind="stable"):
            if len(repeated) < MAX_REPEATED and view.groups[i] not in repeated and (worth[i] > 0 or not repeated):
                return Next(view.evidence[i].config, "nothing predicts what this one showed: once more")
        return self._unexplained(view)

    def _costs(self, view: _View, pool: _Pool) -> Floats:
        running = view.trials[-1].config if view.trials else None
        count = len(pool.candidates.codes)
        if self.minutes is None:
            return np.ones(count)
        return np.array([self.minutes(pool.candidates.config(i), running) for i in range(count)])

    def _purpose(self, view: _View, pool: _Pool, best: int) -> str:
        sides: dict[int, list[int]] = {TRUE: [], FALSE: []}
        for h in np.argsort(-view.weight, kind="stable"):
            if view.weight[h] > 1e-3 and pool.active[best, h] in sides:
                sides[int(pool.active[best, h])].append(int(h))
        verb = "rules out" if view.exact else "speaks against"
        clean, garbled = (self._few(sides[side]) for side in (TRUE, FALSE))
        return f"clean {verb} {clean}; garbled {verb} {garbled}"

    def _few(self, which: Sequence[int]) -> str:
        if not which:
            return "nothing"
        first = self.hypotheses[which[0]].name
        return first if len(which) == 1 else f"{first} and {len(which) - 1} more"

    def _shows(self, view: _View) -> float:
        """How often a boot that the leader calls active is seen to garble."""
        hot, _ = self._foretold(view, np.array([view.leader]))
        return float(1 - hot[0, 0])

    # before a name is said

    def _to_confirm(self, view: _View, pool: _Pool) -> Next | None:
        leader, show = self.hypotheses[view.leader], self._shows(view)
        chance = self._chances(view, pool)
        possible = (chance > 0) & ~self._tried(view, pool) if view.exact else chance > 0
        for claim in claims(leader, self.space):
            shown = sum(claim.shown_by(t) for t in view.evidence)
            wanted = 1 if claim.fails or view.exact else stopping.passes_needed(show)
            if shown >= wanted:
                continue
            allowed = np.array([f.name in claim.names for f in self.space.factors])
            base = rows.codes_of(self.space.factors, claim.base)
            differs = pool.candidates.codes != base
            fits = possible & ~differs[:, ~allowed].any(axis=1)
            fits &= pool.active[:, view.leader] == (TRUE if claim.fails else FALSE)
            if fits.any():
                options = np.flatnonzero(fits)
                best = options[differs[options].sum(axis=1).argmin()]
                return Next(pool.candidates.config(int(best)), claim.purpose)
        return (
            self._exact_hold_out(view, pool, possible & (chance > UNLIKELY))
            if view.exact
            else self._hold_out(view, pool, chance, show)
        )

    def _hold_out(self, view: _View, pool: _Pool, chance: Floats, show: float) -> Next | None:
        held = self._held(view)
        for group in dict.fromkeys(view.groups[i] for i in held):
            own = [i for i in held if view.groups[i] == group]
            failed = sum(view.evidence[i].outcome is Outcome.FAIL for i in own)
            if failed and len(own) < 3 and failed * 2 >= len(own) and self._loud(view, own):
                return Next(view.evidence[own[0]].config, "a surprise where all should be well: once more")
        count = len({view.groups[i] for i in held})
        outside = self._doubt(view) if self._beyond else None
        doubt = float(outside[1].sum()) if outside is not None else 0.0
        if count >= (stopping.HOLD_OUTS if doubt <= (1 - self.stop) * (1 + doubt) else stopping.HOLD_OUT_CAP):
            return None
        options = np.flatnonzero(
            ~self._tried(view, pool) & (chance > UNLIKELY) & (pool.active[:, view.leader] == FALSE)
        )
        if not len(options):
            return None
        random = np.random.default_rng((self._seed, len(view.trials)))
        options = random.permutation(options)[:LOOKED_AT]
        pick = self._telling(view, pool, options, *outside) if outside is not None else int(options[0])
        return Next(pool.candidates.config(pick), f"{HOLD_OUT}, and all should be well")

    def _doubt(self, view: _View) -> tuple[Posterior, Floats]:
        """What rules outside the hypotheses weigh, the leader being 1."""
        members = [self._table.members[i] for i in self._suspects]
        facts = np.stack([rows.member_column(m, [t.effective for t in view.evidence]) for m in members], axis=1)
        active = np.where(beyond.columns(self._beyond, facts), TRUE, FALSE).astype(np.int8)
        even = np.full(len(self._beyond), math.log(NOISY_BEYOND / max(1, len(self._beyond))))
        post = posterior(active, view.x, view.n, even, view.rates)
        mine = view.post.log_evidence[view.leader] + self._log_prior[view.leader]
        return post, np.exp(np.minimum(post.log_evidence + even - mine, 50.0))

    def _telling(self, view: _View, pool: _Pool, options: Ints, post: Posterior, doubt: Floats) -> int:
        """The one of these candidates that tells most about whether a rule outside the hypotheses holds instead."""
        heavy = np.argsort(-doubt)[:MAX_DOUBTS]
        rules = [self._beyond[i] for i in heavy]
        share = beyond.columns(rules, pool.facts[options][:, self._suspects]).astype(np.float32)
        mine = pool.active[options, view.leader].astype(np.float32)[:, None] / np.float32(2)
        weight = np.concatenate([[1.0], doubt[heavy]])
        hot, cold = gain.predictions(post.spread[post.group[heavy]], view.rates, view.requests)
        leads = self._foretold(view, np.array([view.leader]))
        bits = gain.information(
            np.concatenate([mine, share], axis=1),
            weight / weight.sum(),
            np.concatenate([leads[0], hot]),
            np.concatenate([leads[1], cold]),
        )
        return int(options[int(bits.argmax())])

    def _loud(self, view: _View, own: Sequence[int]) -> bool:
        """Whether these boots look more like active ones than like a false alarm within the leader's rates."""
        hot, idle = view.rates.logs(view.x[own], view.n[own])
        theta = np.exp(view.rates.log_weight) if view.n.max() == 1 else view.post.theta_of(np.array([view.leader]))[0]
        return bool(theta @ np.exp(hot.sum(axis=0)) > theta @ np.exp(idle.sum(axis=0)))

    def _exact_hold_out(self, view: _View, pool: _Pool, possible: Bools) -> Next | None:
        """Where a rule outside the hypotheses that fits every trial would contradict the leader."""
        rivals = self._fitting(view)
        held = math.exp(float(self._log_prior[view.leader]))
        doubt = BEYOND_PRIOR * len(rivals) / max(1, len(self._beyond))
        if doubt <= (1 - self.stop) * (held + doubt):
            return None
        disputes = beyond.columns(rivals, pool.facts[:, self._suspects]) != (pool.active[:, [view.leader]] == TRUE)
        count = disputes.sum(axis=1) * possible * (pool.active[:, view.leader] != UNKNOWN)
        if not count.max():
            return None
        near = pool.candidates.nearest_first(self.space.bad)
        options = np.flatnonzero(count == count.max())
        pick = int(options[near[options].argmin()])
        word = "garbled" if pool.active[pick, view.leader] == TRUE else "clean"
        return Next(pool.candidates.config(pick), f"{HOLD_OUT}, and it should be {word}")

    def _fitting(self, view: _View) -> list[beyond.Rule]:
        """Rules outside the hypotheses that foretell every trial."""
        members = [self._table.members[i] for i in self._suspects]
        facts = np.stack([rows.member_column(m, [t.effective for t in view.evidence]) for m in members], axis=1)
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        fits = (beyond.columns(self._beyond, facts) == failed[:, None]).all(axis=0)
        return [rule for rule, fit in zip(self._beyond, fits) if fit]

    def _held(self, view: _View) -> list[int]:
        """Trials that took no part in finding the leader: of configurations that it calls idle and that nobody had
        tried before it led. Where one trial is a proof: those that were chosen for that alone."""
        if view.exact:
            return [i for i, t in enumerate(view.evidence) if t.purpose.startswith(HOLD_OUT)]
        since = self._leads_since(view)
        before = set(view.groups[:since])
        idle = view.active[:, view.leader] == FALSE
        return [i for i in range(since, len(view.evidence)) if idle[i] and view.groups[i] not in before]

    def _leads_since(self, view: _View) -> int:
        """Number of trials after which the leader has always been ahead: what came later did not choose it."""
        keys = [tuple(t.effective.items()) for t in view.evidence]
        for upto in range(len(view.evidence) - 1, 1, -1):
            key = hash((tuple(keys[:upto]), tuple(view.x[:upto])))
            if key not in self._led:
                self._view(view.evidence[:upto], view.evidence[:upto])
            if self._led.get(key, -1) != view.leader:
                return upto + 1
        return 2

    def _misfit(self, view: _View) -> bool:
        """The leader, though ahead, calls configurations idle that fail again and again."""
        if view.exact or len(view.evidence) < 4:
            return False
        idle = view.active[:, view.leader] == FALSE
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        if view.weight[view.leader] < self.stop:
            return False
        # Requests of a healthy boot may be false alarms: only boots that look like the fault count.
        loud = [bool(failed[i]) and idle[i] and self._loud(view, [i]) for i in range(len(failed))]
        return any(
            stopping.too_many_alarms(sum(loud[i] for i in which), len(which))
            for which in (self._held(view), [i for i in range(len(loud)) if idle[i]])
        )

    # verdicts

    def _name(self, view: _View, alike: Bools, sure: float) -> Verdict:
        leader, evidence = self.hypotheses[view.leader], view.evidence
        same_everywhere = tuple(h for i, h in enumerate(self.hypotheses) if alike[i] and i != view.leader)
        alive = self._alive(view)
        silent = (view.active == UNKNOWN)[[t.outcome is Outcome.FAIL for t in evidence]].any(axis=0)
        untested = tuple(h for i, h in enumerate(self.hypotheses) if silent[i] and h.kind == "derived")
        rest = 1 - float(view.weight[[h in untested for h in self.hypotheses]].sum())
        alone = " and nothing else does" if view.exact and len(alive) == 1 + len(untested) else ""
        return Verdict(
            kind="culprit",
            why=f"predicts every trial{',' if alone else ''}{alone}" if view.exact else self._how_sure(view, sure),
            culprit=leader,
            confidence=1.0 if alone else min(1.0, sure / rest) if rest > 0 else sure,
            inseparable=same_everywhere,
            untested=untested,
            sufficient=sufficient(leader, self.space, evidence),
            necessary=necessary(leader, self.space, evidence),
            cleared=cleared(leader, self.space, evidence),
            rejected=self._rejected(view),
            alive=alive,
            rates=None if view.exact else self._rates(view),
            held_out=tuple(evidence[i].number for i in self._held(view)),
            forbidden=self._forbidden(leader, same_everywhere),
            other_failures=self._other_failures(view),
        )

    def _other_failures(self, view: _View) -> tuple[tuple[int, str], ...]:
        wanted = signature_of(self.space, view.trials)
        return tuple((t.number, t.signature) for t in view.trials if fails_otherwise(t, wanted))

    def _forbidden(self, leader: Hypothesis, others: Sequence[Hypothesis]) -> dict[str, str]:
        """Which constraint forbids what would tell the leader from each of the others."""
        out: dict[str, str] = {}
        if not self.space.constraints or not others or self._sizes > MAX_ENUMERATED:
            return out
        anything = rows.everything(self.space.factors)
        table = rows.table([leader, *others])
        active = table.active(anything.columns(table.members, {}))
        broken = {c.name: anything.told(c.when) == FALSE for c in self.space.constraints}
        for column, other in enumerate(others, 1):
            tells = (active[:, 0] != active[:, column]) & (active[:, [0, column]] != UNKNOWN).all(axis=1)
            count = {name: int((tells & which).sum()) for name, which in broken.items()}
            if tells.any() and max(count.values()):
                out[other.name] = max(count, key=lambda name: count[name])
        return out

    @staticmethod
    def _how_sure(view: _View, sure: float) -> str:
        why = f"holds {min(sure, 0.999):.1%} of what is possible"
        active = view.active[:, view.leader] == TRUE
        shown = [t.outcome is Outcome.FAIL for t, on in zip(view.evidence, active) if on]
        return f"{why}, but how often it shows changed during the run" if stopping.drifted(shown) else why

    def _rates(self, view: _View) -> Rates:
        column = view.active[:, view.leader]
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        garbled = view.rates.garbled
        share = None if garbled is None else float(view.post.theta_of(np.array([view.leader]))[0] @ garbled)
        return Rates(
            _rate(int((failed & (column == TRUE)).sum()), int((column == TRUE).sum())),
            _rate(int((failed & (column == FALSE)).sum()), int((column == FALSE).sum())),
            share,
        )

    def _alive(self, view: _View) -> tuple[tuple[Hypothesis, float], ...]:
        order = np.argsort(-view.weight, kind="stable")
        floor = 1e-3 if not view.exact else 0.0
        wrong: Bools = np.logical_or.reduce(self._contradictions(view), axis=0)
        return tuple(
            (self.hypotheses[i], float(view.weight[i]))
            for i in order
            if view.weight[i] > floor and not (view.exact and wrong[i])
        )

    @staticmethod
    def _contradictions(view: _View) -> Bools:
        """(evidence, rows): the trial went otherwise than the row says."""
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence], dtype=bool).reshape(-1, 1)
        wrong: Bools = np.where(failed, view.active == FALSE, view.active == TRUE)
        return wrong

    def _rejected(self, view: _View) -> tuple[Rejected, ...]:
        """Hypotheses that hold less than a thousandth, each with the trial that speaks loudest against it."""
        wrong = self._contradictions(view)
        if not len(wrong):
            return ()
        proofs = self.deterministic is True and not _contradictory(view.x > 0, view.groups)
        which = np.flatnonzero(((view.weight <= 1e-3) | proofs) & wrong.any(axis=0))
        theta = view.post.theta_of(np.array([view.leader]))[0]
        on, off = (np.exp(part) @ theta for part in view.rates.logs(view.x, view.n))
        like = np.where(view.active[:, which] == TRUE, on[:, None], off[:, None])
        loudest = wrong[:, which].argmax(axis=0) if proofs else np.where(wrong[:, which], like, np.inf).argmin(axis=0)
        out = []
        for i, against in zip(which, loudest):
            trial = view.evidence[against]
            verb = "failed without it" if trial.outcome is Outcome.FAIL else "passed with it"
            out.append(Rejected(self.hypotheses[i], trial.number, verb))
        return tuple(out)

    def _nothing_to_blame(self, view: _View) -> Verdict:
        if self.hypotheses[view.leader].kind == "always":
            return self._end("environmental", view, "every configuration fails now and then, the good one too")
        return self._end("not_reproduced", view, "what failed looks like a false alarm: nothing fails again")

    def _unexplained(self, view: _View) -> Verdict:
        rules = self._fitting(view) if self._suspects else []
        names = [f"{f.name}" for f in (self._table.members[i] for i in self._suspects)]
        rule = beyond.told(rules[0], names) if len(rules) == 1 else ""
        why = "no single factor, pair or rule predicts what was seen"
        return self._end("unexplained", view, f"{why}; `{rule}` would" if rule else why, rule)

    def _end(self, kind: VerdictKind, view: _View, why: str, rule: str = "") -> Verdict:
        return Verdict(
            kind,
            why,
            rejected=self._rejected(view),
            alive=self._alive(view),
            beyond=rule,
            other_failures=self._other_failures(view),
        )

    def _bare(self, kind: VerdictKind, trials: Sequence[Trial], evidence: list[Trial], why: str) -> Verdict:
        return self._end(kind, self._view(trials, evidence), why)


def _contradictory(failed: Bools, groups: Sequence[int]) -> bool:
    """Whether a configuration did both."""
    return len({(group, bool(f)) for group, f in zip(groups, failed)}) > len(set(groups))


def _priced(space: Space) -> bool:
    """Whether some trials cost more than others."""
    return len({f.change_minutes for f in space.factors}) > 1 or any(f.apply == "request" for f in space.factors)


def _rate(garbled: int, tried: int) -> Rate:
    """With its 95 % interval (Jeffreys)."""
    low = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.025)) if garbled else 0.0
    high = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.975)) if garbled < tried else 1.0
    return Rate(garbled, tried, low, high)
