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
from collections.abc import Callable, Sequence

import numpy as np

from diag.bisect.bayes.checks import Checks
from diag.bisect.bayes.model import Model, View
from diag.bisect.bayes.naming import Naming
from diag.bisect.bayes.pools import Pool, Pools
from diag.bisect.decision import Next, Verdict, evidence_of, explains, same_config, spent
from diag.bisect.engine import batch, beyond, gain, rows, stopping
from diag.bisect.engine.rows import FALSE, TRUE, Floats
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Config, Space
from diag.bisect.trial import Outcome, Trial

MAX_TIES, LOOKED_AT = 128, 1024
LOOKED_AT_TOGETHER, FEW = 512, 64
"""Of many candidates for several hosts so many are looked at; where few hypotheses are left, all."""
EQUAL = 1e-6
MAX_REPEATED = 3
"""Trials to repeat, each once, before it is said that nothing explains them."""
OUTSIDE = 0.99
BATCH_BITS = 0.005
"""What a trial must add to all that run to be worth a host."""

Minutes = Callable[[Config, Config | None], float]
"""What a trial of the first configuration costs while the second one is running (None: nothing is)."""


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
        model = self.model = Model(space, deterministic, stopping.QUICK if quick else stopping.STOP, seed)
        self.pools = Pools(model, valid)
        self.checks = Checks(model, self.pools)
        self.naming = Naming(model)
        self.strict, self.confirm, self.max_trials = strict, confirm, max_trials
        self.minutes = minutes or (space.minutes if _priced(space) else None)

    @property
    def space(self) -> Space:
        return self.model.space

    # protocol

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        evidence = evidence_of(self.model.space, trials)
        opening = self._opening(trials, evidence)
        if opening is not None:
            return opening
        view = self.model.view(trials, evidence)
        if self.model.deterministic is True and not view.exact:
            again = self._contradicted(view)
            if again is not None:
                return again
        if view.outside > OUTSIDE or self.checks.misfit(view):
            return self.naming.unexplained(view)
        leader = self.model.hypotheses[view.leader]
        pool = self.pools.of(view)
        alike = self.pools.alike(view, pool)
        sure = float(view.weight[alike].sum())
        step = None
        if sure < self.model.stop:
            step = self._most_informative(view, pool)
        if sure >= self.model.stop or (step is None and view.exact and explains(leader, evidence)):
            if leader.kind in ("always", "never"):
                return self.naming.nothing_to_blame(view)
            step = self.checks.to_confirm(view, pool) if self.confirm else None
            if step is None:
                return self.naming.name(view, alike, sure)
        over = spent(trials) >= self.max_trials
        if (step is None or over) and leader.kind in ("always", "never") and sure > 0.5:
            return self.naming.nothing_to_blame(view)
        if step is None:
            if view.outside > 0.5 or not explains(leader, evidence):
                return self.naming.unexplained(view)
            return self.naming.end("narrowed", view, "nothing that is left to try tells the rest apart")
        if over:
            return self.naming.end("narrowed", view, f"{self.max_trials} trials are spent")
        return step

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        evidence = evidence_of(self.model.space, trials)
        view = self.model.view(trials, evidence)
        share = float(np.clip(view.weight, 1e-12, 1) @ -np.log2(np.clip(view.weight, 1e-12, 1)))
        ends = sum(
            not any(same_config(t.config, end) for t in evidence)
            for end in (self.model.space.good, self.model.space.bad)
        )
        show = self.model.shows(view)
        bits_a_trial = 1.0 if view.exact else max(0.15, 0.8 * show**2)
        rest = 0 if not self.confirm else 2 if view.exact else stopping.HOLD_OUTS
        return len(trials) + ends + math.ceil(share / bits_a_trial) + rest

    def standing(self, trials: Sequence[Trial], most: int = 1) -> tuple[tuple[Hypothesis, float], ...]:
        """Nothing before both ends are known."""
        evidence = evidence_of(self.model.space, trials)
        if self._opening(trials, evidence) is not None:
            return ()
        weight = self.model.view(trials, evidence).weight
        return tuple((self.model.hypotheses[i], float(weight[i])) for i in np.argsort(-weight, kind="stable")[:most])

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        """Where it opens, or confirms: what would come next if everything goes as foretold. For the hosts that are left
        what tells most, jointly over all outcomes of what runs; for those that are left then, the leader's claims."""
        step = self.next(trials)
        if isinstance(step, Verdict):
            return step if step.kind == "culprit" or not pending else []
        if hosts < 1:
            return []
        view = self.model.view(trials, evidence_of(self.model.space, trials))
        # Several hosts begin with the good configuration each: two trials are not yet both ends.
        if self._opening(trials, view.evidence) is not None:
            return self._opened(trials, pending, hosts)
        if float(view.weight.max()) >= self.model.stop or (view.exact and view.weight.max() > 0.5):
            return self._foreseen(trials, pending, hosts)
        if hosts == 1 and not pending:
            return [step]
        return self._joint(view, pending, hosts) or ([] if pending else [step])

    def _opened(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next]:
        """What both ends still owe; on the other hosts what tells most once they have shown what they should."""
        ends = self.model.space.good, self.model.space.bad
        imagined = list(trials)
        for config in pending:
            if any(same_config(config, end) for end in ends):
                imagined.append(self._as_foretold(imagined, config, None))
        out: list[Next] = []
        while isinstance(step := self._opening(imagined, evidence_of(self.model.space, imagined)), Next):
            if len(out) == hosts:
                return out
            out.append(step)
            imagined.append(self._as_foretold(imagined, step.config, None))
        if step is not None or len(out) == hosts:
            return out
        view = self.model.view(imagined, evidence_of(self.model.space, imagined))
        rest = [config for config in pending if not any(same_config(config, end) for end in ends)]
        return out + self._joint(view, rest, hosts - len(out))

    def _joint(self, view: View, pending: Sequence[Config], hosts: int) -> list[Next]:
        keep = np.flatnonzero(view.weight > gain.NEGLIGIBLE)
        pool = self.pools.of(view)
        if len(keep) > FEW:
            pool = self._some(view, pool, LOOKED_AT_TOGETHER)
        hot, cold = self.model.foretold(view, keep)
        random = np.random.default_rng((self.model.seed, len(view.trials), len(pending)))
        chance = self.pools.chances(view, pool)
        if view.exact:
            chance = chance * ~self.pools.tried(view, pool)
        weight = view.weight[keep] / view.weight[keep].sum()
        told = [self.model.row(self.model.space.effective(config, view.fixed))[keep] for config in pending]
        under_way: rows.Singles = np.array(told, dtype=np.float32).reshape(len(pending), len(keep))
        under_way *= 0.5
        picks = batch.joint(
            pool.share(keep), weight, 1 - hot[:, 0], 1 - cold[:, 0], under_way, hosts, chance, random, BATCH_BITS
        )
        return [Next(pool.candidates.config(i), self._purpose(view, pool, i)) for i in picks]

    def _foreseen(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next]:
        out: list[Next] = []
        view = self.model.view(trials, evidence_of(self.model.space, trials))
        imagined = [*trials]
        for config in pending:
            imagined.append(self._as_foretold(imagined, config, view))
        while len(out) < hosts and isinstance(step := self.next(imagined), Next):
            out.append(step)
            imagined.append(self._imagined(imagined, step.config))
        return out

    def _imagined(self, trials: Sequence[Trial], config: Config) -> Trial:
        """This trial, if it goes as the leader foretells."""
        return self._as_foretold(trials, config, self.model.view(trials, evidence_of(self.model.space, trials)))

    def _as_foretold(self, trials: Sequence[Trial], config: Config, view: View | None) -> Trial:
        """view: whose leader foretells; None: the failing end fails and all else passes."""
        effective = self.model.space.effective(config, view.fixed if view is not None else {})
        active: bool | None = same_config(config, self.model.space.bad)
        if view is not None and view.evidence and not active:
            active = self.model.hypotheses[view.leader].active(effective)
        outcome = Outcome.FAIL if active else Outcome.PASS
        return Trial(len(trials) + 1, "", config, effective, outcome)

    # the steps

    def _opening(self, trials: Sequence[Trial], evidence: list[Trial]) -> Next | Verdict | None:
        """Without a good text there is nothing to compare with, without a failure nothing to find."""
        space = self.model.space
        ends = space.good, space.bad
        good, bad = ([t for t in evidence if same_config(t.config, end)] for end in ends)
        good_failed = sum(self._not_healthy(t) for t in good)
        bad_failed = sum(t.outcome is Outcome.FAIL for t in bad)
        answered = [t for t in trials if t.outcome is not Outcome.INFRA]
        asked = [sum(same_config(t.config, end) for t in answered) for end in ends]
        if not good:
            if asked[0] >= 2:
                return self.naming.bare(
                    "environmental", trials, evidence, "the good configuration gave no answers, twice"
                )
            return Next(space.good, "the good configuration: its texts are what others are compared with")
        at_once = self.model.deterministic is True and good[0].outcome is Outcome.FAIL
        if good_failed and (at_once or good_failed > len(good) // 2) and len(good) < stopping.GOOD_CAP:
            if at_once or good_failed >= 2:
                return self.naming.bare(
                    "environmental", trials, evidence, "the good configuration is not healthy itself"
                )
            return Next(space.good, "the good configuration failed: once more, in a new process")
        if not bad:
            if asked[1] >= 2:
                return self.naming.bare(
                    "not_reproduced", trials, evidence, "the failing configuration gave no answers, twice"
                )
            return Next(space.bad, "the failing configuration: does it fail here at all?")
        tries = 2 if self.model.deterministic else stopping.REPRODUCE_TRIES
        if not bad_failed:
            if len(bad) < tries:
                return Next(space.bad, "it did not fail: once more, in a new process")
            times = {2: "twice"}.get(len(bad), f"{len(bad)} times")
            return self.naming.bare(
                "not_reproduced", trials, evidence, f"the failing configuration gave healthy output {times}"
            )
        first = next(i for i, t in enumerate(bad) if t.outcome is Outcome.FAIL) + 1
        if self.model.deterministic and first > 1:
            alike = f"trials {bad[0].number} and {bad[first - 1].number} are alike and differ"
            return self.naming.bare("unexplained", trials, evidence, f"{alike}: it does not show every time")
        wanted = 1 if self.model.deterministic else stopping.good_passes(1, first)
        if len(good) - good_failed < wanted and good_failed < 2:
            return Next(space.good, f"it fails only sometimes: the good configuration must pass {wanted} times")
        if good_failed >= 2 and good_failed * 4 > len(good):
            return self.naming.bare("environmental", trials, evidence, "the good configuration is not healthy itself")
        return None

    def _not_healthy(self, trial: Trial) -> bool:
        """One garbled request in many may be a false alarm, and says nothing against the good end yet."""
        if self.model.deterministic or not trial.texts:
            return trial.outcome is Outcome.FAIL
        return trial.garbled > stopping.ALARM_SHARE * len(trial.texts)

    def _most_informative(self, view: View, pool: Pool) -> Next | None:
        keep = np.flatnonzero(view.weight > gain.NEGLIGIBLE)
        weight = view.weight[keep] / view.weight[keep].sum()
        pool = self._looked_at(view, pool)
        hot, cold = self.model.foretold(view, keep)
        bits = gain.information(pool.share(keep), weight, hot, cold) * self.pools.chances(view, pool)
        if view.exact:
            bits = bits * ~self.pools.tried(view, pool)
        if bits.max() <= (stopping.SEPARABLE_BITS if view.exact else stopping.NOISY_BITS):
            return None
        score = bits if self.minutes is None else bits / self._costs(view, pool)
        random = np.random.default_rng((self.model.seed, len(view.trials)))
        best = gain.choose(score, self._ties(view, pool, score), random, EQUAL if view.exact else gain.TIE)
        return Next(pool.candidates.config(best), self._purpose(view, pool, best))

    def _looked_at(self, view: View, pool: Pool) -> Pool:
        """Of many candidates some by lot, and what is near the leaders: as good a trial is among them."""
        return pool if view.exact else self._some(view, pool, LOOKED_AT)

    def _some(self, view: View, pool: Pool, most: int) -> Pool:
        count = len(pool.candidates.codes)
        if count <= most:
            return pool
        random = np.random.default_rng((self.model.seed, len(view.trials), 1))
        return pool.part(np.sort(random.choice(count, most, replace=False)))

    def _ties(self, view: View, pool: Pool, score: Floats) -> Floats:
        """(candidates,) what decides among equals, least first: what is nearest to the failing configuration, levels of
        neither end last; then what makes hold-outs needless later."""
        if not view.exact:
            return np.zeros(len(score))
        away = [
            pool.candidates.codes != rows.codes_of(self.model.space.factors, end)
            for end in (self.model.space.bad, self.model.space.good)
        ]
        near: Floats = away[0].sum(axis=1) + 0.6 * (away[0] & away[1]).sum(axis=1)
        good = np.flatnonzero(score >= score.max() * (1 - EQUAL))
        good = good[np.argsort(near[good], kind="stable")][:MAX_TIES]
        fitting = self.model.fitting(view)
        if len(fitting) > 1:
            p = beyond.columns(fitting, pool.facts[good][:, self.model.suspects]).mean(axis=1)
            near[good] += np.abs(0.5 - p) - 1
        return near

    def _contradicted(self, view: View) -> Next | Verdict | None:
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
                return self.naming.end("unexplained", view, why) if self.strict else None
        wrong = np.where(failed[:, None], view.active != TRUE, view.active == TRUE)
        alone = wrong & (wrong.sum(axis=0) == 1)
        worth = alone @ np.exp(self.model.log_prior)
        for i in np.argsort(-worth, kind="stable"):
            if len(repeated) < MAX_REPEATED and view.groups[i] not in repeated and (worth[i] > 0 or not repeated):
                return Next(view.evidence[i].config, "nothing predicts what this one showed: once more")
        return self.naming.unexplained(view)

    def _costs(self, view: View, pool: Pool) -> Floats:
        running = view.trials[-1].config if view.trials else None
        count = len(pool.candidates.codes)
        if self.minutes is None:
            return np.ones(count)
        return np.array([self.minutes(pool.candidates.config(i), running) for i in range(count)])

    def _purpose(self, view: View, pool: Pool, best: int) -> str:
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
        first = self.model.hypotheses[which[0]].name
        return first if len(which) == 1 else f"{first} and {len(which) - 1} more"


def _priced(space: Space) -> bool:
    """Whether some trials cost more than others."""
    return len({f.change_minutes for f in space.factors}) > 1 or any(f.apply == "request" for f in space.factors)
