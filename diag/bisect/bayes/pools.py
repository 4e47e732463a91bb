"""What can be tried, and what is likely to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diag.bisect.bayes.model import Model, View
from diag.bisect.decision import fails_otherwise, signature_of
from diag.bisect.engine import rows, starts
from diag.bisect.engine.rows import FALSE, UNKNOWN, Bools, Codes, Floats, Ints, Singles
from diag.bisect.expr import Value
from diag.bisect.space import Config
from diag.bisect.trial import Outcome

MAX_ENUMERATED = 1 << 14
POOL = 64
LEADERS = 3
UNLIKELY = 0.02
"""Two configurations that did not start for one possible reason: others with that reason are not waited for."""


@dataclass(frozen=True)
class Pool:
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

    def part(self, which: Ints) -> Pool:
        candidates = rows.Candidates(self.candidates.factors, self.candidates.codes[which])
        return Pool(candidates, self.active[which], self.facts[which])


class Pools:
    """valid: what else than its constraints a configuration of the space must satisfy to be tried."""

    def __init__(self, model: Model, valid: Callable[[Config], bool] | None) -> None:
        self.model, self.valid = model, valid
        self._pools: dict[tuple[tuple[str, Value], ...], Pool] = {}

    def of(self, view: View) -> Pool:
        """Every configuration of a small space; of a large one some by lot, and what is near the leaders."""
        fixed = view.fixed
        key = tuple(fixed.items())
        if self.model.sizes <= MAX_ENUMERATED:
            if key not in self._pools:
                self._pools[key] = self.evaluated(rows.everything(self.model.space.factors), fixed)
            return self.with_readings(view, self._pools[key])
        random = np.random.default_rng((self.model.seed, len(view.trials)))
        near = [rows.codes_of(self.model.space.factors, c) for c in (self.model.space.good, self.model.space.bad)]
        for leader in np.argsort(-view.weight)[:LEADERS]:
            wanted = set(self.model.hypotheses[leader].factors)
            for base, other in (
                (self.model.space.good, self.model.space.bad),
                (self.model.space.bad, self.model.space.good),
            ):
                config = {name: other[name] if name in wanted else base[name] for name in base}
                near.append(rows.codes_of(self.model.space.factors, config))
        return self.evaluated(rows.pool(self.model.space.factors, near, POOL, random), fixed)

    def with_readings(self, view: View, pool: Pool) -> Pool:
        """What a server told in a trial is known there from then on."""
        if not pool.unknown:
            return pool
        active = pool.active.copy()
        for trial, row in zip(view.evidence, view.active):
            active[(pool.candidates.codes == self.model.code(view, trial)).all(axis=1)] = row
        return Pool(pool.candidates, active, pool.facts)

    def evaluated(self, candidates: rows.Candidates, fixed: Mapping[str, Value]) -> Pool:
        """Those candidates that may be tried, with what each row says of them."""
        for constraint in self.model.space.constraints:
            codes = candidates.codes[candidates.told(constraint.when) != FALSE]
            candidates = rows.Candidates(candidates.factors, codes)
        if self.valid is not None:
            keep = [i for i in range(len(candidates.codes)) if self.valid(candidates.config(i))]
            candidates = rows.Candidates(candidates.factors, candidates.codes[keep])
        if fixed:
            # Two command lines with one effect are one trial: the one nearest to the failing configuration stays.
            dead = [j for j, f in enumerate(candidates.factors) if f.name in fixed]
            wanted = rows.codes_of(candidates.factors, self.model.space.bad)
            codes = candidates.codes[(candidates.codes[:, dead] == wanted[dead]).all(axis=1)]
            candidates = rows.Candidates(candidates.factors, codes)
        facts = candidates.columns(self.model.table.members, fixed)
        return Pool(candidates, self.model.table.active(facts), facts)

    def chances(self, view: View, pool: Pool) -> Floats:
        """Of each candidate to start, and to show what is looked for if it fails. One that did not is not tried
        again."""
        if len(view.evidence) == len(view.trials):
            return np.ones(len(pool.candidates.codes))
        codes: dict[bool, list[Codes]] = {True: [], False: []}
        wanted = signature_of(self.model.space, view.trials)
        for t in view.trials:
            if t.outcome is not Outcome.INFRA:
                lost = t.outcome is Outcome.SKIP or fails_otherwise(t, wanted)
                codes[lost].append(self.model.code_of(t.config))
        empty = np.zeros((0, len(self.model.space.factors)), dtype=np.int8)
        refused = np.array(codes[True], dtype=np.int8) if codes[True] else empty
        started = np.array(codes[False], dtype=np.int8) if codes[False] else empty
        chance = starts.probability(pool.candidates.codes, started, refused)
        return chance * ~self.among(pool, refused)

    def among(self, pool: Pool, codes: Codes) -> Bools:
        out = np.zeros(len(pool.candidates.codes), dtype=bool)
        for code in codes:
            out |= (pool.candidates.codes == code).all(axis=1)
        return out

    def tried(self, view: View, pool: Pool) -> Bools:
        """Candidates with the effect of a trial."""
        answered = [t for t in view.trials if t.outcome is not Outcome.INFRA]
        return self.among(pool, np.array([self.model.code(view, t) for t in answered], dtype=np.int8))

    def alike(self, view: View, pool: Pool) -> Bools:
        """Rows that no configuration and no trial tells from the leader."""
        near = np.flatnonzero(view.weight > view.weight[view.leader] * 1e-6)
        same_trials = (view.active[:, near] == view.active[:, [view.leader]]).all(axis=0)
        near = near[same_trials]
        # What most likely does not start tells nothing apart.
        left = (
            pool.active[self.chances(view, pool) > UNLIKELY] if len(view.evidence) < len(view.trials) else pool.active
        )
        out = np.zeros(len(view.weight), dtype=bool)
        mine, other = left[:, [view.leader]], left[:, near]
        out[near] = ((other == mine) | (other == UNKNOWN) | (mine == UNKNOWN)).all(axis=0)
        return out
