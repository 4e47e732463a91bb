"""Trials and rows -> what each hypothesis is worth, with the unknown rates integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine.rates import Rates
from diag.bisect.engine.rows import TRUE, UNKNOWN, Codes, Floats, Ints


@dataclass(frozen=True)
class Posterior:
    """weight: (rows,) sums to 1. log_evidence: (rows,) log marginal likelihood, without the prior. group: (rows,) rows
    with the same number foretold the same, so they know the same of the rates. spread: (groups, grid) rates given each
    group, sums to 1 along the grid."""

    weight: Floats
    log_evidence: Floats
    group: Ints
    spread: Floats

    @property
    def theta(self) -> Floats:
        """(rows, grid): the rates given each row."""
        return self.theta_of(np.arange(len(self.group)))

    def theta_of(self, which: Ints) -> Floats:
        """(len(which), grid): the rates given each of these rows."""
        out: Floats = self.spread[self.group[which]]
        return out

    @property
    def entropy_bits(self) -> float:
        w = self.weight[self.weight > 0]
        return float(-(w * np.log2(w)).sum())


def posterior(active: Codes, x: Floats, n: Floats, log_prior: Floats, rates: Rates) -> Posterior:
    """active (trials, rows); x garbled of n requests (trials,). A row that cannot tell is half active, half idle."""
    results, which = np.unique(np.stack([x, n], axis=1), axis=0, return_inverse=True)
    counts = _counts(active, which.ravel(), len(results))
    group, first = _alike(counts)
    # One product, and everything else in place: arrays as large as this are slow to get.
    hot, idle = rates.logs(results[:, 0], results[:, 1])
    unsure = np.logaddexp(hot, idle) - np.log(2)
    spread: Floats = counts[first] @ np.concatenate([hot - idle, unsure - idle])
    spread += np.bincount(which.ravel(), minlength=len(results)).astype(float) @ idle + rates.log_weight
    top = spread.max(axis=1, keepdims=True)
    spread -= top
    np.maximum(spread, -100.0, out=spread)  # less is nothing, and slow: denormal numbers
    np.exp(spread, out=spread)
    mass = spread.sum(axis=1, keepdims=True)
    spread /= mass
    evidence = (top + np.log(mass))[group, 0]
    total = evidence + log_prior
    weight = np.exp(total - total.max())
    return Posterior(weight / weight.sum(), evidence, group, spread)


def _counts(active: Codes, which: Ints, results: int) -> Floats:
    """(rows, 2 results): how often each result was seen where the row is active, and where it cannot tell."""
    kinds = [active == TRUE, active == UNKNOWN]
    seen = [(which == r) for r in range(results)]
    out = np.zeros((active.shape[1], 2 * results))
    for k, kind in enumerate(kinds):
        if k == 0 or kind.any():
            for r in range(results):
                out[:, k * results + r] = kind[seen[r]].sum(axis=0)
    return out


def _alike(counts: Floats) -> tuple[Ints, Ints]:
    """Equal rows: (rows,) number of each, and (groups,) a row of each."""
    # One number for each row, different where rows differ: a sum of square roots of primes would do as well.
    mixed = counts @ np.random.default_rng(0).random(counts.shape[1])
    _, first, group = np.unique(np.round(mixed, 9), return_index=True, return_inverse=True)
    return group.ravel(), first


def unexplained(groups: Sequence[int], x: Floats, n: Floats, rates: Rates) -> float:
    """Log evidence of "outside the rows": every distinct configuration has a label of its own, active or idle,
    half and half. groups: for each trial, the number of its effective configuration."""
    hot, idle = rates.logs(x, n)
    numbers, which = np.unique(groups, return_inverse=True)
    own = (which == np.arange(len(numbers))[:, None]).astype(float)
    log = rates.log_weight + (np.logaddexp(own @ hot, own @ idle) - np.log(2)).sum(axis=0)
    top = log.max()
    return float(top + np.log(np.exp(log - top).sum()))
