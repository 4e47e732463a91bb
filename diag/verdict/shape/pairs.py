"""Which words stand next to each other: of a language's usual words, how much more often, or less, than by chance.

People put "of the" together and never "the of". A token that a broken server puts in is next to words that it is never
next to. The table is counted from the tuning half of the corpus, English dictionaries and a healthy model's outputs
(`benchmarks/verdict_train.py`); it has some two dozen languages, English best. Of the others nothing is said.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

import numpy as np
import numpy.typing as npt

STEPS = 16.0
"""Costs are kept in sixteenths of a nat."""

MOST_NATS = 4.0
SHUNNED = 1.2
"""Nats of a pair from which on it is one that people shun."""


@dataclass(frozen=True)
class Pairs:
    """words: of one language, most frequent first, to their number; logs: ln of how often each was seen; keys: first
    word's number times `len(words)` plus the second's, ascending; costs: of those pairs, in STEPS. A pair that is not
    there was hardly ever seen."""

    words: dict[str, int]
    logs: Sequence[float]
    total: float
    keys: Sequence[int]
    costs: Sequence[int]
    _known: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def cost(self, first: str, second: str) -> float | None:
        """Nats: negative where the two are often together, positive where they are not though both are frequent; None
        where one of the words is not known."""
        a, b = self.words.get(first), self.words.get(second)
        if a is None or b is None:
            return None
        found = self._known.get((a, b))
        if found is None:
            found = self._known[a, b] = self._cost(a, b)
        return found

    def _cost(self, a: int, b: int) -> float:
        key = a * len(self.words) + b
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return self.costs[at] / STEPS
        expected = math.exp(self.logs[a] + self.logs[b]) / self.total
        return min(MOST_NATS, math.log(expected + 1))


@lru_cache(maxsize=1)
def tables() -> dict[str, Pairs]:
    """By the code of the language."""
    with resources.files(__package__).joinpath("pairs.npz").open("rb") as file:
        raw = dict(np.load(file))
    return {code: _table(raw, code) for code in bytes(raw["codes"]).decode().split()}


def _table(raw: dict[str, npt.NDArray[np.generic]], code: str) -> Pairs:
    words = bytes(raw[f"{code}.words"]).decode().split()
    logs = (raw[f"{code}.logs"].astype(np.float64) / 256).tolist()
    keys = np.cumsum(raw[f"{code}.steps"].astype(np.int64)).tolist()
    costs = raw[f"{code}.costs"].astype(np.int64).tolist()
    return Pairs(dict(zip(words, range(len(words)))), logs, float(raw[f"{code}.total"]), keys, costs)


def cost(codes: Sequence[str], first: str, second: str, known: Mapping[str, Pairs]) -> float | None:
    """The lowest of any of these languages; None where none has both words."""
    best = None
    for code in codes:
        table = known.get(code)
        found = None if table is None else table.cost(first, second)
        if found is not None and (best is None or found < best):
            best = found
    return best
