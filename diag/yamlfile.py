"""YAML files that people write: read strictly (YAML 1.2, no duplicate keys, no tags that execute), with positions.

Every fault found is reported at once, as "file:line:column: what", with the nearest valid name for a misspelt key.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from diag.errors import PlanError, UsageError

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 64

Where = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """`data`: plain dicts, lists and scalars. `marks`: path of keys and indices -> 1-based (line, column)."""

    path: Path
    data: Any
    marks: Mapping[Where, tuple[int, int]]

    def at(self, where: Where) -> str:
        """`file:line:column` of the deepest part of `where` that is in the file."""
        for end in range(len(where), -1, -1):
            if where[:end] in self.marks:
                line, column = self.marks[where[:end]]
                return f"{self.path}:{line}:{column}"
        return f"{self.path}:1:1"


def read(path: Path) -> Document:
    """Raises UsageError when the file cannot be read, PlanError when it is not YAML as we accept it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", next="Check the name of the file.") from None
    if len(raw) > MAX_BYTES:
        raise _broken(path, 1, 1, f"larger than {MAX_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _broken(path, line, 1, "not UTF-8 text") from None
    return _parse(path, text)


def validate(document: Document, model: type[ModelT]) -> ModelT:
    """Raises PlanError with every problem of the whole file."""
    value, problems = checked(document, model, document.data)
    if value is None:
        raise problems_in(document.path, problems)
    return value


def checked(document: Document, model: type[ModelT], data: Any, where: Where = ()) -> tuple[ModelT | None, list[str]]:
    """(the value, none) or (None, every problem): of `data`, a part of the file that stands at `where`."""
    if not isinstance(data, dict):
        what = "a mapping of keys to values is expected"
        return None, [f"{document.at(where)}: {what}"]
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        details = _told_once(error.errors(include_url=False))
        return None, [_problem(document, model, detail, where) for detail in details]


def problems_in(path: Path, problems: list[str]) -> PlanError:
    n = len(problems)
    return PlanError(
        f"{path} has {'a problem' if n == 1 else f'{n} problems'}; nothing was started.",
        problems=problems,
        next="Correct it and run the command again.",
    )


def _broken(path: Path, line: int, column: int, what: str) -> PlanError:
    return problems_in(path, [f"{path}:{line}:{column}: {what}"])


def _parse(path: Path, text: str) -> Document:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLWarning
    from ruamel.yaml.reader import ReaderError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", YAMLWarning)  # an anchor used twice: the later one counts, says YAML
            tree = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = " ".join(str(error.problem or error.context or "not YAML").split("\n")[0].split())
        raise _broken(path, line, column, problem) from None
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise _broken(path, line, 1, f"a character that YAML does not allow: {error.reason}") from None
    except Exception as error:  # its own slips on odd files are many kinds: `!!bool 3` is a KeyError
        raise _broken(path, 1, 1, f"not YAML: {error}".split("\n")[0]) from None
    marks: dict[Where, tuple[int, int]] = {(): (1, 1)}
    return Document(path, _plain(path, tree, (), marks), marks)


def _plain(path: Path, node: Any, where: Where, marks: dict[Where, tuple[int, int]]) -> Any:
    if len(marks) > MAX_NODES:
        raise _broken(path, 1, 1, f"more than {MAX_NODES} values (aliases counted out)")
    if len(where) > MAX_DEPTH:
        raise _broken(path, *marks[where[:1]], f"nested deeper than {MAX_DEPTH}, or an alias that holds itself")
    if isinstance(node, dict):
        result: dict[Any, Any] = {}
        for key, value in node.items():
            marks[(*where, key)] = _mark(node, "key", key)
            result[_scalar(path, key, (*where, key), marks)] = _plain(path, value, (*where, key), marks)
        return result
    if isinstance(node, list):
        for index in range(len(node)):
            marks[(*where, index)] = _mark(node, "item", index)
        return [_plain(path, value, (*where, index), marks) for index, value in enumerate(node)]
    return _scalar(path, node, where, marks)


def _mark(node: Any, of: str, name: Any) -> tuple[int, int]:
    try:
        line, column = getattr(node.lc, of)(name)
    except (AttributeError, KeyError, TypeError):  # merged in from an anchor: it stands where the anchor does
        line, column = getattr(getattr(node, "lc", None), "line", 0) or 0, 0
    return line + 1, column + 1


def _scalar(path: Path, node: Any, where: Where, marks: Mapping[Where, tuple[int, int]]) -> Any:
    for kind in (bool, int, float, str):  # ruamel's round-trip scalars are subclasses; bool comes before int
        if isinstance(node, kind):
            return kind(node)
    if node is None:
        return None
    line, column = marks.get(where, (1, 1))
    raise _broken(path, line, column, f"a {type(node).__name__} is not allowed here")


def _told_once(details: Sequence[Any]) -> list[Any]:
    """pydantic says of a list whose items are wrong that it is too short as well."""
    wrong = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    return [d for d in details if d["type"] != "too_short" or d["loc"] not in wrong]


_OUR_WORDS = {  # where pydantic's are about Python
    "model_type": "a mapping of keys to values is expected",
    "too_short": "at least {min_length} needed",
    "too_long": "at most {max_length} allowed",
}


def _problem(document: Document, model: type[BaseModel], detail: Any, base: Where = ()) -> str:
    """base: where the model's own part of the file stands."""
    where = tuple(part for part in detail["loc"] if (isinstance(part, str | int)))
    ours = _OUR_WORDS.get(detail["type"])
    message = str(detail["msg"]) if ours is None else ours.format(**detail.get("ctx", {}))
    if detail["type"] == "extra_forbidden":
        message = f"unknown key '{where[-1]}'"
        near = difflib.get_close_matches(str(where[-1]), _names(model, where[:-1]), n=1)
        message += f"; did you mean '{near[0]}'?" if near else ""
    elif detail["type"] == "missing":
        message = f"'{where[-1]}' is missing"
        where = where[:-1]
    else:
        message = f"{'.'.join(map(str, where)) or 'file'}: {message.removeprefix('Value error, ')}"
    return f"{document.at(_written(document, base, where))}: {message}"


def _written(document: Document, base: Where, where: Where) -> Where:
    """pydantic names members of unions in its paths; only what stands in the file has a place."""
    path = base
    for part in where:
        if (*path, part) in document.marks:
            path = (*path, part)
    return path


def _names(model: type[BaseModel], where: Where) -> list[str]:
    """Valid keys of the (possibly nested) model that `where` leads to."""
    current: type[BaseModel] | None = model
    for part in where:
        if current is None:
            return []
        fields = {_written_as(name, info): info for name, info in current.model_fields.items()}
        info = fields.get(str(part))
        if info is not None:
            current = _model_in(info.annotation)
    return [_written_as(name, info) for name, info in current.model_fields.items()] if current is not None else []


def _written_as(name: str, info: FieldInfo) -> str:
    """A field by the key that it has in a file."""
    return info.alias or name


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None
