"""The usual suspects of an engine: which settings of a start line to put under suspicion, as a plan. Pure.

    found = suspects("vllm", "0.11.0", ["vllm", "serve", "/models/m", "--kv-cache-dtype", "fp8", "--port", "8000"])
    Path("mine.yaml").write_text(plan_text(found))

The failing end is the line as it is. The good end has every suspect switched off, or at the level that public reports
blame least; whether that one works is what a bisection tries first. What is suspected, and its spelling in each
version, stands in `engines/*.toml`.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, model_validator

from diag.errors import UsageError

HIDDEN = "***"
"""What stands for a secret in a command line that a host tells."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_OLDEST = Version("0.2")  # below it a version is no release, but what a build without tags calls itself

Level = bool | int | float | str


class Spelling(BaseModel):
    """One suspect in the versions from `since` to before `before`; the fields are told in engines/sglang.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    since: str | None = None
    before: str | None = None
    off: str | None = None
    given: tuple[str, ...] = ()
    flag: str | None = None
    good: Level | None = None
    unless: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_shape(self) -> Spelling:
        if (self.off is not None) + bool(self.given) + (self.flag is not None) != 1:
            raise ValueError(f"{self.name}: exactly one of off, given, flag")
        if (self.flag is None) != (self.good is None):
            raise ValueError(f"{self.name}: flag and good go together")
        return self

    def holds(self, version: Version | None) -> bool:
        """Of an unknown version, the newest spelling."""
        if version is None:
            return self.before is None
        after = self.since is None or version >= Version(self.since)
        return after and (self.before is None or version < Version(self.before))

    @property
    def flags(self) -> tuple[str, ...]:
        """What the engine's parser has to know: flags, `*` at the end for any that begin so."""
        return self.given or ((self.off or self.flag or "").split()[0].split("=")[0],)


class Table(BaseModel):
    """Of one engine. module: what `python -m` is given to start it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    module: str
    suspect: tuple[Spelling, ...]


@dataclass(frozen=True)
class Factor:
    """One suspect as a factor of a plan. how: the field of the plan that holds `words`; bad: as the line has it."""

    name: str
    title: str
    how: Literal["switch", "switch_off", "flag"]
    words: str
    good: Level
    bad: Level


@dataclass(frozen=True)
class Suspects:
    """command: the line without what the factors put on it; `{port}` is in it. left_out: (suspect, why not)."""

    engine: str
    version: str | None
    command: tuple[str, ...]
    factors: tuple[Factor, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Option:
    """A flag of the line and the words that follow it, or one word `--flag=value`."""

    words: tuple[str, ...]

    @property
    def flag(self) -> str:
        return _plain(self.words[0])

    @property
    def value(self) -> str | None:
        _, equals, value = self.words[0].partition("=")
        return value if equals else self.words[1] if len(self.words) > 1 else None


def engines() -> list[str]:
    """Those that there is a table for."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


@lru_cache
def table(engine: str) -> Table:
    """Raises UsageError for an engine without one."""
    path = _folder() / f"{engine}.toml"
    if engine not in engines():
        raise UsageError(
            f"Nothing is known of the engine '{engine}'.", next=f"Known ones: {', '.join(engines())} (docs/engines.md)."
        )
    return Table.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def spellings(engine: str, version: str | None) -> list[Spelling]:
    """Those of one version, in the order of suspicion; of the newest one where it is not known."""
    return [spelling for spelling in table(engine).suspect if spelling.holds(_version(version))]


