"""What could be to blame. Each hypothesis is a predicate over effective values: where it holds, output breaks.

    single     one factor at its failing level
    pair       two of them together (either alone is harmless)
    either     one or the other suffices
    triple     three together
    derived    a predicate the plan names, e.g. budget + 1 != block_size
    relation   one that it does not name: two numbers fit one another at the good end and not at the failing one
    always     every configuration breaks, the good one too: nothing that was varied is to blame
    never      none breaks: what was reported does not happen here

Prior weights are by kind and shared within it; they come from counting public reports (most faults need one
setting or two), and a derived predicate that the user took the trouble to write counts twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from diag.bisect.expr import Value, parse
from diag.bisect.space import Derived, Factor, Space, level_text, same

Kind = Literal["single", "pair", "either", "triple", "derived", "relation", "always", "never"]

WEIGHT: dict[Kind, float] = {
    "single": 0.50,
    "pair": 0.22,
    "either": 0.05,
    "triple": 0.05,
    "derived": 0.2,
    "relation": 0.06,
    "always": 0.02,
    "never": 0.02,
}


@dataclass(frozen=True)
class Hypothesis:
    """members: the factors at their failing level (single, pair, either, triple) or the one predicate (derived,
    relation, whose predicate bears the name of the number it accuses)."""

    kind: Kind
    members: tuple[Factor | Derived, ...] = ()

    @property
    def name(self) -> str:
        match self.kind:
            case "always":
                return "every configuration fails"
            case "never":
                return "no configuration fails"
            case "derived" | "relation":
                member = self.members[0]
                return member.when.text if isinstance(member, Derived) else member.name
            case _:
                word = " or " if self.kind == "either" else " and "
                return word.join(_level(member) for member in self.members)

    @property
    def title(self) -> str:
        """For a person: the plan's own words where it has some."""
        words = [member.title for member in self.members if member.title]
        joined = (" or " if self.kind == "either" else " with ").join(words[:2]) + "".join(
            f" and {w}" for w in words[2:]
        )
        return f"{joined} ({self.name})" if len(words) == len(self.members) > 0 else self.name

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of the settable factors it speaks of."""
        names: list[str] = []
        for member in self.members:
            names += [member.name] if isinstance(member, Factor) else sorted(member.when.names)
        return tuple(names)

    def active(self, values: Mapping[str, Value]) -> bool | None:
        """Whether output should break under these effective values; None where that cannot be told."""
        if self.kind in ("always", "never"):
            return self.kind == "always"
        holds = [_holds(member, values) for member in self.members]
        if self.kind == "either":
            return True if any(holds) else None if None in holds else False
        return False if False in holds else None if None in holds else True


def _level(member: Factor | Derived) -> str:
    return f"{member.name}={level_text(member.bad)}" if isinstance(member, Factor) else member.name


def _holds(member: Factor | Derived, values: Mapping[str, Value]) -> bool | None:
    if isinstance(member, Derived):
        return member.holds(values)
    return same(values[member.name], member.bad) if member.name in values else None


def enumerate_all(space: Space) -> list[tuple[Hypothesis, float]]:
    """Every hypothesis of the space with its prior weight; weights sum to 1."""
    grouped: dict[Kind, list[Hypothesis]] = {}
    for hypothesis in _all(space):
        grouped.setdefault(hypothesis.kind, []).append(hypothesis)
    weighted = [(h, WEIGHT[kind] / len(group)) for kind, group in grouped.items() for h in group]
    total = sum(weight for _, weight in weighted)
    return [(h, weight / total) for h, weight in weighted]


def _all(space: Space) -> Iterator[Hypothesis]:
    suspects = [factor for factor in space.factors if factor.suspect]
    for factor in suspects:
        yield Hypothesis("single", (factor,))
    for pair in itertools.combinations(suspects, 2):
        yield Hypothesis("pair", pair)
        yield Hypothesis("either", pair)
    for triple in itertools.combinations(suspects, 3):
        yield Hypothesis("triple", triple)
    for derived in space.derived:
        yield Hypothesis("derived", (derived,))
    for relation in _relations(space):
        yield Hypothesis("relation", (relation,))
    yield Hypothesis("always")
    yield Hypothesis("never")


def _relations(space: Space) -> Iterator[Derived]:
    """`a + 1 == b` at the good end, not at the failing one: too neat for chance where the plan lists a level at which
    the two fit again. (Where it lists none, nothing here tells it from `a`; see diag.bisect.refine.)"""
    known = {derived.when.text for derived in space.derived}
    numbers = [f for f in space.factors if _whole(f.good) and _whole(f.bad)]
    for a, b in itertools.permutations(numbers, 2):
        for text, shift in ((a.name, 0), (f"{a.name} + 1", 1), (f"{a.name} - 1", -1)):
            if abs(int(a.bad) - int(a.good)) < 2 or int(a.good) + shift != int(b.good):
                continue
            fits = int(a.bad) + shift == int(b.bad)
            again = any(_whole(level) and int(level) == int(a.bad) + shift for level in b.levels)
            if not fits and again and f"{text} != {b.name}" not in known:
                yield Derived(a.name, parse(f"{text} != {b.name}"), a.title)


def _whole(level: Value) -> bool:
    return isinstance(level, int) and not isinstance(level, bool)
