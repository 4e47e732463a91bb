"""When to start, when to stop, what to check before a name is said. Pure rules, with their exact error rates.

    gate      the failing configuration must fail once in REPRODUCE_TRIES boots; the good one must pass `good_passes`
    stop      the leader holds STOP of the posterior (QUICK with --quick)
    confirm   the claim from both ends, then HOLD_OUTS configurations that nobody has tried and the leader calls idle,
              and up to HOLD_OUT_CAP while rules outside the hypotheses hold more than 1 - STOP

Error rates are of the rule alone; the search's own evidence comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, hypergeom

from diag.bisect.engine.rates import ACTIVE

REPRODUCE_TRIES = 6
GOOD_CAP = 8
STOP, QUICK = 0.985, 0.95
"""The leader jumps over STOP, by about half a percent in the mean: of what stops there more than 99 % is right."""
MISS = 0.05
HOLD_OUTS, HOLD_OUT_CAP = 6, 12
SEPARABLE_BITS = 0.005
NOISY_BITS = 1e-4
"""Below that a trial tells nothing; near STOP there is little left to tell, so a noisy search takes less."""
ALARMS, REFUSE = 0.03, 0.02
ALARM_SHARE = 0.05
DRIFT = 0.03


def fail_rate(failed: int, tries: int) -> float:
    """Posterior mean of how often an active boot garbles."""
    a, b = ACTIVE
    return (a + failed) / (a + b + tries)


def good_passes(failed: int, tries: int) -> int:
    """How often the good configuration must pass before it counts as good. If the failing one never missed: once."""
    if failed == tries:
        return 1
    return min(GOOD_CAP, math.ceil(math.log(MISS) / math.log(1 - fail_rate(failed, tries))))


def passes_needed(rate: float) -> int:
    """Passes after which an active configuration would have shown itself, up to MISS; at a rate near 1: one."""
    if rate >= 1 - MISS:
        return 1
    return min(GOOD_CAP, math.ceil(math.log(MISS) / math.log(1 - rate)))


def too_many_alarms(alarms: int, idle: int) -> bool:
    """Whether so many failures where the leader calls all well cannot be false alarms, of which 3 in 100 are many."""
    return alarms >= 2 and bool(binom.sf(alarms - 1, idle, ALARMS) < REFUSE)


def drifted(shown: Sequence[bool]) -> bool:
    """Whether the fault came and went: active boots in the order of the run, first half against second (Fisher's exact
    test, two-sided). Warm caches and other users do that; what was concluded rests on rates that did not stay."""
    if len(shown) < 4:
        return False
    half = len(shown) // 2
    first, total = sum(shown[:half]), sum(shown)
    table = hypergeom(len(shown), total, half)
    chances = table.pmf(np.arange(half + 1))
    return bool(chances[chances <= chances[first] * (1 + 1e-9)].sum() < DRIFT)


# exact operating points


def gate_misses(rate: float) -> float:
    """Chance that a fault which shows in this share of boots is called "not reproduced"."""
    return (1 - rate) ** REPRODUCE_TRIES


def gate_lets_through(rate: float) -> float:
    """Chance that the gate lets a world through in which *every* configuration fails at this rate: the good one must
    pass first, the failing one fail at last, and the good one pass as often as that asks for."""
    total = 0.0
    for tries in range(1, REPRODUCE_TRIES + 1):
        total += (1 - rate) ** (tries - 1) * rate * (1 - rate) ** good_passes(1, tries)
    return total


def hold_outs_miss(rate: float, alarms: float, count: int, active_share: float = 0.5) -> float:
    """Chance that `count` hold-outs show nothing although a rule outside the rows calls this share of them active."""
    return (1 - active_share * rate - (1 - active_share) * alarms) ** count


def hold_outs_cry(alarms: float, count: int) -> float:
    """Chance that a right leader is contradicted twice at one hold-out: each that fails is tried once more."""
    return 1 - (1 - alarms**2) ** count


def right_leader_refused(alarms: float, idle: int) -> float:
    """Chance that `too_many_alarms` holds against a right leader at one look, after so many idle boots."""
    most = next(f for f in range(2, idle + 2) if too_many_alarms(f, idle) or f > idle)
    return float(binom.sf(most - 1, idle, alarms))


def sufficiency_false(alarms: float, tries: int) -> float:
    """Chance that (good + something innocent) fails in one of `tries`."""
    return 1 - (1 - alarms) ** tries


def necessity_false(rate: float, passes: int) -> float:
    """Chance that (failing - something innocent), which is still active, passes that often in a row."""
    return (1 - rate) ** passes