def suspects(engine: str, version: str | None, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Suspects:
    """argv: the start line of the server that garbles, secrets hidden or not; env: what else it was started with.

    Raises UsageError for an engine that is not known, and where the line gives nothing to suspect.
    """
    head, options = _split(argv)
    factors: list[Factor] = []
    left_out: list[tuple[str, str]] = []
    for spelling in spellings(engine, version):
        made = _factor(spelling, options)
        if isinstance(made, Factor):
            factors.append(made)
            options = _without(options, spelling)
        else:
            left_out.append((spelling.name, made))
    if not factors:
        raise UsageError(
            f"Nothing in the start line is a usual suspect: {shlex.join(argv)}",
            next="Write a plan with what you changed last (docs/bisect.md).",
        )
    told = {name: value for name, value in (env or {}).items() if HIDDEN not in value}
    return Suspects(engine, version, _command(head, options), tuple(factors), tuple(left_out), told)


def plan_text(found: Suspects, name: str = "suspects") -> str:
    """A plan (docs/bisect.md) with comments for the person who reads it first."""
    of = f"{found.engine} {found.version or 'of unknown version'}"
    return "\n".join(
        [
            f"# The usual suspects of {of}, from a start line. Read it before you run it:",
            "# the good end switches all of them off; take out what must stay on, and what does not start here.",
            "schema: 1",
            "kind: bisect",
            f"name: {_yaml(name)}",
            f"title: {_yaml(f'which setting of this {found.engine} server garbles?')}",
            f"engine: {found.engine}",
            "command:",
            *(f"  - {_yaml(word)}" for word in found.command),
            *_env(found.env),
            "prompts: garble",
            "",
            "factors:",
            *(line for factor in found.factors for line in _lines(factor)),
            *(f"# not suspected: {left}, {why}" for left, why in found.left_out),
            "",
        ]
    )


def _folder() -> Path:
    return Path(__file__).with_name("engines")


def _version(said: str | None) -> Version | None:
    try:
        version = Version(said) if said else None
    except InvalidVersion:
        return None
    return version if version is not None and version >= _OLDEST else None


def _split(argv: Sequence[str]) -> tuple[list[str], list[_Option]]:
    """(what comes before the engine's own flags, those flags)"""
    start = next((at + 1 for at, word in enumerate(argv) if _starts(word)), 1)
    while start < len(argv) and not argv[start].startswith("-"):
        start += 1  # the model, where it has no flag
    options: list[list[str]] = []
    for word in argv[start:]:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            options.append([word])
        elif options:
            options[-1].append(word)
    return list(argv[:start]), [_Option(tuple(words)) for words in options]


def _starts(word: str) -> bool:
    return word == "serve" or word.endswith(".launch_server") or ".entrypoints." in word or word.endswith(".py")


def _plain(word: str) -> str:
    """Both engines take `_` for `-` in a flag's name."""
    name = word.partition("=")[0]
    return name[:2] + name[2:].replace("_", "-")


def _is(option: _Option, flags: Sequence[str]) -> bool:
    """`--compilation-config.mode` is one of `--compilation-config`."""
    return any(
        option.flag.startswith(flag[:-1]) if flag.endswith("*") else option.flag.split(".")[0] == flag for flag in flags
    )


def _factor(spelling: Spelling, options: Sequence[_Option]) -> Factor | str:
    """The factor, or why it is none."""
    decided = [option for option in options if _is(option, spelling.unless)]
    if decided:
        return f"the line sets {decided[0].flag}"
    if spelling.needs and not any(_is(o, spelling.needs) and _above_one(o.value) for o in options):
        return f"{spelling.needs[0]} is not above 1"
    mine = [option for option in options if _is(option, spelling.flags)]
    if spelling.off is not None:
        if mine:
            return f"the line has {mine[0].flag}"
        return Factor(spelling.name, spelling.title, "switch_off", spelling.off, False, True)
    if spelling.flag is not None and spelling.good is not None:
        return _level(spelling, spelling.flag, spelling.good, mine)
    if not mine:
        return f"the line has no {spelling.given[0]}"
    words = shlex.join(word for option in mine for word in option.words)
    return Factor(spelling.name, spelling.title, "switch", words, False, True)


def _level(spelling: Spelling, flag: str, good: Level, mine: Sequence[_Option]) -> Factor | str:
    """Where the line has no level, the failing end is the engine's own choice: without the flag."""
    said = mine[-1].value if mine else None
    if said is None:
        return Factor(spelling.name, spelling.title, "switch", f"{flag} {good}", True, False)
    bad = _typed(said)
    if bad == good:
        return f"it is {good}"
    return Factor(spelling.name, spelling.title, "flag", flag, good, bad)


def _typed(value: str) -> Level:
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def _above_one(value: str | None) -> bool:
    return value is not None and value.isdecimal() and int(value) > 1


def _without(options: Sequence[_Option], spelling: Spelling) -> list[_Option]:
    return [option for option in options if not _is(option, spelling.flags)]


def _command(head: Sequence[str], options: Sequence[_Option]) -> tuple[str, ...]:
    """For a server that only diag asks, on the host's own loopback: no key, and a port of its own."""
    kept = [option for option in options if option.flag not in ("--port", "--host", "--api-key")]
    words = [word for option in kept for word in _shown(option)]
    return (*head, *words, "--host", "127.0.0.1", "--port", "{port}")


def _shown(option: _Option) -> Iterator[str]:
    """A hidden secret becomes a placeholder, which --set fills."""
    wanted = "{" + option.flag.lstrip("-").replace("-", "_") + "}"
    for word in option.words:
        yield word.replace(HIDDEN, wanted)


def _env(env: Mapping[str, str]) -> list[str]:
    return ["env:", *(f"  {name}: {_yaml(value)}" for name, value in sorted(env.items()))] if env else []


def _lines(factor: Factor) -> list[str]:
    return [
        f"  {factor.name}:",
        f"    title: {_yaml(factor.title)}",
        f"    {factor.how}: {_yaml(factor.words)}",
        f"    good: {_yaml(factor.good)}",
        f"    bad: {_yaml(factor.bad)}",
    ]


def _yaml(value: Level) -> str:
    """A plain word needs no quotes; in them every character that is not plainly one is escaped."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][\w./-]*", value) and value.lower() not in _YAML_WORDS:
        return value
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value) + '"'
    return json.dumps(value)


_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null")
