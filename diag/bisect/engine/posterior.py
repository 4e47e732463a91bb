"""Trials and rows -> what each hypothesis is worth, with the unknown rates integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine.rates import Rates
from diag.bisect.engine.rows import TRUE, UNKNOWN, Codes, Floats


@dataclass(frozen=True)
class Posterior:
    """weight: (rows,) sums to 1. theta: (rows, grid) given each row, sums to 1 along the grid. log_evidence: (rows,)
    log marginal likelihood, without the prior."""

    weight: Floats
    theta: Floats
    log_evidence: Floats

    @property
    def entropy_bits(self) -> float:
        w = self.weight[self.weight > 0]
        return float(-(w * np.log2(w)).sum())


def posterior(active: Codes, x: Floats, n: Floats, log_prior: Floats, rates: Rates) -> Posterior:
    """active (trials, rows); x garbled of n requests (trials,). A row that cannot tell is half active, half idle."""
    hot, idle = rates.logs(x, n)
    log: Floats = np.zeros((active.shape[1], len(rates.log_weight))) + rates.log_weight
    if len(x):
        unknown = np.logaddexp(hot, idle) - np.log(2)
        log = log + idle.sum(axis=0) + (active == TRUE).T.astype(float) @ (hot - idle)
        if np.any(active == UNKNOWN):
            log = log + (active == UNKNOWN).T.astype(float) @ (unknown - idle)
    top = log.max(axis=1, keepdims=True)
    spread = np.exp(log - top)
    mass = spread.sum(axis=1, keepdims=True)
    evidence = (top + np.log(mass))[:, 0]
    total = evidence + log_prior
    weight = np.exp(total - total.max())
    return Posterior(weight / weight.sum(), spread / mass, evidence)


def unexplained(groups: Sequence[int], x: Floats, n: Floats, rates: Rates) -> float:
    """Log evidence of "outside the rows": every distinct configuration has a label of its own, active or idle,
    half and half. groups: for each trial, the number of its effective configuration."""
    hot, idle = rates.logs(x, n)
    log = rates.log_weight.copy()
    for group in set(groups):
        own = np.array([g == group for g in groups])
        log = log + np.logaddexp(hot[own].sum(axis=0), idle[own].sum(axis=0)) - np.log(2)
    top = log.max()
    return float(top + np.log(np.exp(log - top).sum()))
