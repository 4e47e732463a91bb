"""Places in an order: released versions one after the other, or commits with merges among them.

The question is which place is the first bad one: it breaks there and wherever that place is contained. A place that
is one build with another (nothing that matters differs) is the same trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from diag.bisect.engine.rows import Bools, Floats
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Factor, Space, level_text

Name = Literal["version", "commit"]

Value = bool | int | float | str
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Place:
    """One version or commit.

    id:      what a trial is asked for: "0.5.11", or a whole commit id
    parents: indices of the places right before it, the first parent first; for one outside the range, which the good
             end contains, stands the good end
    build:   equal ones are one build; "" where that is not known
    title:   for a person: subject and author date of a commit
    """

    id: str
    parents: tuple[int, ...] = ()
    build: str = ""
    title: str = ""


@dataclass(frozen=True)
class FirstBad(Hypothesis):
    """That it broke at this place. at: ids of the places that contain it. rule: as a predicate, where there is one."""

    at: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    rule: str | None = None

    @property
    def name(self) -> str:
        member = self.members[0]
        return f"{member.name} {level_text(member.bad)}" if isinstance(member, Factor) else member.name

    @property
    def predicate(self) -> str | None:
        return self.rule

    def active(self, values: Mapping[str, Value]) -> bool | None:
        told = values.get(self.members[0].name)
        return None if told is None else str(told) in self.at


@dataclass(frozen=True)
class Axis:
    """places: every one after those before it. The first `bases` of them are held to be good and under no suspicion:
    the good end, then merge bases of the two ends where the good one is no ancestor of the bad one. The last is the
    bad end.

    declared: "one build" is what the user says of some paths, not an equality of everything there is.
    """

    name: Name
    places: tuple[Place, ...]
    bases: int = 1
    declared: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.bases < len(self.places):
            raise ValueError("an axis has a good end, and a bad one after it")
        if any(parent >= at for at, place in enumerate(self.places) for parent in place.parents):
            raise ValueError("a place comes after its parents")

    @property
    def bad(self) -> int:
        return len(self.places) - 1

    @cached_property
    def index(self) -> dict[str, int]:
        return {place.id: at for at, place in enumerate(self.places)}

    @cached_property
    def contains(self) -> Bools:
        """(places, places): [c, h] is true where h is c or comes before it."""
        count = len(self.places)
        found = np.eye(count, dtype=bool)
        for at, place in enumerate(self.places):
            for parent in place.parents:
                found[at] |= found[parent]
        return found

    @cached_property
    def mainline(self) -> Bools:
        """(places,): the bad end, its first parent, the first parent of that and so on; and the bases."""
        found = np.zeros(len(self.places), dtype=bool)
        found[: self.bases] = True
        at = self.bad
        while at >= self.bases:
            found[at] = True
            parents = self.places[at].parents
            at = parents[0] if parents else 0
        return found

    @cached_property
    def brought_in_by(self) -> Indices:
        """(places,): the first place of the mainline that contains each: the merge which brought it in, or itself."""
        line = np.flatnonzero(self.mainline)
        line = line[line >= self.bases]
        found: Indices = line[self.contains[line].argmax(axis=0)]
        found[: self.bases] = np.arange(self.bases)
        return found

    @cached_property
    def builds(self) -> dict[str, list[int]]:
        """Build -> its places, the first one first."""
        found: dict[str, list[int]] = {}
        for at, place in enumerate(self.places):
            if place.build:
                found.setdefault(place.build, []).append(at)
        return found

    @cached_property
    def first_of_build(self) -> list[int]:
        return [self.builds[place.build][0] if place.build else at for at, place in enumerate(self.places)]

    @cached_property
    def unchanged(self) -> Bools:
        """(places,): one build with every parent of its own: nothing that matters was changed there."""
        builds = [place.build for place in self.places]
        return np.array(
            [
                bool(place.build and place.parents) and all(builds[parent] == place.build for parent in place.parents)
                for place in self.places
            ]
        )

    @cached_property
    def suspects(self) -> Floats:
        """(places,) 1 for those under suspicion, 0 for the bases."""
        prior = np.ones(len(self.places))
        prior[: self.bases] = 0.0
        return prior

    @cached_property
    def space(self) -> Space:
        """One factor, whose levels are the places: what reports and journals are written in."""
        ids = tuple(place.id for place in self.places)
        return Space((Factor(self.name, self.name, "trial", ids[0], ids[-1], ids),))

    def config(self, at: int) -> dict[str, Value]:
        return {self.name: self.places[at].id}

    def first_bad(self, at: int) -> FirstBad:
        place = self.places[at]
        rule = f"version >= {place.id}" if self.name == "version" else None
        factor = Factor(self.name, self.name, "trial", self.places[0].id, place.id, (), place.title)
        ids = (self.places[c].id for c in np.flatnonzero(self.contains[:, at]))
        return FirstBad("single", (factor,), frozenset(ids), rule)

    def called(self, at: int) -> str:
        """For a person: the version, or the commit's short id."""
        identifier = self.places[at].id
        return identifier if self.name == "version" else identifier[:12]


def row(name: Name, ids: Iterable[str]) -> Axis:
    """Places one after the other: released versions."""
    return Axis(name, tuple(Place(one, (at - 1,) if at else ()) for at, one in enumerate(ids)))
