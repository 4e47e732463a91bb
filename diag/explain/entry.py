"""The shape of one explanation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Group = Literal["fault", "finding", "bisection", "text", "lead", "sign", "rule", "playbook", "run", "error"]


@dataclass(frozen=True)
class Entry:
    """id: as diag prints it and as it stands in JSON. title: one line, for the list. what: what it is; why: why it
    matters; do: what to do about it, in order. more: files of the project to read on, below the checkout's root."""

    id: str
    group: Group
    title: str
    what: str
    why: str
    do: tuple[str, ...]
    more: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "do": list(self.do), "more": list(self.more)}
