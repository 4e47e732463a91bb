"""The format, version 1: docs/playbooks.md. What a step may hold comes from the registry of kinds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    create_model,
    model_validator,
)

from diag.playbook.kinds import KINDS

NAME = r"^[a-z][a-z0-9_]*$"
OnFailure = Literal["stop", "continue", "undo"]
VarType = Literal["string", "integer", "number", "boolean"]
Level = StrictBool | StrictInt | StrictFloat | StrictStr
MAX_STEPS = 200


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Var(_Strict):
    """A value that `--set NAME=VALUE` replaces. Without a default it has to be given. A scalar alone is its default."""

    type: VarType = "string"
    default: Level | None = None
    title: str = ""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return given
        types: dict[type, VarType] = {bool: "boolean", int: "integer", float: "number"}
        return {"type": types.get(type(given), "string"), "default": given}

    @model_validator(mode="after")
    def _of_its_type(self) -> Var:
        if self.default is not None and not of_type(self.type, self.default):
            raise ValueError(f"the default {self.default!r} is not of type {self.type}")
        return self


def of_type(name: VarType, value: object) -> bool:
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is {"string": str, "integer": int, "boolean": bool}[name]


class Hosts(_Strict):
    """default: a host or group, where none is named on the command line. most: how many there may be. A name alone is
    the default."""

    default: str | None = None
    most: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, given: Any) -> Any:
        return {"default": given} if isinstance(given, str) else given


class StepWords(_Strict):
    """What every step may hold, besides its one kind. id: what its values are asked for by; when: it is left out where
    this does not hold, or cannot be told."""

    id: str | None = Field(default=None, pattern=NAME, max_length=40)
    title: str = ""
    when: str | None = None
    on_failure: OnFailure = "stop"


def _step() -> type[StepWords]:
    """For the JSON Schema: reading goes kind by kind."""
    fields: dict[str, Any] = {
        field_of(name): (kind.params | None, Field(default=None, alias=name, description=kind.says))
        for name, kind in KINDS.items()
    }
    model: type[StepWords] = create_model("Step", __base__=StepWords, **fields)
    model.model_config["json_schema_extra"] = _exactly_one
    model.model_rebuild(force=True)
    return model


def _exactly_one(schema: dict[str, Any]) -> None:
    schema["oneOf"] = [{"required": [name]} for name in KINDS]


def field_of(kind: str) -> str:
    """A kind's name as an attribute of a step."""
    return f"do_{kind.replace('.', '_')}"


Step = _step()


class Shell(_Strict):
    """A playbook without a look into its steps. keep: steps whose changes stay. answer: the step that the exit code and
    the first line come from; the worst one without it."""

    schema_version: Literal[1] = Field(alias="schema")
    kind: Literal["playbook"]
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=60)]
    title: str = ""
    hosts: Hosts = Hosts()
    vars: dict[Annotated[str, Field(pattern=NAME)], Var] = Field(default_factory=dict, max_length=50)
    steps: list[Any] = Field(min_length=1, max_length=MAX_STEPS)
    finally_: list[Any] = Field(default_factory=list, alias="finally", max_length=MAX_STEPS)
    keep: tuple[str, ...] = ()
    answer: str | None = None


def json_schema() -> dict[str, Any]:
    """For editors: JSON Schema of a whole playbook."""
    listed: Any = list[Step]  # type: ignore[valid-type]
    whole = create_model(
        "Playbook",
        __base__=Shell,
        steps=(listed, Field(min_length=1, max_length=MAX_STEPS)),
        finally_=(listed, Field(default_factory=list, alias="finally", max_length=MAX_STEPS)),
    )
    schema = whole.model_json_schema(by_alias=True)
    scalar = {"type": ["string", "integer", "number", "boolean"]}
    for name, alone in (("Var", scalar), ("Hosts", {"type": "string"})):
        schema["$defs"][name] = {"anyOf": [schema["$defs"][name], alone]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
