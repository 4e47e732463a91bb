"""What a server gave for one request, as a value; asking is in `diag.serving`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diag.verdict.compare import How


@dataclass(frozen=True)
class Answer:
    """One completed request. token_ids: as emitted, never re-encoded from the text. error: "" if it completed."""

    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    accept_length: float | None = None
    error: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One answer and how it was asked for."""

    how: How
    answer: Answer


def references(asked: list[Asked]) -> dict[str, Answer]:
    """The answers that others are compared with: each prompt's own, alone."""
    return {a.answer.prompt: a.answer for a in asked if a.how == "alone"}
