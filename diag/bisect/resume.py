"""Go on with a run that was cut off: its trials from the journal, if it is still the same question.

Refused, with what differs, when the plan or the rules of judging are not what they were: evidence gathered under
other rules is no evidence here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag import journal, paths
from diag.bisect.trial import Trial
from diag.errors import PreconditionFailed, UsageError
from diag.verdict.compare import RULES

MAX_DIFF_LINES = 30


@dataclass(frozen=True)
class Earlier:
    """start: the journal's first line. trials: whole ones only; the one that was running is lost. left_out: hosts that
    were given nothing more in its last session, and why."""

    run_id: str
    folder: Path
    start: Mapping[str, Any]
    trials: tuple[Trial, ...]
    finished: str | None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """None where a command was the trial, without hosts."""
        if "hosts" in self.start:
            return tuple(str(name) for name in self.start["hosts"])
        host = self.start["host"]  # of journals that know one host at most
        return (str(host),) if host is not None else ()

    @property
    def fills(self) -> Mapping[str, Mapping[str, str]]:
        """By host."""
        if "hosts" in self.start:
            return dict(self.start["fills"])
        return dict.fromkeys(self.hosts, self.start["fills"])

    @property
    def ended(self) -> str:
        return self.finished or "cut off"


def load(run_id: str, root: Path | None = None) -> Earlier:
    """Raises UsageError for a run that is not there, PreconditionFailed for a journal that cannot be read."""
    folder = folder_of(run_id, root)
    try:
        entries = journal.read(folder / "journal.jsonl")
        if not entries or entries[0]["kind"] != "start":
            raise ValueError("no start")
        _refuse_another(run_id, entries[0])
        trials = tuple(Trial.from_json(entry) for entry in entries if entry["kind"] == "trial")
    except (ValueError, KeyError, TypeError) as error:
        raise PreconditionFailed(
            f"The journal of run {run_id} cannot be read: {error}.",
            next=f"Look at {folder / 'journal.jsonl'}, or begin anew.",
        ) from None
    verdicts = [entry["verdict"] for entry in entries if entry["kind"] == "verdict"]
    finished = verdicts[-1] if verdicts else None
    return Earlier(run_id, folder, entries[0], trials, finished, _left_out(entries))


def folder_of(run_id: str, root: Path | None = None) -> Path:
    """Of a run that has a journal, of whatever command. Raises UsageError, which names the nearest ones."""
    folder = (root or runs_folder()) / run_id
    if "/" in run_id or run_id in ("", ".", "..") or not (folder / "journal.jsonl").is_file():
        known = [path.name for path in list_folders(root)]
        near = difflib.get_close_matches(run_id, known, n=3, cutoff=0.4) or known[-3:]
        details = [f"known: {', '.join(near)}"] if near else []
        raise UsageError(f"There is no run {run_id!r}.", next="See: diag runs list", details=details)
    return folder


def _refuse_another(run_id: str, start: Mapping[str, Any]) -> None:
    """Raises UsageError for a run of another command."""
    program = start.get("program", "bisect")
    if program != "bisect":
        raise UsageError(
            f"Run {run_id} is no bisection but a {program}.",
            next=f"Go on with it: diag {program} resume {run_id}" if program == "playbook" else "See: diag runs list",
        )


def _left_out(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Since the run was begun, or last gone on with."""
    out: dict[str, str] = {}
    for entry in entries:
        if entry["kind"] == "resumed":
            out = {}
        elif entry["kind"] == "host":
            out[str(entry["host"])] = str(entry["out"])
    return out


def refuse_if_changed(earlier: Earlier, plan_text: str) -> None:
    """Raises PreconditionFailed, which shows what differs."""
    before = earlier.start.get("rules")
    if before != RULES:
        raise PreconditionFailed(
            f"Run {earlier.run_id} was judged by rules of version {before}; this diag has version {RULES}.",
            next="Begin a new run, or finish this one with the diag that began it.",
        )
    old = str(earlier.start.get("plan", ""))
    if old != plan_text:
        diff = difflib.unified_diff(old.splitlines(), plan_text.splitlines(), "then", "now", lineterm="", n=1)
        lines = list(diff)
        raise PreconditionFailed(
            f"The plan is not the one that run {earlier.run_id} began with.",
            next="Put it back as it was, or begin a new run.",
            details=lines[:MAX_DIFF_LINES],
        )


def runs_folder() -> Path:
    return paths.state_dir() / "runs"


def list_folders(root: Path | None = None) -> list[Path]:
    """Oldest first: the names begin with the time."""
    folder = root or runs_folder()
    return sorted(p for p in folder.iterdir() if (p / "journal.jsonl").is_file()) if folder.is_dir() else []
