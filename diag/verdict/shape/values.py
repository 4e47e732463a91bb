"""What the shape layer says of a text: evidence, each with the rule, the place and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Weight = Literal["garbled", "suspect"]
"""garbled: no healthy server writes this; suspect: it may well be wrong, and healthy servers do it now and then."""


@dataclass(frozen=True)
class Evidence:
    """where: characters [start, end) of the text. numbers: what the rule counted, in the units that their names say."""

    rule: str
    weight: Weight
    where: tuple[int, int]
    why: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "weight": self.weight,
            "where": list(self.where),
            "why": self.why,
            "numbers": dict(self.numbers),
        }
