"""A playbook file, checked whole before anything is connected to: every fault at once, each with its place."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import bundle, yamlfile
from diag.bisect.expr import Expression, ExpressionError, Recorded, parse
from diag.errors import UsageError
from diag.playbook.kind import Kind, Params
from diag.playbook.kinds import KINDS
from diag.playbook.schema import Hosts, OnFailure, Shell, StepWords, Var
from diag.playbook.steps.words import AssertParams, NoteParams, wrong_expression

_WHOLE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_UNSET = object()
SERVERS = ("server.start", "server.stop", "bisect")


@dataclass(frozen=True)
class Step:
    """One checked step. params: None where a variable that it uses has no value yet. where: in the file."""

    id: str
    kind: Kind
    params: Params | None
    title: str
    when: Expression | None
    on_failure: OnFailure
    where: yamlfile.Where


@dataclass(frozen=True)
class Book:
    """A checked playbook. text: the file as it was; content: what it says, which a comment does not change; values: of
    the variables; unset: variables without one."""

    path: Path
    text: str
    content: str
    name: str
    title: str
    hosts: Hosts
    vars: Mapping[str, Var]
    values: Mapping[str, Recorded]
    unset: tuple[str, ...]
    steps: tuple[Step, ...]
    finally_: tuple[Step, ...]
    keep: tuple[str, ...]
    answer: str | None

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return (*self.steps, *self.finally_)

    @property
    def changes(self) -> bool:
        """Whether it can change anything on a host."""
        return any(step.kind.changes for step in self.all_steps)


def folder() -> Path:
    return bundle.folder("playbooks")


def shipped() -> list[Path]:
    return sorted(folder().glob("*.yaml"))


def load(name: str, given: Mapping[str, str] | None = None) -> Book:
    """A playbook by its shipped name, or by path. given: values of variables, as they were typed. Raises UsageError, or
    PlanError with every problem of the file."""
    path = _locate(name)
    document = yamlfile.read(path)
    book, problems = _checked(document, given or {})
    if problems or book is None:
        raise yamlfile.problems_in(path, sorted(dict.fromkeys(problems), key=_position))
    return book


def refuse_unset(book: Book) -> None:
    """Raises UsageError where a variable has no value."""
    if book.unset:
        first = book.unset[0]
        told = f" ({book.vars[first].title})" if book.vars[first].title else ""
        raise UsageError(
            f"The playbook {book.name} needs a value for {', '.join(book.unset)}.",
            next=f"Give it: --set {first}=VALUE{told}",
        )


def _locate(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name).expanduser()
    known = {path.stem: path for path in shipped()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"There is no playbook '{name}'.",
        next=f"Did you mean '{near[0]}'?" if near else f"Shipped ones: {', '.join(known)}; or give a file's path.",
    )


def _position(problem: str) -> tuple[int, int]:
    found = re.match(r".*?:(\d+):(\d+): ", problem)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _checked(document: yamlfile.Document, given: Mapping[str, str]) -> tuple[Book | None, list[str]]:
    data = document.data
    if isinstance(data, dict) and data.get("kind") == "bisect":
        what = f"this is the plan of a bisection: diag bisect HOST --plan {document.path}"
        return None, [f"{document.at(('kind',))}: {what}"]
    shell, problems = yamlfile.checked(document, Shell, data)
    if not isinstance(data, dict):
        return None, problems
    values, unset = _values(shell.vars, given) if shell is not None else ({}, ())
    known_vars = list(shell.vars) if shell is not None else _names(data.get("vars"))
    reader = _Reader(document, known_vars, values, set(unset))
    steps = tuple(reader.steps("steps", data.get("steps")))
    last = tuple(reader.steps("finally", data.get("finally")))
    problems += reader.problems
    problems += _problems(document, data, reader)
    if problems or shell is None:
        return None, problems
    content = json.dumps(data, sort_keys=True, ensure_ascii=True, default=str)
    digest = hashlib.sha256(content.encode()).hexdigest()
    book = Book(
        path=document.path,
        text=document.path.read_text(encoding="utf-8"),
        content=digest,
        name=shell.name,
        title=shell.title,
        hosts=shell.hosts,
        vars=shell.vars,
        values=values,
        unset=unset,
        steps=steps,
        finally_=last,
        keep=shell.keep,
        answer=shell.answer,
    )
    return book, problems


def _names(given: object) -> list[str]:
    return [str(name) for name in given] if isinstance(given, dict) else []


def _values(declared: Mapping[str, Var], given: Mapping[str, str]) -> tuple[dict[str, Recorded], tuple[str, ...]]:
    """(values by name, those without one). Raises UsageError for what was typed."""
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            known = f"It has: {', '.join(declared)}." if declared else "It has none."
            raise UsageError(
                f"The playbook has no variable '{name}'.", next=f"Did you mean '{near[0]}'?" if near else known
            )
    values: dict[str, Recorded] = {}
    for name, var in declared.items():
        if name in given:
            values[name] = _typed(name, var, given[name])
        elif var.default is not None:
            values[name] = var.default
    return values, tuple(name for name in declared if name not in values)


def _typed(name: str, var: Var, typed: str) -> Recorded:
    truths = {"true": True, "yes": True, "false": False, "no": False}
    try:
        if var.type == "boolean":
            return truths[typed.lower()]
        return {"string": str, "integer": int, "number": float}[var.type](typed)  # type: ignore[no-any-return]
    except (ValueError, KeyError):
        raise UsageError(f"--set {name}={typed}: not of type {var.type}.", next=f"Give {name} another value.") from None


@dataclass
class _Reader:
    """Reads the steps one by one, so that a fault in one hides none in another."""

    document: yamlfile.Document
    vars: Sequence[str]
    values: Mapping[str, Recorded]
    unset: set[str]

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self.seen: dict[str, Kind] = {}
        self.named: set[str] = set()  # also those whose kind is not known

    def steps(self, key: str, listed: object) -> Iterator[Step]:
        if not isinstance(listed, list):
            return
        for at, data in enumerate(listed):
            step = self._step(key, at, data)
            if step is not None:
                yield step

    def _step(self, key: str, at: int, data: object) -> Step | None:
        where: yamlfile.Where = (key, at)
        kind = self._kind(where, data)
        if not isinstance(data, dict):
            return None
        name = str(data.get("id") or f"{'last' if key == 'finally' else 'step'}{at + 1}")
        twice = name in self.named
        self.named.add(name)
        if kind is None:
            return None
        if twice:
            self._say((*where, "id"), f"there are two steps with the id '{name}'")
        if name in self.vars:
            self._say((*where, "id"), f"'{name}' is the name of a variable already")
        before = len(self.problems)
        words = {key: value for key, value in data.items() if key != kind.name}
        read, problems = yamlfile.checked(self.document, StepWords, words, where)
        self.problems += problems
        when = self._expression((*where, "when"), data.get("when"))
        params = self._read((*where, kind.name), kind, data[kind.name])
        self.seen[name] = kind
        if read is None or len(self.problems) > before:
            return None
        return Step(name, kind, params, read.title, when, read.on_failure, where)

    def _read(self, where: yamlfile.Where, kind: Kind, given: Any) -> Params | None:
        """None where it is wrong, or a variable that it uses has no value yet."""
        filled = self._filled(where, given)
        if any(value is _UNSET for value in _flat(filled)):
            return None
        params, problems = yamlfile.checked(self.document, kind.params, kind.params.whole(filled), where)
        self.problems += problems
        if params is not None:
            self._params(where, kind, params)
        return params

    def _kind(self, where: yamlfile.Where, data: object) -> Kind | None:
        if not isinstance(data, dict):
            self._say(where, "a step is a mapping: a kind, such as probe.host, and what goes with it")
            return None
        found = [key for key in data if key in KINDS]
        if len(found) == 1:
            return KINDS[found[0]]
        if len(found) > 1:
            self._say(where, f"a step does one thing, not {' and '.join(found)}")
            return None
        words = set(StepWords.model_fields)
        others = [str(key) for key in data if key not in words]
        near = next((n for key in others for n in difflib.get_close_matches(key, KINDS, n=1)), None)
        odd = f"'{others[0]}' is no kind of step" if others else "it says nothing to do"
        hint = f"did you mean '{near}'?" if near else f"kinds: {', '.join(KINDS)}"
        self._say((*where, others[0]) if others else where, f"{odd}; {hint}")
        return None

    def _filled(self, where: yamlfile.Where, value: Any) -> Any:
        """A text that is `{name}` and nothing else is the variable's value."""
        if isinstance(value, dict):
            return {key: self._filled((*where, key), each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled((*where, at), each) for at, each in enumerate(value)]
        found = _WHOLE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        name = found[1]
        if name in self.values:
            return self.values[name]
        if name not in self.unset and name not in self.vars:
            near = difflib.get_close_matches(name, self.vars, n=1)
            self._say(where, f"no variable '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        return _UNSET

    def _params(self, where: yamlfile.Where, kind: Kind, params: Params) -> None:
        for parameter, wanted in kind.refers.items():
            step = getattr(params, parameter)
            if step is not None:
                self._refers((*where, parameter), step, wanted)
        for parameter, problem in kind.check(params, self.document.path.parent):
            self._say((*where, parameter), f"{parameter}: {problem}")
        if isinstance(params, AssertParams):
            for at, text in enumerate(params.that):
                self._expression((*where, "that", at), text)
        if isinstance(params, NoteParams):
            for at, name in enumerate(params.show):
                self._name((*where, "show", at), name)

    def _refers(self, where: yamlfile.Where, step: str, wanted: str) -> None:
        fitting = [name for name, kind in self.seen.items() if kind.name == wanted]
        if step in fitting:
            return
        near = difflib.get_close_matches(step, fitting, n=1)
        there = f"there are: {', '.join(fitting)}" if fitting else "there is none before it"
        hint = f"did you mean '{near[0]}'?" if near else there
        self._say(where, f"'{step}' is no earlier step of kind {wanted}; {hint}")

    def _expression(self, where: yamlfile.Where, text: object) -> Expression | None:
        if not isinstance(text, str):
            return None
        wrong = wrong_expression(text)
        if wrong is not None:
            self._say(where, wrong)
            return None
        try:
            found = parse(text, records=True)
        except ExpressionError:
            return None
        for name in sorted(found.names):
            self._name(where, name)
        return found

    def _name(self, where: yamlfile.Where, name: str) -> None:
        """A variable, or a value of an earlier step."""
        known = [*self.vars, *(f"{step}.{value}" for step, kind in self.seen.items() for value in kind.values)]
        if name in known:
            return
        near = difflib.get_close_matches(name, known, n=1)
        step = name.partition(".")[0]
        values = ", ".join(self.seen[step].values) if step in self.seen else ""
        more = f"'{step}' records: {values}" if values else "nothing before this step records it"
        self._say(where, f"'{name}' is not known here; {f'did you mean {near[0]!r}?' if near else more}")

    def _say(self, where: yamlfile.Where, what: str) -> None:
        self.problems.append(f"{self.document.at(where)}: {what}")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _flat(each)
    elif isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _problems(document: yamlfile.Document, data: Mapping[str, Any], reader: _Reader) -> Iterator[str]:
    """What needs the whole file to be seen."""
    keep, answer = data.get("keep"), data.get("answer")
    for at, name in enumerate(map(str, keep) if isinstance(keep, list) else ()):
        where, kind = document.at(("keep", at)), reader.seen.get(name)
        if name not in reader.named:
            yield f"{where}: no step '{name}'{_nearest(name, reader.named)}"
        elif kind is not None and kind.name in SERVERS:
            yield f"{where}: a server lives no longer than the run: the changes of '{name}' cannot be kept"
        elif kind is not None and not kind.changes:
            yield f"{where}: '{name}' changes nothing that could be kept"
    if isinstance(answer, str) and answer not in reader.named:
        yield f"{document.at(('answer',))}: no step '{answer}'{_nearest(answer, reader.named)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
