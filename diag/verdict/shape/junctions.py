"""What stands next to what: letters, digits, blanks and marks as a sequence of few symbols, whatever the language.

People's texts, code and data use few of the possible neighbourhoods. A token that a broken server puts in shows where
it meets the next: `;;’_`, `land_- wis`, `20_201.1`. Costs are -ln of how often a symbol follows the two before it in
the tuning half of the corpus (`benchmarks/verdict_train.py`), smoothed; the table is in junctions.json.
"""

from __future__ import annotations

import json
import math
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import regex

HIGHEST_COST = 9.0
"""Nats; what was never seen costs this at most."""

SMOOTHING = 4.0
START = "^"

_RUNS = regex.compile(
    r"(?P<upper>\p{Lu}[\p{Lu}\p{M}]*)|(?P<lower>\p{Ll}[\p{Ll}\p{M}]*)|(?P<letter>[\p{L}\p{M}]+)|(?P<digit>\p{N}+)"
    r"|(?P<mark>([^\p{L}\p{M}\p{N}])\6*)",
    regex.DOTALL,
)
_ASCII = frozenset(string.punctuation)
_CATEGORY = {"P": "p", "S": "y", "Z": "w", "C": "c"}


def of_piece(piece: str) -> tuple[str, ...]:
    """Symbols of a piece without blanks: a run of letters of one case, of digits, or of one mark is one symbol."""
    return tuple(_symbol(match) for match in _RUNS.finditer(piece))


def of_gap(gap: str) -> str:
    """The symbol of what stands between two pieces on a line."""
    return "_" if gap == " " else "t" if "\t" in gap else "w" if not gap.isascii() else "__"


def _symbol(match: regex.Match[str]) -> str:
    kind: str = match.lastgroup
    run: str = match.group()
    if kind != "mark":
        return {"lower": "a", "letter": "z", "digit": "0"}.get(kind) or ("A" if len(run) > 1 else "B")
    mark = run[0]
    if mark in _ASCII or mark in "–—…•·":
        base = mark
    elif mark in "“”„«»‘’‚‹›":
        base = "q"
    else:
        base = "R" if mark == "\ufffd" else _CATEGORY.get(unicodedata.category(mark)[0], "o")
    return base + ("" if len(run) == 1 else "2" if len(run) == 2 else "3")


RARE, VERY_RARE = 4.0, 6.0
"""Nats of a neighbourhood: one in 55, one in 400."""

MOST_WALKS = 1 << 17
"""Walks that are remembered; hostile text has no end of new ones."""


@dataclass(frozen=True)
class Walk:
    """What a sequence costs after two symbols, how many of its steps cost more than RARE and VERY_RARE, and the two
    symbols that it ends with."""

    nats: float
    rare: int
    very_rare: int
    end: tuple[str, str]


class Costs:
    """cost(a, b, c): nats of the symbol c after a and b."""

    def __init__(self, triples: Mapping[tuple[str, str, str], int]) -> None:
        self._triples = triples
        self._first: Counter[tuple[str, str]] = Counter()
        self._last: Counter[tuple[str, str]] = Counter()
        self._middle: Counter[str] = Counter()
        self._one: Counter[str] = Counter()
        for (a, b, c), count in triples.items():
            self._first[a, b] += count
            self._last[b, c] += count
            self._middle[b] += count
            self._one[c] += count
        self._all = sum(triples.values())
        self._known: dict[tuple[str, str, str], float] = {}
        self._walks: dict[tuple[tuple[str, str], tuple[str, ...]], Walk] = {}

    def walk(self, after: tuple[str, str], sequence: tuple[str, ...]) -> Walk:
        key = after, sequence
        found = self._walks.get(key)
        if found is None:
            a, b = after
            steps = []
            for c in sequence:
                steps.append(self.cost(a, b, c))
                a, b = b, c
            rare, very = sum(nats > RARE for nats in steps), sum(nats > VERY_RARE for nats in steps)
            found = Walk(sum(steps), rare, very, (a, b))
            if len(self._walks) >= MOST_WALKS:
                self._walks.clear()
            self._walks[key] = found
        return found

    def cost(self, a: str, b: str, c: str) -> float:
        key = (a, b, c)
        if key not in self._known:
            one = (self._one[c] + 0.5) / (self._all + 40)
            two = (self._last[b, c] + SMOOTHING * one) / (self._middle[b] + SMOOTHING)
            three = (self._triples.get(key, 0) + SMOOTHING * two) / (self._first[a, b] + SMOOTHING)
            self._known[key] = min(HIGHEST_COST, -math.log(three))
        return self._known[key]


@lru_cache(maxsize=1)
def costs() -> Costs:
    return read("junctions.json")


def read(name: str) -> Costs:
    """A table that lies beside this module."""
    raw = json.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
    triples = {}
    for pair, followers in raw["after"].items():
        first, second = pair.split(" ")
        for third, count in followers.items():
            triples[first, second, third] = count
    return Costs(triples)


def count(sequences: Iterable[Iterable[str]]) -> Counter[tuple[str, str, str]]:
    """Triples of symbols in many texts."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for sequence in sequences:
        a = b = START
        for c in sequence:
            counted[a, b, c] += 1
            a, b = b, c
    return counted
