"""The plan: a YAML file that says how the server is started, what varies, and what is asked of it.

Format and an example: docs/bisect.md, playbooks/plans/ddtree-garble.yaml.
"""

from __future__ import annotations

import difflib
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr

from diag import bundle, yamlfile
from diag.bisect.expr import Expression, ExpressionError, Value, parse
from diag.bisect.space import ASK_MINUTES, Apply, Constraint, Derived, Factor, How, Space, describe, same
from diag.errors import UsageError
from diag.serving.engine import Engine, Name, engine_of, read_path
from diag.verdict import prompts

# No .nan, which is not even the same level as itself; no integer of thousands of digits, which cannot be written.
_Integer = Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)]
_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Level = StrictBool | _Integer | _Float | StrictStr
_NAME = r"^[a-z][a-z0-9_]*$"
_TARGETS: dict[str, How] = {
    "flag": "flag",
    "switch": "switch",
    "switch_off": "switch_off",
    "env": "env",
    "request": "request",
}
MAX_FACTORS = 24

CONCURRENCY = "concurrency"
"""Not a sampling parameter: how many requests are under way at once."""


def _words(value: object) -> object:
    """A command may be written as one line, as one would type it."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FactorSpec(_Strict):
    """Exactly one of flag, switch, switch_off, env, request says how a level reaches the server (none, where a command
    is the trial: it finds every level in its environment).

    flag: `--flag LEVEL`. switch: `--switch` where the level is true. switch_off: `--switch_off` where it is false
    (`--disable-cuda-graph` for a factor called cuda_graph); both may be several words, as one would type them. env: a
    variable of the server's environment. request: a sampling parameter of every request, or `concurrency`; another
    level of it takes no new server.
    reads: where /server_info reports it, if not under the flag's own name. minutes: what another level costs.
    sweep: whether numbers between and beyond its levels may be tried to find the rule behind an accused one.
    """

    title: str = ""
    flag: str | None = Field(default=None, pattern=r"^--?[A-Za-z]")
    switch: str | None = Field(default=None, pattern=r"^--?[A-Za-z]")
    switch_off: str | None = Field(default=None, pattern=r"^--?[A-Za-z]")
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    request: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    good: Level
    bad: Level
    levels: tuple[Level, ...] = Field(default=(), max_length=64)
    reads: str | None = None
    minutes: float | None = Field(default=None, ge=0, le=1440)
    sweep: bool = True


class DerivedSpec(_Strict):
    """when: an expression over factors and `reads`, e.g. `budget + 1 != block_size`."""

    title: str = ""
    when: str


class PlanFile(_Strict):
    """One plan. `command` starts the server of a trial; with `trial`, a command of the user's is the trial instead, and
    factors need no target. `reads`: name -> dotted path in /server_info, for derived factors that only a running
    server shows. `constraints`: expressions over factors that every configuration must satisfy to be tried.
    `start_minutes`, `request_minutes`: what a server's start costs, and asking it."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["bisect"] = "bisect"
    name: str = ""
    title: str = ""
    engine: Name = "sglang"
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    trial: str | None = Field(default=None, min_length=1)
    trial_timeout_s: float = Field(default=1800, gt=0, le=86400)
    env: dict[str, str] = Field(default_factory=dict)
    ready_timeout_s: float = Field(default=600, gt=0, le=7200)
    prompts: str = "garble"
    max_new_tokens: int | None = Field(default=None, ge=1, le=4096)
    max_trials: int = Field(default=32, ge=2, le=1000)
    start_minutes: float | None = Field(default=None, gt=0, le=1440)
    request_minutes: float | None = Field(default=None, gt=0, le=1440)
    fault: str | None = None
    factors: dict[Annotated[str, Field(pattern=_NAME)], FactorSpec] = Field(min_length=1, max_length=MAX_FACTORS)
    constraints: tuple[str, ...] = Field(default=(), max_length=100)
    derived: dict[Annotated[str, Field(pattern=_NAME)], DerivedSpec] = Field(default_factory=dict)
    reads: dict[Annotated[str, Field(pattern=_NAME)], str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A checked plan. `text`: the file as it was, for the journal."""

    path: Path
    text: str
    spec: PlanFile
    space: Space
    suite: prompts.Suite
    trial: str | None = None

    @property
    def name(self) -> str:
        return self.spec.name or self.path.stem

    @property
    def max_new_tokens(self) -> int:
        return self.spec.max_new_tokens or self.suite.max_new_tokens

    def argv(self, config: Mapping[str, Value], fills: Mapping[str, str]) -> list[str]:
        """The whole command line; `{port}` stays for the host to fill in."""
        return [*(_fill(word, fills) for word in self.spec.command), *self.space.argv(config)]

    def placeholders(self) -> set[str]:
        """Names that the command wants filled in, port excepted."""
        wanted = {name for word in self.spec.command for name in _placeholders(word)}
        return wanted - {"port"}

    @property
    def engine(self) -> Engine:
        return engine_of(self.spec.engine)

    def reported(self, info: Mapping[str, object]) -> dict[str, Value]:
        """Factor levels and read-backs as the running server tells them."""
        values: dict[str, Value] = {}
        for factor in self.space.factors:
            path = self.spec.factors[factor.name].reads
            if path is None and factor.words:
                path = self.engine.field_of_flag(factor.words[0].split("=")[0])
            value = read_path(info, path) if path is not None else None
            if value is not None:
                values[factor.name] = _level_of(factor, value)
        for name, path in self.spec.reads.items():
            value = read_path(info, path)
            if isinstance(value, bool | int | float | str):
                values[name] = value
        return values


def load(name: str, trial_cmd: str | None = None) -> Plan:
    """A plan by its shipped name or by path. Raises UsageError, or PlanError with every problem of the file.

    trial_cmd: a command that is the trial, in place of the plan's own `trial`, or of a server.
    """
    path = _locate(name)
    document = yamlfile.read(path)
    spec = yamlfile.validate(document, PlanFile)
    trial = trial_cmd or spec.trial
    problems = list(_problems(document, spec, served=trial is None))
    if problems:
        raise yamlfile.problems_in(path, problems)
    suite = prompts.load(spec.prompts, beside=path.parent)
    return Plan(path, path.read_text(encoding="utf-8"), spec, _space(spec), suite, trial)


def _locate(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name).expanduser()
    folder = bundle.folder("playbooks") / "plans"
    shipped = folder / f"{name}.yaml"
    if shipped.is_file():
        return shipped
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"There is no plan '{name}'.",
        next=f"Did you mean '{near[0]}'?" if near else f"Shipped plans: {', '.join(known)}; or give a file's path.",
    )


def _space(spec: PlanFile) -> Space:
    factors = tuple(_factor(name, factor, spec.start_minutes) for name, factor in spec.factors.items())
    derived = tuple(Derived(name, parse(d.when), d.title) for name, d in spec.derived.items())
    constraints = tuple(Constraint(text, parse(text)) for text in spec.constraints)
    asking = ASK_MINUTES if spec.request_minutes is None else spec.request_minutes
    return Space(factors, derived, spec.reads, constraints, asking)


def _factor(name: str, spec: FactorSpec, start_minutes: float | None) -> Factor:
    key, target = next(((key, t) for key in _TARGETS if (t := getattr(spec, key)) is not None), ("trial", name))
    how = _TARGETS.get(key, "trial")
    apply: Apply = "request" if how == "request" else "restart"
    minutes = start_minutes if spec.minutes is None and apply == "restart" else spec.minutes
    return Factor(name, target, how, spec.good, spec.bad, _levels(spec), spec.title, apply, minutes, spec.sweep)


def _levels(spec: FactorSpec) -> tuple[Value, ...]:
    levels: list[Value] = []
    for level in (spec.good, spec.bad, *spec.levels):
        if not any(same(level, known) for known in levels):
            levels.append(level)
    return tuple(levels)


def _problems(document: yamlfile.Document, spec: PlanFile, *, served: bool) -> Iterator[str]:
    """What the schema alone cannot see, each with its place. served: a trial is a server, not a command."""
    for name, factor in spec.factors.items():
        where = ("factors", name)
        given = [key for key in _TARGETS if getattr(factor, key) is not None]
        if len(given) > 1 or (served and not given):
            yield f"{document.at(where)}: factor '{name}' needs exactly one of {', '.join(_TARGETS)}"
        elif (
            given
            and given[0] in ("switch", "switch_off")
            and not all(isinstance(level, bool) for level in (factor.good, factor.bad, *factor.levels))
        ):
            yield f"{document.at(where)}: the levels of a switch are true and false"
        elif given and given[0] in ("switch", "switch_off") and not _splits(factor.switch or factor.switch_off or ""):
            yield f"{document.at(where)}: a quotation mark is not closed"
        elif (wrong := _wrong_request(factor)) is not None:
            yield f"{document.at(where)}: {wrong}"
    if all(same(f.good, f.bad) for f in spec.factors.values()):
        yield f"{document.at(('factors',))}: no factor differs between good and bad: there is nothing to find"
    yield from _name_problems(document, spec)
    yield from _constraint_problems(document, spec)
    if served and not spec.command:
        yield f"{document.at(('command',))}: 'command' is missing: what starts the server (or give --trial-cmd)"
    elif served and "port" not in {n for word in spec.command for n in _placeholders(word)}:
        yield f"{document.at(('command',))}: the command must take the port that is chosen for it: --port {{port}}"


def _splits(words: str) -> bool:
    try:
        return bool(shlex.split(words))
    except ValueError:
        return False


def _wrong_request(factor: FactorSpec) -> str | None:
    levels = (factor.good, factor.bad, *factor.levels)
    if factor.request in (CONCURRENCY, "max_new_tokens"):
        if not all(type(level) is int and 1 <= level <= 4096 for level in levels):
            return f"the levels of {factor.request} are whole numbers from 1 to 4096"
    elif factor.request == "temperature" and any(not _is_number(level) or float(level) < 0 for level in levels):
        return "the levels of temperature are numbers from 0 on"
    return None


def _is_number(level: Value) -> bool:
    return isinstance(level, int | float) and not isinstance(level, bool)


def _name_problems(document: yamlfile.Document, spec: PlanFile) -> Iterator[str]:
    known = [*spec.factors, *spec.reads]
    for kind, names in (("reads", spec.reads), ("derived", spec.derived)):
        for name in names:
            if name in spec.factors or (kind == "derived" and name in spec.reads):
                yield f"{document.at((kind, name))}: the name '{name}' is taken already"
    for name, derived in spec.derived.items():
        yield from _expression_problems(document.at(("derived", name, "when")), derived.when, known)


def _constraint_problems(document: yamlfile.Document, spec: PlanFile) -> Iterator[str]:
    """Of factors alone, since a configuration is ruled out before a server could report anything; and both ends must
    satisfy each."""
    good, bad = ({name: getattr(f, end) for name, f in spec.factors.items()} for end in ("good", "bad"))
    for at, text in enumerate(spec.constraints):
        where = document.at(("constraints", at))
        wrong = list(_expression_problems(where, text, list(spec.factors)))
        yield from wrong
        if wrong:
            continue
        constraint = Constraint(text, parse(text))
        for end, config in (("good", good), ("failing", bad)):
            if not constraint.allows(config):
                told = describe(config, sorted(constraint.when.names))
                yield f"{where}: the {end} configuration does not satisfy it ({told}): {text}"


def _expression_problems(where: str, text: str, known: list[str]) -> Iterator[str]:
    try:
        expression: Expression = parse(text)
    except ExpressionError as error:
        yield f"{where}: {error}"
        return
    for unknown in sorted(expression.names - set(known)):
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known ones: {', '.join(known)}"
        yield f"{where}: unknown factor '{unknown}'; {hint}"


def _placeholders(word: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(word) if name is not None and name.isidentifier()]
    except ValueError:  # a lone brace is text
        return []


def _fill(word: str, fills: Mapping[str, str]) -> str:
    for name, value in fills.items():
        word = word.replace("{" + name + "}", value)
    return word


def _level_of(factor: Factor, value: object) -> Value:
    """A reported value as a level of this factor."""
    if factor.how in ("switch", "switch_off"):
        return _is_on(factor.words, value) is (factor.how == "switch")
    for level in factor.levels:
        if str(level) == str(value):
            return level
    return value if isinstance(value, bool | int | float | str) else str(value)


def _is_on(words: Sequence[str], value: object) -> bool:
    """Whether a reported value is what a switch sets. One that is `--no-x` sets x to false; one with a value sets that,
    which a server may report as a whole section."""
    flag, equals, given = words[0].partition("=")
    if not equals and len(words) > 1 and not words[1].startswith("--"):
        given = words[1]
    if not given or isinstance(value, Mapping | list):
        return bool(value) is not flag.startswith("--no-")
    return str(value) == given
