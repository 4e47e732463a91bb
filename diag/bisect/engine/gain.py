"""How much a trial would tell, for every candidate at once.

A trial's result falls into one of a few *bins* of garbled counts. With what a row predicts where it is active
(`hot`) and where it is idle (`cold`), both averaged over the rates that the row finds likely,

    p    = A (w (hot - cold)) + sum w cold                             what will be seen, for each candidate
    gain = H(p) - A (w (H(hot) - H(cold))) - sum w H(cold)             mutual information with the hypothesis, in bits
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from diag.bisect.engine.rates import Rates
from diag.bisect.engine.rows import Floats, Singles

NEGLIGIBLE = 1e-5
"""Rows that weigh less take no part in the choice of a trial (all of them together: below a percent)."""
TIE = 0.02


@lru_cache(maxsize=64)
def _edges(n: int) -> tuple[int, ...]:
    """Bins of 0..n garbled: none, few, some, most. Upper ends, inclusive."""
    return tuple(sorted({0, max(1, n // 32), max(1, n // 12), max(1, n // 5), max(1, n // 2), n})) if n > 1 else (0, n)


@lru_cache(maxsize=32)
def _binned(rates: Rates, n: int) -> tuple[Floats, Floats]:
    """(grid, bins) for (active, idle)."""
    x = np.arange(n + 1, dtype=float)
    starts = [0, *(edge + 1 for edge in _edges(n)[:-1])]
    hot, idle = (np.add.reduceat(np.exp(part), starts, axis=0).T for part in rates.logs(x, np.full(n + 1, float(n))))
    return hot, idle


def predictions(theta: Floats, rates: Rates, n: int) -> tuple[Floats, Floats]:
    """theta (rows, grid) -> (rows, bins) probabilities of what a boot of n requests shows: (active, idle)."""
    hot, idle = _binned(rates, n)
    return theta @ hot, theta @ idle


def entropy(p: Floats) -> Floats:
    """Bits, along the last axis."""
    out: Floats = -(p * np.log2(np.maximum(p, 1e-300))).sum(axis=-1)
    return out


def information(active: Singles, weight: Floats, hot: Floats, cold: Floats) -> Floats:
    """active (candidates, rows) in 0..1 -> bits each candidate is expected to give about the rows."""
    weighted = np.concatenate(
        [weight[:, None] * (hot - cold), (weight * (entropy(hot) - entropy(cold)))[:, None]], axis=1
    )
    both = active @ weighted.astype(active.dtype)
    p = both[:, :-1].astype(float) + (weight[:, None] * cold).sum(axis=0)
    bits: Floats = entropy(p) - both[:, -1] - float((weight * entropy(cold)).sum())
    return np.maximum(bits, 0.0)


def choose(score: Floats, distance: Floats, random: np.random.Generator, tie: float = TIE) -> int:
    """The best; among those within `tie` of it, the nearest; among those, by lot."""
    good = np.flatnonzero(score >= score.max() * (1 - tie))
    near = good[distance[good] == distance[good].min()]
    return int(random.choice(near))
