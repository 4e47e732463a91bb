"""Which configurations are likely to start, learned from those that did not.

Each configuration that did not start has a reason: one of its levels, or a pair of them, that no configuration
which did start has. Reasons weigh by kind and share their configuration's blame; a candidate with the whole of the
blame in it will not start either. A trial that did not start says nothing about health.
"""

from __future__ import annotations

import numpy as np

from diag.bisect.engine.rows import Codes, Floats

LEVEL, PAIR = 1.0, 0.3
CHANCE = 0.1
"""That it was just bad luck: nothing to learn from."""


def probability(candidates: Codes, started: Codes, refused: Codes) -> Floats:
    """(candidates,) in 0..1. All arguments: level codes (configurations, factors)."""
    out = np.ones(len(candidates))
    for config in np.unique(refused, axis=0) if len(refused) else refused:
        same_started = started == config
        same_candidate = candidates == config
        blame = np.zeros(len(candidates))
        total = 0.0
        alone = ~same_started.any(axis=0) if len(started) else np.ones(len(config), dtype=bool)
        for j in range(len(config)):
            if alone[j]:
                total += LEVEL
                blame += LEVEL * same_candidate[:, j]
        for a in range(len(config)):
            for b in range(a):
                met = bool((same_started[:, a] & same_started[:, b]).any())
                if not met and not (alone[a] or alone[b]):
                    total += PAIR
                    blame += PAIR * (same_candidate[:, a] & same_candidate[:, b])
        if total > 0:
            out *= 1 - (1 - CHANCE) * blame / total
    return out
