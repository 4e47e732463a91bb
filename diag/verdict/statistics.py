"""k of n, and how many more it takes: exact binomial statements. Pure.

Requests of one start of a server are not independent where faults come in bursts or by the boot; the numbers here hold
for requests spread over starts. The bisection's engine has a model of both levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """garbled of tried, with the exact (Clopper-Pearson) two-sided interval of the rate at CONFIDENCE."""

    garbled: int
    tried: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.garbled / self.tried if self.tried else 0.0


def rate(garbled: int, tried: int, confidence: float = CONFIDENCE) -> Rate:
    """Raises ValueError where garbled is not between 0 and tried."""
    if not 0 <= garbled <= tried:
        raise ValueError(f"{garbled} of {tried}")
    from scipy.special import betaincinv  # the quantile of a beta distribution, without all of scipy.stats

    tail = (1 - confidence) / 2
    low = float(betaincinv(garbled, tried - garbled + 1, tail)) if garbled else 0.0
    high = float(betaincinv(garbled + 1, tried - garbled, 1 - tail)) if garbled < tried else 1.0
    return Rate(garbled, tried, low, high)


def requests_for_clean(share: float, confidence: float = CONFIDENCE) -> int | None:
    """Requests that must all be clean to exclude, at this confidence, a fault that garbles this share of them:
    ln(1 - confidence) / ln(1 - share). None for a share of 0: no number excludes it."""
    if share <= 0:
        return None
    return 1 if share >= 1 else math.ceil(math.log(1 - confidence) / math.log1p(-share) - 1e-9)


def excluded_rate(clean: int, confidence: float = CONFIDENCE) -> float:
    """The smallest rate that `clean` clean requests in a row exclude."""
    return 1.0 if clean < 1 else 1 - (1 - confidence) ** (1 / clean)
