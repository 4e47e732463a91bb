"""What a step can do: its parameters, the values that it records, and the one function that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from diag.bisect.expr import Recorded
from diag.errors import DiagError

if TYPE_CHECKING:
    from diag.playbook.stage import Stage

VARIABLE = {"type": "string", "pattern": r"^\{[a-z][a-z0-9_]*\}$"}
"""In place of any parameter."""

Foreseen = Literal["change", "no change", "cannot tell until run"]


def near(name: str, folder: Path) -> str:
    """A plan or suite that is named by a path is looked for beside the playbook."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    return str(folder / Path(name).expanduser()) if is_path else name


def problems_of(parameter: str, load: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """What loading something says against it, for `check`."""
    try:
        load()
    except DiagError as error:
        for line in getattr(error, "problems", None) or [" ".join((error.what, error.next)).strip()]:
            yield parameter, line


class Params(BaseModel):
    """Parameters of a step. main: the one that may stand alone, `fix.apply: mask-indptr` for
    `fix.apply: {fix: mask-indptr}`; "" where none may."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    main: ClassVar[str] = ""

    @classmethod
    def whole(cls, given: Any) -> Any:
        """What is written for it, with the one that stands alone named."""
        if given is None:
            return {}
        return {cls.main: given} if cls.main and not isinstance(given, dict) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        told = {name: {"anyOf": [each, VARIABLE]} for name, each in schema["properties"].items()}
        alone: list[dict[str, Any]] = [{**schema, "properties": told}, {"type": "null"}]
        if cls.main:
            alone += [told[cls.main], {"type": "string"}]
        return {"anyOf": alone}


@dataclass(frozen=True)
class Result:
    """What a step has found or done.

    summary: one line for a person. values: what `when` and `assert` can ask for. exit_code: 0, 1 or 3, as that of the
    command that does the same. document: what that command prints with --json. said: more lines for a person. run: the
    id of a run of its own. changed: whether something on the host is not as it was before the step.
    """

    summary: str
    values: Mapping[str, Recorded] = field(default_factory=dict)
    exit_code: int = 0
    document: Mapping[str, Any] | None = None
    said: tuple[str, ...] = ()
    run: str | None = None
    changed: bool = False

    def to_json(self) -> dict[str, Any]:
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in self.values.items()}
        return {
            "summary": self.summary,
            "values": values,
            "exit_code": self.exit_code,
            "document": self.document,
            "said": list(self.said),
            "run": self.run,
            "changed": self.changed,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Result:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in told["values"].items()}
        return cls(
            summary=told["summary"],
            values=values,
            exit_code=told["exit_code"],
            document=told["document"],
            said=tuple(told["said"]),
            run=told["run"],
            changed=told["changed"],
        )


def _nothing(params: Any, stage: Stage) -> Foreseen:
    return "no change"


def _no_problem(params: Any, folder: Path) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True)
class Kind:
    """name: as it stands in a playbook. says: one line for the docs. values: name -> what it means. act: does it;
    raises DiagError. foresee: whether it would change anything, without changing it. changes: whether it can. refers:
    parameter -> the kind of the earlier step that it names. check: (parameter, what is wrong with it) of what files and
    catalogues tell without a host; folder: of the playbook."""

    name: str
    params: type[Params]
    says: str
    values: Mapping[str, str]
    act: Callable[[Any, Stage], Result]
    foresee: Callable[[Any, Stage], Foreseen] = _nothing
    changes: bool = False
    refers: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any, Path], Iterator[tuple[str, str]]] = _no_problem
