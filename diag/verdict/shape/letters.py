"""How a text's characters follow each other, as they are spelt and as what they are; letters.npz has the tables.

They were counted in a hundred languages and in code (`benchmarks/verdict_train.py`), one table for all: four letters
tell a language. Tokens that a broken server puts in meet where no word, of any language, goes on like that, and where
no line of prose or code has such marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from diag.verdict.shape.alphabets import Alphabet, Building, Places, Spelling, code_points
from diag.verdict.shape.ngrams import COST_STEPS, Costs, Table

RARE = 5.0
"""Nats of a character that is rare after those before it: one in 150."""

Matrix = npt.NDArray[np.float64]


class Stretch:
    """A text's costs. at: where in the text each is; inside: which are of a letter after a letter, if it is asked."""

    def __init__(self, costs: Costs, at: Places, inside: npt.NDArray[np.bool_] | None = None) -> None:
        if not len(at):  # nothing but line breaks
            costs, at, inside = np.zeros(1, np.float32), np.zeros(1, np.intp), None if inside is None else _NONE
        self.at = at
        self._sums = np.zeros((3 if inside is None else 5, len(at) + 1))
        rows = self._sums[:, 1:]
        rows[0], rows[1], rows[2] = 1.0, costs, costs > RARE
        if inside is not None:
            rows[3], rows[4] = inside, np.where(inside, costs, 0.0)
        np.cumsum(rows, axis=1, out=rows)

    def between(self, starts: Places, ends: Places) -> tuple[Places, Places]:
        """Characters of the text -> costs [first, last), at least one."""
        first = np.minimum(np.searchsorted(self.at, starts), len(self.at) - 1)
        return first, np.maximum(np.searchsorted(self.at, ends), first + 1)

    def means(self, first: Places, last: Places) -> Matrix:
        """[windows, 2 or 3]: the mean cost, the share of rare ones, and the mean cost inside words."""
        some = self._sums[:, last] - self._sums[:, first]
        found = [some[1] / some[0], some[2] / some[0]]
        if len(some) > 3:
            found.append(some[4] / np.maximum(1.0, some[3]))
        return np.column_stack(found)

    def worst(self, first: Places, last: Places, length: int) -> Matrix:
        """The highest mean of `length` in a row; where there are fewer, what they have of `length`."""
        sums = self._sums[1]
        some = min(length, len(sums) - 1)
        means = (sums[some:] - sums[:-some]) / length
        a = np.minimum(first, len(means) - 1)
        return highest(means, a, np.maximum(last - some + 1, a + 1))


_NONE = np.zeros(1, np.bool_)


def highest(values: Matrix, first: Places, last: Places) -> Matrix:
    """Of values [first, last) of each window, none of which is empty."""
    ended = np.concatenate([values, values[-1:]])  # so that the end of the last window is a place
    found: Matrix = np.maximum.reduceat(ended, np.column_stack([first, last]).ravel(), axis=0)[::2]
    return found


@dataclass(frozen=True)
class Letters:
    spelling: Alphabet
    building: Alphabet
    spelt_table: Table
    built_table: Table

    def spelt(self, text: str) -> Stretch:
        costs, at = _costs(text, self.spelling, self.spelt_table)
        points = code_points(text)[at]
        letter = _IS_LETTER[np.minimum(points, 128)]
        inside = np.zeros(len(at), np.bool_)
        inside[1:] = letter[1:] & letter[:-1]
        return Stretch(costs, at, inside)

    def built(self, text: str) -> Stretch:
        return Stretch(*_costs(text, self.building, self.built_table))


_IS_LETTER = np.array([chr(point).isalpha() for point in range(128)] + [True])
"""What is beyond ASCII is taken for a letter."""


def _costs(text: str, alphabet: Alphabet, table: Table) -> tuple[Costs, Places]:
    """As if a line began with the text."""
    symbols, at = alphabet("\n" + text)
    return table.costs(symbols)[1:], at[1:] - 1


@lru_cache(maxsize=1)
def tables() -> Letters:
    with resources.files(__package__).joinpath("letters.npz").open("rb") as file:
        return read(dict(np.load(file)))


def read(raw: dict[str, npt.NDArray[np.generic]]) -> Letters:
    spelt, built = (
        Table(
            raw[f"{name}.entries"].astype(np.uint32),
            raw[f"{name}.single"].astype(np.float32) / np.float32(COST_STEPS),
            int(raw[f"{name}.longest"]),
        )
        for name in ("spelling", "building")
    )
    return Letters(Spelling(bytes(raw["characters"]).decode()), Building(), spelt, built)
