"""Steps that only say something: assert, note."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from diag.bisect.expr import CannotTell, Expression, ExpressionError, parse
from diag.playbook.kind import Kind, Params, Result
from diag.playbook.stage import Stage


class AssertParams(Params):
    main = "that"
    that: tuple[str, ...] = Field(
        min_length=1,
        max_length=50,
        description="comparisons over recorded values, or one alone",
        json_schema_extra=lambda schema: schema.update(type=["array", "string"]),
    )
    says: str = Field(default="", description="what it means when it does not hold")
    inconclusive: bool = Field(default=False, description="then nothing is wrong, only not known: exit code 3")

    @field_validator("that", mode="before")
    @classmethod
    def _one_alone(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @property
    def expressions(self) -> list[Expression]:
        return [parse(text, records=True) for text in self.that]


class AssertionFalse(Exception):
    """A step that failed without anything going wrong: its result says what does not hold."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.summary)
        self.result = result


def check(params: AssertParams, stage: Stage) -> Result:
    """Raises AssertionFalse where one does not hold, or cannot be told."""
    names = stage.names()
    held, said = True, []
    unknown = False
    for expression in params.expressions:
        try:
            holds = expression.holds(names)
        except CannotTell as error:
            unknown = True
            said.append(f"cannot be told: {expression.text} ({error.name})")
            continue
        if not holds:
            held = False
            seen = ", ".join(f"{name} is {shown(names[name])}" for name in sorted(expression.names) if name in names)
            said.append(f"does not hold: {expression.text} ({seen})")
    if held and not unknown:
        many = len(params.that)
        return Result("holds: " + params.that[0] + (f" and {many - 1} more" if many > 1 else ""), {"holds": True})
    summary = "; ".join(([params.says] if params.says else []) + said)
    raise AssertionFalse(Result(summary, {"holds": False}, 3 if held or params.inconclusive else 1))


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, str) else str(value)


class NoteParams(Params):
    main = "text"
    text: str = Field(min_length=1, max_length=2000)
    show: tuple[str, ...] = Field(default=(), max_length=20, description="recorded values to show with it")


def note(params: NoteParams, stage: Stage) -> Result:
    names = stage.names()
    told = [f"{name} = {shown(names[name])}" for name in params.show if name in names]
    return Result(params.text + (f" ({', '.join(told)})" if told else ""))


def wrong_expression(text: str) -> str | None:
    try:
        parse(text, records=True)
    except ExpressionError as error:
        return str(error)
    return None


KINDS = (
    Kind(
        "assert",
        AssertParams,
        "comparisons over what earlier steps recorded; the step fails where one does not hold",
        {"holds": "all of them do"},
        check,
    ),
    Kind("note", NoteParams, "a sentence in the report", {}, note),
)
