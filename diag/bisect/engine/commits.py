"""Commits as rows: hypothesis h is "commit h broke it", active at every commit that has h as an ancestor or is h.

With a linear history the rows are suffixes and this is noisy bisection; with merges they are whatever `git rev-list`
says. Unknown rates, information per minute, stop rule: the same as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine import gain, rates, stopping
from diag.bisect.engine.posterior import posterior
from diag.bisect.engine.rows import FALSE, TRUE, Bools, Codes, Floats

PRIOR_RATIO_CAP = 20.0
"""A prior from files or subjects buys speed, not truth: no commit is held 20 times likelier than another."""


@dataclass(frozen=True)
class Step:
    """index: the commit to try next, None when it is settled (or nothing tells the rest apart). weight: (commits,)
    probability that each is the first bad one. culprit: the likeliest."""

    index: int | None
    weight: Floats
    culprit: int
    settled: bool


def linear(count: int) -> Bools:
    """ancestors[c, h]: h is c or comes before it."""
    return np.tril(np.ones((count, count), dtype=bool))


def decide(
    ancestors: Bools,
    trials: Sequence[tuple[int, int, int]],
    *,
    prior: Floats | None = None,
    chance: Floats | None = None,
    minutes: Floats | None = None,
    certain: float = rates.CERTAIN,
    stop: float = stopping.STOP,
    seed: int = 0,
) -> Step:
    """ancestors (commits, commits); trials: (commit, garbled, requests), skipped ones left out. prior (commits,):
    weights, 0 for commits that cannot be it. chance, minutes (commits,): of each to build and start, and its cost."""
    count = len(ancestors)
    given = np.ones(count) if prior is None else np.asarray(prior, dtype=float)
    positive = given > 0
    weights = np.where(positive, np.maximum(given, given.max() / PRIOR_RATIO_CAP), 0.0)
    with np.errstate(divide="ignore"):
        log_prior = np.log(weights / weights.sum())
    active: Codes = np.where(ancestors, TRUE, FALSE).astype(np.int8)
    where = np.array([c for c, _, _ in trials], dtype=np.intp)
    x = np.array([float(v) for _, v, _ in trials])
    n = np.array([float(v) for _, _, v in trials])
    boot = int(np.median(n)) if len(n) else 1
    over = rates.bits(certain) if boot == 1 else rates.counts(certain)
    post = posterior(active[where], x, n, log_prior, over)
    culprit = int(post.weight.argmax())
    if post.weight[culprit] >= stop:
        return Step(None, post.weight, culprit, True)
    keep = np.flatnonzero(post.weight > gain.NEGLIGIBLE / 10)
    hot, cold = gain.predictions(post.theta[keep], over, boot)
    share = active[:, keep].astype(np.float32) / np.float32(2)
    weight = post.weight[keep] / post.weight[keep].sum()
    bits = gain.information(share, weight, hot, cold)
    if chance is not None:
        bits = bits * chance
    if bits.max() <= stopping.NOISY_BITS:
        return Step(None, post.weight, culprit, False)
    score = bits if minutes is None else bits / minutes
    random = np.random.default_rng((seed, len(trials)))
    return Step(gain.choose(score, np.zeros(count), random), post.weight, culprit, False)
