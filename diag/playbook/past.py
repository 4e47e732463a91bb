"""What the journal of a run says: which steps are done on which host, what they found, what is still changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag import journal
from diag.bisect import resume
from diag.errors import PreconditionFailed, UsageError
from diag.playbook.kind import Result
from diag.playbook.stage import Change

PROGRAM = "playbook"
INTERRUPTED, RESUMED, FAILURE, END = "run: interrupted", "run: resumed", "run: failure", "run: end"
"""Who took a change back, where no step of the playbook did."""
AGAIN = (INTERRUPTED, RESUMED)
"""Then the step that made it is done again when the run goes on."""


@dataclass
class HostPast:
    """results: of steps that are done, by id. failed: those that ended the run or were passed over, for good. last: the
    last line of each step. changes: all that were made; in_force: those that were not given back, oldest first; by: who
    gave the others back."""

    results: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, Result] = field(default_factory=dict)
    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    in_force: dict[str, Change] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)

    def state(self, step: str) -> str:
        return str(self.last[step]["state"]) if step in self.last else ""

    def take(self, entry: Mapping[str, Any]) -> None:
        """One line of the journal, in their order."""
        if entry["kind"] == "step":
            self._step(entry)
        elif entry["kind"] == "change":
            change = Change(entry["id"], entry["step"], entry["what"], entry["undo"])
            self.in_force[change.id] = self.changes[change.id] = change
        elif entry["kind"] == "undone":
            gone = self.in_force.pop(entry["change"], None)
            self.by[entry["change"]] = entry["by"]
            if gone is not None and entry["by"] in AGAIN and self.state(gone.step) == "done":
                self.results.pop(gone.step, None)
                self.last[gone.step] = {**self.last[gone.step], "state": "undone"}

    def _step(self, entry: Mapping[str, Any]) -> None:
        step, state, told = entry["id"], entry["state"], entry.get("result")
        self.last[step] = entry
        self.failed.pop(step, None)
        self.results.pop(step, None)
        if told is not None:
            (self.failed if state == "failed" else self.results)[step] = Result.from_json(told)


@dataclass(frozen=True)
class Past:
    """start: the journal's first line. hosts: by name. finished: the last verdict's line, None where there is none."""

    run_id: str
    folder: Path
    start: Mapping[str, Any]
    hosts: Mapping[str, HostPast]
    finished: Mapping[str, Any] | None

    @property
    def outstanding(self) -> list[tuple[str, Change]]:
        """(host, change), in the order in which they were made."""
        return [(host, change) for host, past in self.hosts.items() for change in past.in_force.values()]


def load(run_id: str) -> Past:
    """Raises UsageError for a run that is not there or of another command, PreconditionFailed for a journal that cannot
    be read."""
    folder = resume.folder_of(run_id)
    try:
        entries = journal.read(folder / "journal.jsonl")
        if not entries or entries[0]["kind"] != "start":
            raise ValueError("no start")
        if entries[0].get("program") != PROGRAM:
            raise UsageError(
                f"Run {run_id} is no playbook but a bisection.", next=f"Go on with it: diag bisect --resume {run_id}"
            )
        return _past(run_id, folder, entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreconditionFailed(
            f"The journal of run {run_id} cannot be read: {error}.",
            next=f"Look at {folder / 'journal.jsonl'}, or begin anew.",
        ) from None


def _past(run_id: str, folder: Path, entries: Sequence[Mapping[str, Any]]) -> Past:
    start = entries[0]
    hosts = {str(name): HostPast() for name in start["hosts"]}
    finished = None
    for entry in entries:
        if entry["kind"] in ("step", "change", "undone") and entry["host"] in hosts:
            hosts[entry["host"]].take(entry)
        if entry["kind"] == "verdict":
            finished = entry
    return Past(run_id, folder, start, hosts, finished)
