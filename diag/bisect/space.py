"""What can be set, what follows from it, and what a configuration therefore is.

    Factor      one variable of the server, with a good and a failing level; how a level is put on the command line
    Derived     never set, only computed: from factors, or from what the running server says (`reads`)
    Constraint  what a configuration must satisfy to be tried at all
    Config      factor name -> level, every factor named

A trial's *effective* values are its config, overwritten by what the server reports to be in force, plus every
derived factor that can be computed from that. Evidence is about effective values, not about what was asked.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from diag.bisect.expr import Expression, Value

Config = Mapping[str, Value]
How = Literal["flag", "switch", "switch_off", "env", "trial", "request"]
Apply = Literal["restart", "request"]

CHANGE_MINUTES: dict[Apply, float] = {"restart": 5.0, "request": 0.0}
ASK_MINUTES = 0.5
"""What a trial costs beside its changes: the prompts have to be asked."""


@dataclass(frozen=True)
class Factor:
    """how: flag (`NAME level`), switch (NAME present when true), switch_off (NAME present when false), env, trial
    (nothing of a server's: a trial command reads it from its environment), or request (a parameter of the requests).
    What a switch puts there may be several words, as one would type them.

    levels: every level a trial may use; holds good and bad, which are the same for a factor that only separates
    explanations (a level that neither end uses).

    apply: whether another level takes a new server, or goes with the request. minutes: what a change of it costs,
    where that is known better than CHANGE_MINUTES. sweep: whether a search for the rule behind a number may try values
    that are not among its levels, where both ends are whole numbers.
    """

    name: str
    target: str
    how: How
    good: Value
    bad: Value
    levels: tuple[Value, ...]
    title: str = ""
    apply: Apply = "restart"
    minutes: float | None = None
    sweep: bool = True

    @property
    def sweeps(self) -> bool:
        whole = all(isinstance(end, int) and not isinstance(end, bool) for end in (self.good, self.bad))
        return whole and self.sweep

    @property
    def change_minutes(self) -> float:
        return CHANGE_MINUTES[self.apply] if self.minutes is None else self.minutes

    @property
    def suspect(self) -> bool:
        return not same(self.good, self.bad)

    @property
    def words(self) -> list[str]:
        """Of the command line, a flag's level left out; [] where it is not set there."""
        return shlex.split(self.target) if self.how in ("flag", "switch", "switch_off") else []

    def argv(self, level: Value) -> list[str]:
        """What this level adds to the command line."""
        if self.how == "flag":
            return [*self.words, str(level)]
        return self.words if bool(level) is (self.how == "switch") else []

    def env(self, level: Value) -> dict[str, str]:
        return {self.target: str(int(level)) if isinstance(level, bool) else str(level)} if self.how == "env" else {}


@dataclass(frozen=True)
class Derived:
    """A predicate over effective values, e.g. mismatch: budget + 1 != block_size."""

    name: str
    when: Expression
    title: str = ""

    def holds(self, values: Mapping[str, Value]) -> bool | None:
        """None: cannot be told from these values (a read-back that only a running server gives)."""
        return self.when.tells(values)


@dataclass(frozen=True)
class Constraint:
    """What every configuration that is tried must satisfy, e.g. topk: topk == 1 or tree. Over what is asked for, not
    over what a server reports."""

    name: str
    when: Expression
    title: str = ""

    def allows(self, config: Config) -> bool:
        """Also where it cannot be told: then the server may say."""
        return self.when.tells(config) is not False


@dataclass(frozen=True)
class Space:
    """Raises ValueError, which names the constraint, where the good or the failing end is not a valid configuration."""

    factors: tuple[Factor, ...]
    derived: tuple[Derived, ...] = ()
    reads: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    ask_minutes: float = ASK_MINUTES

    def __post_init__(self) -> None:
        for end, config in (("good", self.good), ("failing", self.bad)):
            if (broken := self.violated(config)) is not None:
                raise ValueError(f"the {end} configuration violates '{broken.name}': {broken.when.text}")

    @cached_property
    def good(self) -> dict[str, Value]:
        """Always the same one, so that trials of it are soon recognised."""
        return {f.name: f.good for f in self.factors}

    @cached_property
    def bad(self) -> dict[str, Value]:
        return {f.name: f.bad for f in self.factors}

    def factor(self, name: str) -> Factor:
        return next(f for f in self.factors if f.name == name)

    def violated(self, config: Config) -> Constraint | None:
        """The first constraint that this configuration does not satisfy."""
        return next((c for c in self.constraints if not c.allows(config)), None)

    def configs(self) -> Iterator[dict[str, Value]]:
        """Every valid combination of levels, in a fixed order."""
        names = [f.name for f in self.factors]
        for levels in itertools.product(*(f.levels for f in self.factors)):
            config = dict(zip(names, levels))
            if self.violated(config) is None:
                yield config

    def restarts(self, config: Config, running: Config | None) -> bool:
        """Whether a trial of `config` takes a new server while `running` is up. The same configuration once more does:
        what is decided at start-up would only be seen again."""
        if running is None or not differences(config, running):
            return True
        return any(f.apply == "restart" for f in self.factors if not same(config[f.name], running[f.name]))

    def minutes(self, config: Config, running: Config | None) -> float:
        """What a trial of `config` costs while `running` is up (None: nothing is)."""
        changed = [f for f in self.factors if running is None or not same(config[f.name], running[f.name])]
        costs = [f.change_minutes for f in changed]
        starts = [f.change_minutes for f in self.factors if f.apply == "restart"]
        again = max(costs) if costs else min(starts, default=CHANGE_MINUTES["restart"])
        return self.ask_minutes + (again if self.restarts(config, running) else sum(costs))

    def effective(self, config: Config, reported: Mapping[str, Value]) -> dict[str, Value]:
        """Asked, overwritten by reported, plus derived."""
        values: dict[str, Value] = {**config, **reported}
        for derived in self.derived:
            holds = derived.holds(values)
            if holds is not None:
                values[derived.name] = holds
        return values

    def argv(self, config: Config) -> list[str]:
        return [word for factor in self.factors for word in factor.argv(config[factor.name])]

    def env(self, config: Config) -> dict[str, str]:
        return {k: v for factor in self.factors for k, v in factor.env(config[factor.name]).items()}


def same(a: Value, b: Value) -> bool:
    """Equal levels; True and 1 are different levels."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def differences(config: Config, base: Config) -> dict[str, Value]:
    """The factors in which config differs from base, with config's levels."""
    return {name: level for name, level in config.items() if not same(level, base[name])}


def describe(config: Config, names: Sequence[str] | None = None) -> str:
    """budget=16 topk=4 cuda_graph=on"""
    return " ".join(f"{name}={level_text(config[name])}" for name in (names or list(config)))


def level_text(level: Value) -> str:
    return {True: "on", False: "off"}[level] if isinstance(level, bool) else str(level)
