"""The next trials for several hosts at once: greedy over the tree of outcomes of what is already picked.

Each pick splits every branch in two, garbled or not, with its probability and its posterior; the next pick is the one
with the best expected information over all branches. Branches that hardly happen are cut. Trials that other hosts
still run are picks that were made before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.bisect.engine.gain import TIE, entropy
from diag.bisect.engine.rows import Floats, Singles

CUT = 1e-4
MAX_BRANCHES = 256


def joint(
    share: Singles,
    weight: Floats,
    hot: Floats,
    cold: Floats,
    pending: Sequence[int],
    count: int,
    chance: Floats,
    random: np.random.Generator,
) -> list[int]:
    """`count` candidates to try at once. share (candidates, rows) in 0..1; weight, hot, cold (rows,): probability of
    each row, and that a boot is seen garbled where it is active, idle; pending: candidates under way; chance: of each
    candidate to start, or any other factor on its worth."""
    branches = weight[None, :]
    for picked in pending:
        branches = _split(branches, share[picked].astype(float), hot, cold)
    picks: list[int] = []
    for _ in range(count):
        worth = _expected(share, branches, hot, cold) * chance
        if worth.max() <= 0:
            break
        pick = int(random.choice(np.flatnonzero(worth >= worth.max() * (1 - TIE))))
        picks.append(pick)
        branches = _split(branches, share[pick].astype(float), hot, cold)
    return picks


def _split(branches: Floats, active: Floats, hot: Floats, cold: Floats) -> Floats:
    """(branches, rows), each row's sum the branch's probability -> the same after one more trial."""
    fails = active * hot + (1 - active) * cold
    after: Floats = np.concatenate([branches * fails, branches * (1 - fails)])
    mass = after.sum(axis=1)
    keep = np.argsort(-mass)[:MAX_BRANCHES]
    kept: Floats = after[keep[mass[keep] > CUT]]
    return kept


def _expected(share: Singles, branches: Floats, hot: Floats, cold: Floats) -> Floats:
    """(candidates,) bits, averaged over the branches."""
    mass = branches.sum(axis=1)
    two = [entropy(np.stack([p, 1 - p], axis=-1)) for p in (hot, cold)]
    seen = share @ (branches * (hot - cold)).T.astype(np.float32) + (branches * cold).sum(axis=1)
    p = np.clip(seen.astype(float) / mass, 1e-12, 1 - 1e-12)
    given = share @ (branches * (two[0] - two[1])).T.astype(np.float32) + (branches * two[1]).sum(axis=1)
    bits: Floats = (entropy(np.stack([p, 1 - p], axis=-1)) * mass - given).sum(axis=1)
    return np.maximum(bits, 0.0)
