"""The run's journal as one host's steps write it. Every line is on disk before what it says is done."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from diag.journal import Journal
from diag.playbook.kind import Result
from diag.playbook.past import HostPast
from diag.playbook.stage import Change


class Lines:
    """A journal that several threads write to, a whole line each."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lock = threading.Lock()

    def write(self, kind: str, **content: Any) -> None:
        with self._lock:
            self.journal.write(kind, **content)


class HostRecord:
    """One host's part of the journal; what is read back is `past`, which grows with every line."""

    def __init__(self, lines: Lines, host: str, past: HostPast) -> None:
        self._lines, self.host, self.past = lines, host, past

    def _write(self, kind: str, **content: Any) -> None:
        self._lines.write(kind, host=self.host, **content)
        self.past.take({"kind": kind, "host": self.host, **content})

    # steps

    def step(self, step: str, kind: str, state: str, *, seconds: float = 0.0, why: str = "") -> None:
        self._write("step", id=step, step=kind, state=state, seconds=round(seconds, 3), why=why, result=None)

    def result(self, step: str, kind: str, state: str, result: Result, seconds: float, why: str = "") -> None:
        """Of a step that is done, or has failed."""
        told = result.to_json()
        self._write("step", id=step, step=kind, state=state, seconds=round(seconds, 3), why=why, result=told)

    # changes

    def begun(self, step: str, what: str, undo: Mapping[str, Any]) -> Change:
        change = Change(f"c{len(self.past.changes) + 1}", step, what, dict(undo))
        self._write("change", id=change.id, step=step, what=what, undo=dict(undo))
        return change

    def ended(self, change: Change, by: str) -> None:
        if change.id in self.past.in_force:
            self._write("undone", change=change.id, by=by)

    def in_force(self) -> tuple[Change, ...]:
        return tuple(self.past.in_force.values())
