"""Before a name is said: its claims from both ends, hold-outs, and whether the leader fits at all."""

from __future__ import annotations

import math

import numpy as np

from diag.bisect.bayes.model import HOLD_OUT, Model, View
from diag.bisect.bayes.pools import UNLIKELY, Pool, Pools
from diag.bisect.decision import Next, claims
from diag.bisect.engine import beyond, gain, rows, stopping
from diag.bisect.engine.posterior import Posterior, posterior
from diag.bisect.engine.rows import FALSE, TRUE, UNKNOWN, Bools, Floats, Ints
from diag.bisect.trial import Outcome

BEYOND_PRIOR = 1.0
"""Of rules outside the hypotheses, all together: how long an exact search goes on trying to meet one."""
NOISY_BEYOND = 0.1
"""The same where the fault may flake, and every one of them takes several trials."""
MAX_DOUBTS, LOOKED_AT = 256, 1024


class Checks:
    """What is tried once a leader stands, before its name is said."""

    def __init__(self, model: Model, pools: Pools) -> None:
        self.model, self.pools = model, pools

    def to_confirm(self, view: View, pool: Pool) -> Next | None:
        """The first claim that no trial shows yet, tried with nothing changed but what it speaks of; then hold-outs.
        None: nothing is left to check."""
        leader, show = self.model.hypotheses[view.leader], self.model.shows(view)
        chance = self.pools.chances(view, pool)
        possible = (chance > 0) & ~self.pools.tried(view, pool) if view.exact else chance > 0
        for claim in claims(leader, self.model.space):
            shown = sum(claim.shown_by(t) for t in view.evidence)
            wanted = 1 if claim.fails or view.exact else stopping.passes_needed(show)
            if shown >= wanted:
                continue
            allowed = np.array([f.name in claim.names for f in self.model.space.factors])
            base = rows.codes_of(self.model.space.factors, claim.base)
            differs = pool.candidates.codes != base
            fits = possible & ~differs[:, ~allowed].any(axis=1)
            fits &= pool.active[:, view.leader] == (TRUE if claim.fails else FALSE)
            if fits.any():
                options = np.flatnonzero(fits)
                best = options[differs[options].sum(axis=1).argmin()]
                return Next(pool.candidates.config(int(best)), claim.purpose)
        return (
            self.exact_hold_out(view, pool, possible & (chance > UNLIKELY))
            if view.exact
            else self.hold_out(view, pool, chance)
        )

    def hold_out(self, view: View, pool: Pool, chance: Floats) -> Next | None:
        """Where the leader says that all is well, and rules outside the hypotheses say most that it is not. A surprise
        is tried again: it may be a false alarm."""
        held = self.model.held(view)
        for group in dict.fromkeys(view.groups[i] for i in held):
            own = [i for i in held if view.groups[i] == group]
            failed = sum(view.evidence[i].outcome is Outcome.FAIL for i in own)
            if failed and len(own) < 3 and failed * 2 >= len(own) and self.model.loud(view, own):
                return Next(view.evidence[own[0]].config, "a surprise where all should be well: once more")
        count = len({view.groups[i] for i in held})
        outside = self.doubt(view) if self.model.beyond else None
        doubt = float(outside[1].sum()) if outside is not None else 0.0
        if count >= (stopping.HOLD_OUTS if doubt <= (1 - self.model.stop) * (1 + doubt) else stopping.HOLD_OUT_CAP):
            return None
        options = np.flatnonzero(
            ~self.pools.tried(view, pool) & (chance > UNLIKELY) & (pool.active[:, view.leader] == FALSE)
        )
        if not len(options):
            return None
        random = np.random.default_rng((self.model.seed, len(view.trials)))
        options = random.permutation(options)[:LOOKED_AT]
        pick = self.telling(view, pool, options, *outside) if outside is not None else int(options[0])
        return Next(pool.candidates.config(pick), f"{HOLD_OUT}, and all should be well")

    def doubt(self, view: View) -> tuple[Posterior, Floats]:
        """What rules outside the hypotheses weigh, the leader being 1."""
        members = [self.model.table.members[i] for i in self.model.suspects]
        facts = np.stack([rows.member_column(m, [t.effective for t in view.evidence]) for m in members], axis=1)
        active = np.where(beyond.columns(self.model.beyond, facts), TRUE, FALSE).astype(np.int8)
        even = np.full(len(self.model.beyond), math.log(NOISY_BEYOND / max(1, len(self.model.beyond))))
        post = posterior(active, view.x, view.n, even, view.rates)
        mine = view.post.log_evidence[view.leader] + self.model.log_prior[view.leader]
        return post, np.exp(np.minimum(post.log_evidence + even - mine, 50.0))

    def telling(self, view: View, pool: Pool, options: Ints, post: Posterior, doubt: Floats) -> int:
        """The one of these candidates that tells most about whether a rule outside the hypotheses holds instead."""
        heavy = np.argsort(-doubt)[:MAX_DOUBTS]
        rules = [self.model.beyond[i] for i in heavy]
        share = beyond.columns(rules, pool.facts[options][:, self.model.suspects]).astype(np.float32)
        mine = pool.active[options, view.leader].astype(np.float32)[:, None] / np.float32(2)
        weight = np.concatenate([[1.0], doubt[heavy]])
        hot, cold = gain.predictions(post.spread[post.group[heavy]], view.rates, view.requests)
        leads = self.model.foretold(view, np.array([view.leader]))
        bits = gain.information(
            np.concatenate([mine, share], axis=1),
            weight / weight.sum(),
            np.concatenate([leads[0], hot]),
            np.concatenate([leads[1], cold]),
        )
        return int(options[int(bits.argmax())])

    def exact_hold_out(self, view: View, pool: Pool, possible: Bools) -> Next | None:
        """Where a rule outside the hypotheses that fits every trial would contradict the leader."""
        rivals = self.model.fitting(view)
        held = math.exp(float(self.model.log_prior[view.leader]))
        doubt = BEYOND_PRIOR * len(rivals) / max(1, len(self.model.beyond))
        if doubt <= (1 - self.model.stop) * (held + doubt):
            return None
        disputes = beyond.columns(rivals, pool.facts[:, self.model.suspects]) != (pool.active[:, [view.leader]] == TRUE)
        count = disputes.sum(axis=1) * possible * (pool.active[:, view.leader] != UNKNOWN)
        if not count.max():
            return None
        near = pool.candidates.nearest_first(self.model.space.bad)
        options = np.flatnonzero(count == count.max())
        pick = int(options[near[options].argmin()])
        word = "garbled" if pool.active[pick, view.leader] == TRUE else "clean"
        return Next(pool.candidates.config(pick), f"{HOLD_OUT}, and it should be {word}")

    def misfit(self, view: View) -> bool:
        """The leader, though ahead, calls configurations idle that fail again and again."""
        if view.exact or len(view.evidence) < 4:
            return False
        idle = view.active[:, view.leader] == FALSE
        failed = np.array([t.outcome is Outcome.FAIL for t in view.evidence])
        if view.weight[view.leader] < self.model.stop:
            return False
        # Requests of a healthy boot may be false alarms: only boots that look like the fault count.
        loud = [bool(failed[i]) and idle[i] and self.model.loud(view, [i]) for i in range(len(failed))]
        return any(
            stopping.too_many_alarms(sum(loud[i] for i in which), len(which))
            for which in (self.model.held(view), [i for i in range(len(loud)) if idle[i]])
        )
