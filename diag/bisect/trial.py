"""What one trial showed: values only, with everything a person needs to disagree with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
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
    host:        where it was made; "" is this machine
    signature:   what kind of failure it shows ("garbled", "answers HTTP 500", "died: CUDA error: ..."), "" where it
                 shows none. Only a failure with the failing end's signature is the failure that is looked for.
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
    host: str = ""
    signature: str = ""

    @property
    def effect(self) -> str:
        """What the factors came to, as a hash: trials with the same one are one trial, repeated."""
        return effect_of({name: self.effective.get(name, level) for name, level in self.config.items()})

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
            "effect": self.effect,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trial:
        """The inverse of to_json, whatever else the document holds; what older journals do not have stays at its
        default. Raises KeyError, TypeError or ValueError."""
        given = {f.name: document[f.name] for f in fields(cls) if f.name in document or _needed(f)}
        return cls(
            **{
                **given,
                "outcome": Outcome(given["outcome"]),
                "texts": tuple(TextVerdict.from_json(text) for text in given["texts"]),
                "warnings": tuple(given["warnings"]),
            }
        )


def _needed(one: Field[Any]) -> bool:
    """`texts` and `warnings` have always been written."""
    return one.name in ("texts", "warnings") or (one.default is MISSING and one.default_factory is MISSING)


def effect_of(values: Mapping[str, Value]) -> str:
    """Twelve hexadecimal digits, the same for equal values in any order."""
    text = json.dumps(sorted(values.items()), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
