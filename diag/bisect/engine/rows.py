"""Hypotheses as rows. Kleene's logic, vectorised: FALSE 0, UNKNOWN 1, TRUE 2; AND is min, OR is max, XOR below.

A *member* is a column of facts about configurations ("factor f stands at its failing level", "budget + 1 !=
block_size holds"). A *row* is built from members by one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.bisect.expr import Expression, Value
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Derived, Factor, same

FALSE, UNKNOWN, TRUE = 0, 1, 2

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]


def member_column(member: Factor | Derived, values: Sequence[Mapping[str, Value]]) -> Codes:
    """(configurations,) FALSE, UNKNOWN or TRUE."""
    if isinstance(member, Factor):
        return np.array(
            [UNKNOWN if member.name not in v else TRUE if same(v[member.name], member.bad) else FALSE for v in values],
            dtype=np.int8,
        )
    told = [member.holds(v) for v in values]
    return np.array([UNKNOWN if t is None else TRUE if t else FALSE for t in told], dtype=np.int8)


@dataclass(frozen=True)
class Table:
    """Rows over members. and_, or_: (rows, width) member indices, short rows padded by repeating one of their own,
    which changes neither min nor max; kind of each row as a position in the order given."""

    members: tuple[Factor | Derived, ...]
    conjunctions: tuple[Ints, Ints]  # positions of rows, members of each (n, width)
    disjunctions: tuple[Ints, Ints]
    constants: tuple[Ints, Codes]
    size: int

    def active(self, columns: Codes) -> Codes:
        """columns (configurations, members) -> (configurations, rows), FALSE, UNKNOWN or TRUE."""
        out = np.empty((len(columns), self.size), dtype=np.int8)
        for (where, which), fold in ((self.conjunctions, np.minimum), (self.disjunctions, np.maximum)):
            if len(where):
                rows = columns[:, which[:, 0]]
                for slot in range(1, which.shape[1]):
                    rows = fold(rows, columns[:, which[:, slot]])
                out[:, where] = rows
        where, value = self.constants
        out[:, where] = value
        return out

    def columns(self, values: Sequence[Mapping[str, Value]]) -> Codes:
        if not self.members:
            return np.zeros((len(values), 0), dtype=np.int8)
        return np.stack([member_column(m, values) for m in self.members], axis=1)


def table(hypotheses: Sequence[Hypothesis]) -> Table:
    members = list(dict.fromkeys(m for h in hypotheses for m in h.members))
    index = {m: i for i, m in enumerate(members)}
    ands: list[tuple[int, list[int]]] = []
    ors: list[tuple[int, list[int]]] = []
    constants: list[tuple[int, int]] = []
    for i, h in enumerate(hypotheses):
        own = [index[m] for m in h.members]
        if h.kind in ("always", "never"):
            constants.append((i, TRUE if h.kind == "always" else FALSE))
        else:
            (ors if h.kind == "either" else ands).append((i, own))
    return Table(
        tuple(members),
        _packed(ands),
        _packed(ors),
        (
            np.array([i for i, _ in constants], dtype=np.intp),
            np.array([v for _, v in constants], dtype=np.int8),
        ),
        len(hypotheses),
    )


def _packed(rows: list[tuple[int, list[int]]]) -> tuple[Ints, Ints]:
    width = max((len(own) for _, own in rows), default=1)
    padded = [own + [own[0]] * (width - len(own)) for _, own in rows]
    return (
        np.array([i for i, _ in rows], dtype=np.intp),
        np.array(padded, dtype=np.intp).reshape(len(rows), width),
    )


@dataclass(frozen=True)
class Candidates:
    """Configurations that can be tried, as level codes (configurations, factors) into each factor's levels."""

    factors: tuple[Factor, ...]
    codes: Codes

    def config(self, i: int) -> dict[str, Value]:
        return {f.name: f.levels[c] for f, c in zip(self.factors, self.codes[i])}

    def columns(self, members: Sequence[Factor | Derived], fixed: Mapping[str, Value]) -> Codes:
        """(configurations, members). fixed: values that the server reports whatever is asked."""
        return np.stack([self._column(m, fixed) for m in members], axis=1) if members else self.codes[:, :0]

    def _column(self, member: Factor | Derived, fixed: Mapping[str, Value]) -> Codes:
        names = frozenset({member.name}) if isinstance(member, Factor) else member.when.names
        return self._spread(names, fixed, lambda values: member_column(member, values))

    def told(self, expression: Expression) -> Codes:
        """(configurations,): whether the expression holds of what is asked for."""
        word = {None: UNKNOWN, True: TRUE, False: FALSE}
        return self._spread(
            expression.names, {}, lambda values: np.array([word[expression.tells(v)] for v in values], dtype=np.int8)
        )

    def _spread(
        self, names: frozenset[str], fixed: Mapping[str, Value], tell: Callable[[list[dict[str, Value]]], Codes]
    ) -> Codes:
        """What depends on few factors is computed once for each combination of their levels."""
        free = [j for j, f in enumerate(self.factors) if f.name in names and f.name not in fixed]
        radix = [len(self.factors[j].levels) for j in free]
        key = np.zeros(len(self.codes), dtype=np.intp)
        for j, base in zip(free, radix):
            key = key * base + self.codes[:, j]
        distinct, back = np.unique(key, return_inverse=True)
        values = []
        for number in distinct:
            named: dict[str, Value] = dict(fixed)
            rest = int(number)
            for j, base in zip(reversed(free), reversed(radix)):
                rest, code = divmod(rest, base)
                named[self.factors[j].name] = self.factors[j].levels[code]
            values.append(named)
        column: Codes = tell(values)[back]
        return column

    def nearest_first(self, config: Mapping[str, Value]) -> npt.NDArray[np.int64]:
        """In how many factors each differs from config."""
        wanted = codes_of(self.factors, config)
        distance: npt.NDArray[np.int64] = (self.codes != wanted).sum(axis=1)
        return distance

    def position(self, config: Mapping[str, Value]) -> int | None:
        found = np.flatnonzero(self.nearest_first(config) == 0)
        return int(found[0]) if len(found) else None


def codes_of(factors: Sequence[Factor], config: Mapping[str, Value]) -> Codes:
    """Level codes of one configuration; a level that the factor does not list is -1."""
    return np.array(
        [next((i for i, v in enumerate(f.levels) if same(v, config[f.name])), -1) for f in factors],
        dtype=np.int8,
    )


def everything(factors: Sequence[Factor]) -> Candidates:
    """Every combination of levels, in the order of Space.configs."""
    shape = [len(f.levels) for f in factors]
    grid = np.indices(shape, dtype=np.int8).reshape(len(shape), -1).T
    return Candidates(tuple(factors), np.ascontiguousarray(grid))


def pool(factors: Sequence[Factor], near: Sequence[Codes], count: int, random: np.random.Generator) -> Candidates:
    """For spaces too large to enumerate: `count` random configurations, those given, and all their neighbours."""
    shape = np.array([len(f.levels) for f in factors])
    drawn = [random.integers(0, shape, size=(count, len(shape))).astype(np.int8)]
    for code in near:
        around = [code]
        for j, levels in enumerate(shape):
            for level in range(levels):
                if level != code[j]:
                    moved = code.copy()
                    moved[j] = level
                    around.append(moved)
        drawn.append(np.array(around, dtype=np.int8))
    return Candidates(tuple(factors), np.unique(np.concatenate(drawn), axis=0))
