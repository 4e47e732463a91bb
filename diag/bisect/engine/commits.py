"""Commits as rows: hypothesis h is "commit h broke it", active at every commit that has h as an ancestor or is h.

With a linear history the rows are suffixes and this is noisy bisection; with merges they are whatever `git rev-list`
says. Unknown rates, information per minute, stop rule: the same as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine import batch, gain, rates, stopping
from diag.bisect.engine.posterior import posterior
from diag.bisect.engine.rows import FALSE, TRUE, Bools, Codes, Floats, Singles

STOP = 0.99
"""Higher than where combinations are searched: neighbours in a row are told apart by few trials, and nothing confirms a
commit but the trials that found it."""
PRIOR_RATIO_CAP = 20.0
"""A prior from files or subjects buys speed, not truth: no commit is held 20 times likelier than another."""


@dataclass(frozen=True)
class Step:
    """index: the commit to try next, None when it is settled (or nothing tells the rest apart). weight: (commits,)
    probability that each is the first bad one. culprit: the likeliest. more: what other free hosts should try."""

    index: int | None
    weight: Floats
    culprit: int
    settled: bool
    more: tuple[int, ...] = ()


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
    stop: float = STOP,
    seed: int = 0,
    pending: Sequence[int] = (),
    count: int = 1,
) -> Step:
    """ancestors (commits, commits); trials: (commit, garbled, requests), skipped ones left out. prior (commits,):
    weights, 0 for commits that cannot be it. chance, minutes (commits,): of each to build and start, and its cost.
    pending: commits that other hosts still try; count: how many hosts are free."""
    commits = len(ancestors)
    given = np.ones(commits) if prior is None else np.asarray(prior, dtype=float)
    positive = given > 0
    weights = np.where(positive, np.maximum(given, given.max() / PRIOR_RATIO_CAP), 0.0)
    with np.errstate(divide="ignore"):
        log_prior = np.log(weights / weights.sum())
    where = np.array([c for c, _, _ in trials], dtype=np.intp)
    active: Codes = np.where(ancestors[where], TRUE, FALSE).astype(np.int8)
    x = np.array([float(v) for _, v, _ in trials])
    n = np.array([float(v) for _, _, v in trials])
    boot = int(np.median(n)) if len(n) else 1
    over = rates.bits(certain) if boot == 1 else rates.counts(certain)
    post = posterior(active, x, n, log_prior, over)
    culprit = int(post.weight.argmax())
    if post.weight[culprit] >= stop:
        return Step(None, post.weight, culprit, True)
    keep = np.flatnonzero(post.weight > gain.NEGLIGIBLE / 10)
    hot, cold = gain.predictions(post.theta[keep], over, boot)
    share = ancestors[:, keep].astype(np.float32)
    weight = post.weight[keep] / post.weight[keep].sum()
    bits = gain.information(share, weight, hot, cold)
    if chance is not None:
        bits = bits * chance
    if bits.max() <= stopping.NOISY_BITS:
        return Step(None, post.weight, culprit, False)
    random = np.random.default_rng((seed, len(trials)))
    if count > 1 or pending:
        worth = (np.ones(commits) if chance is None else chance) / (1.0 if minutes is None else minutes)
        told = share, weight, hot[:, 1:].sum(axis=1), cold[:, 1:].sum(axis=1)
        picks = batch.joint(*told, share[list(pending)], count, worth, random)
        return Step(picks[0] if picks else None, post.weight, culprit, False, tuple(picks[1:]))
    score = bits if minutes is None else bits / minutes
    return Step(gain.choose(score, np.zeros(commits), random), post.weight, culprit, False)


def halve(
    ancestors: Bools,
    trials: Sequence[tuple[int, bool]],
    *,
    prior: Floats,
    chance: Floats,
    seed: int = 0,
    pending: Sequence[int] = (),
    count: int = 1,
) -> Step | None:
    """`decide` where one trial is a proof. trials: (commit, whether it failed). None: no single commit explains them.

    The commit that splits best what is left comes next: among n commits in a row it takes ceil(log2 n) trials.
    """
    alive = prior > 0
    for commit, failed in trials:
        alive &= ancestors[commit] == failed
    if not alive.any():
        return None
    weight = np.where(alive, prior, 0.0)
    weight = weight / weight.sum()
    culprit = int(weight.argmax())
    if int(alive.sum()) == 1:
        return Step(None, weight, culprit, True)
    random = np.random.default_rng((seed, len(trials)))
    left = np.flatnonzero(weight)
    picks = _splits(ancestors[:, left].astype(np.float32), weight[left], chance, pending, count, random)
    return Step(picks[0] if picks else None, weight, culprit, False, tuple(picks[1:]))


def _splits(
    ancestors: Singles,
    weight: Floats,
    chance: Floats,
    pending: Sequence[int],
    count: int,
    random: np.random.Generator,
) -> list[int]:
    """At most `count` commits that together split the weight best, given what is pending; none that tells nothing.
    ancestors (commits, suspects), weight (suspects,): of those that are left."""
    cells = [weight]
    for commit in pending:
        cells = _cut(cells, ancestors[commit])
    picks: list[int] = []
    while len(picks) < count:
        mass = np.array([cell.sum() for cell in cells])
        p = (ancestors @ np.stack(cells, axis=1).astype(np.float32)).astype(float) / mass
        p = np.clip(p, 0.0, 1.0)
        bits = (gain.entropy(np.stack([p, 1 - p], axis=-1)) * mass).sum(axis=1) * chance
        if bits.max() <= stopping.NOISY_BITS:
            break
        picks.append(gain.choose(bits, np.zeros(len(bits)), random))
        cells = _cut(cells, ancestors[picks[-1]])
    return picks


def _cut(cells: Sequence[Floats], active: Singles) -> list[Floats]:
    """Each cell in two: what is active at a commit, and the rest."""
    return [half for cell in cells for half in (cell * active, cell * (1 - active)) if half.any()]
