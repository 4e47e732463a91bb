"""What one trial showed: values only, with everything a person needs to disagree with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from diag.bisect.expr import Value
from diag.verdict.compare import TextVerdict


class Outcome(StrEnum):
    """pass and fail are evidence; skip (did not start) and infra (our side or the link) are not."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    INFRA = "infra"


@dataclass(frozen=True)
class Trial:
    """One server start.

    number:      1-based, in the order of the run
    purpose:     why this configuration was tried
    config:      what was asked; effective: what was in force, with derived factors
    texts:       one verdict for each prompt, alone and together
    warnings:    where the server did not do what it was asked
    """

    number: int
    purpose: str
    config: Mapping[str, Value]
    effective: Mapping[str, Value]
    outcome: Outcome
    texts: tuple[TextVerdict, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    start_s: float = 0.0
    total_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def garbled(self) -> int:
        return sum(not text.healthy for text in self.texts)

    def count(self, how: str) -> tuple[int, int]:
        """(garbled, asked) for how = "alone" or "together"."""
        asked = [text for text in self.texts if text.how == how]
        return sum(not text.healthy for text in asked), len(asked)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "outcome": self.outcome.value,
            "config": dict(self.config),
            "effective": dict(self.effective),
            "texts": [text.to_json() for text in self.texts],
            "warnings": list(self.warnings),
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trial:
        """The inverse of to_json, whatever else the document holds. Raises KeyError, TypeError or ValueError."""
        fields = {name: document[name] for name in cls.__dataclass_fields__}
        return cls(
            **{
                **fields,
                "outcome": Outcome(fields["outcome"]),
                "texts": tuple(TextVerdict.from_json(text) for text in fields["texts"]),
                "warnings": tuple(fields["warnings"]),
            }
        )
