"""The next trials for several hosts at once: greedy over the tree of outcomes of what is already picked.

Each pick splits every branch in two, garbled or not, with its probability and its posterior; the next pick is the one
with the best expected information over all branches. Trials that other hosts still run are picks that were made before.

Sixty-four trials under way have 2^64 outcomes: of more than MAX_BRANCHES so many stay as are drawn by their weight,
evenly spread, so that what is expected over them is what is expected over all. And what a candidate adds only gets less
with each pick (its outcome tells of the hypotheses alone), so that an old figure is a bound: those that cannot be the
best by it are not looked at again (Minoux 1978, accelerated greedy).
"""

from __future__ import annotations

import numpy as np

from diag.bisect.engine.gain import TIE, entropy
from diag.bisect.engine.rows import Floats, Ints, Singles

NOTHING = 1e-12
MAX_BRANCHES = 64
BLOCK = 64
"""Candidates that are looked at together."""


def joint(
    share: Singles,
    weight: Floats,
    hot: Floats,
    cold: Floats,
    pending: Singles,
    count: int,
    chance: Floats,
    random: np.random.Generator,
    least: float = 0.0,
) -> list[int]:
    """`count` candidates to try at once, fewer where no other adds more than `least` bits. share (candidates, rows) in
    0..1; weight, hot, cold (rows,): probability of each row, and that a boot is seen garbled where it is active, idle;
    pending (trials, rows): the same of those under way; chance: of each candidate to start, or any other factor on its
    worth."""
    branches = weight[None, :]
    for under_way in pending:
        branches = _split(branches, under_way.astype(float), hot, cold, random)
    picks: list[int] = []
    bound = np.full(len(share), np.inf)
    for _ in range(count):
        good = _best(share, branches, hot, cold, chance, bound, least)
        if not len(good):
            break
        pick = int(random.choice(good))
        picks.append(pick)
        branches = _split(branches, share[pick].astype(float), hot, cold, random)
    return picks


def _best(
    share: Singles, branches: Floats, hot: Floats, cold: Floats, chance: Floats, bound: Floats, least: float
) -> Ints:
    """Candidates worth as much as the best, or nearly. bound (candidates,): what each is worth at most; put right for
    those that are looked at."""
    worth = _Expected(branches, hot, cold)
    order, best, at = np.argsort(-bound, kind="stable"), least, 0
    size = len(order) if np.isinf(bound[order[-1]]) else BLOCK
    while at < len(order) and bound[order[at]] > best * (1 - TIE):
        some = order[at : at + size]
        bound[some] = worth.bits(share[some]) * chance[some]
        best, at = max(best, float(bound[some].max())), at + size
    return np.flatnonzero((bound > least) & (bound >= best * (1 - TIE)))


def _split(branches: Floats, active: Floats, hot: Floats, cold: Floats, random: np.random.Generator) -> Floats:
    """(branches, rows), each row's sum the branch's probability -> the same after one more trial."""
    fails = active * hot + (1 - active) * cold
    after: Floats = np.concatenate([branches * fails, branches * (1 - fails)])
    mass = after.sum(axis=1)
    if len(after) <= MAX_BRANCHES:
        possible: Floats = after[mass > NOTHING]
        return possible
    # Systematic: a branch is drawn once for each 1/MAX_BRANCHES of the weight that its own covers.
    ends = np.cumsum(mass)
    drawn = np.searchsorted(ends, (random.random() + np.arange(MAX_BRANCHES)) * ends[-1] / MAX_BRANCHES)
    kept, times = np.unique(np.minimum(drawn, len(after) - 1), return_counts=True)
    out: Floats = after[kept] * (times * ends[-1] / MAX_BRANCHES / mass[kept])[:, None]
    return out


class _Expected:
    """What a trial of a candidate is expected to tell, averaged over the branches."""

    def __init__(self, branches: Floats, hot: Floats, cold: Floats) -> None:
        mass, total = branches.sum(axis=1), branches.sum(axis=0)
        sure = [entropy(np.stack([p, 1 - p], axis=-1)) for p in (hot, cold)]
        self._mass = mass.astype(np.float32)
        self._hot = (branches * ((hot - cold) / mass[:, None])).T.astype(np.float32)
        self._cold = ((branches @ cold) / mass).astype(np.float32)
        self._given_hot, self._given = (total * (sure[0] - sure[1])).astype(np.float32), np.float32(total @ sure[1])

    def bits(self, share: Singles) -> Singles:
        """share (candidates, rows) -> (candidates,)."""
        told = _two_sided(share @ self._hot + self._cold) @ self._mass - (share @ self._given_hot + self._given)
        out: Singles = np.maximum(told, 0)
        return out


def _two_sided(p: Singles) -> Singles:
    """Bits of one that happens with probability p, or not. In single precision, which is twice as quick."""
    np.clip(p, 1e-7, 1 - 1e-7, out=p)
    q = 1 - p
    bits: Singles = -(p * np.log2(p) + q * np.log2(q))
    return bits
