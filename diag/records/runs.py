"""What is asked of the record: which runs there are, and what is in one."""

from __future__ import annotations

import difflib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diag import paths
from diag.errors import PreconditionFailed, UsageError
from diag.records import store

Warn = Callable[[str], None]

UNFINISHED = {"running": "running", "cut_off": "cut off"}
"""How a run without a verdict is called, by the id of its explanation."""

MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Run:
    """program: bisect, playbook or probe. verdict: None while there is none. problem: why its journal could not be read
    on, or "". held: whether a diag is working on it now (where the machine tells)."""

    run: str
    program: str
    name: str
    hosts: tuple[str, ...]
    trials: int
    steps: int
    began_unix: float | None
    ended_unix: float | None
    verdict: str | None
    culprit: str | None
    problem: str
    held: bool = False

    @property
    def ended(self) -> str:
        if self.problem:
            return f"its journal cannot be read: {self.problem}"
        return self.verdict or UNFINISHED["running" if self.held else "cut_off"]

    @property
    def journal(self) -> Path:
        return paths.state_dir() / "runs" / self.run / "journal.jsonl"


@dataclass(frozen=True)
class TrialRow:
    """A trial without its texts. line: number of its journal line; alone, together: (garbled, asked)."""

    number: int
    line: int
    host: str
    outcome: str
    signature: str
    purpose: str
    reason: str
    config: Mapping[str, Any]
    effective: Mapping[str, Any]
    alone: tuple[int, int]
    together: tuple[int, int]
    start_s: float
    total_s: float
    at_unix: float | None


@dataclass(frozen=True)
class StepRow:
    line: int
    step: str
    kind: str
    state: str
    seconds: float | None
    at_unix: float | None


@dataclass(frozen=True)
class BadText:
    """A text that was not healthy. place: among the texts of its trial, from 0."""

    trial: int
    place: int
    prompt: str
    how: str
    kind: str
    worst_gap_nats: float | None


@dataclass(frozen=True)
class Whole:
    """One run with all that the record has of it. left_out: host -> why; facts: host -> line; lines: by kind;
    places: of each line (offset, size) in bytes; at_unix: when each was written."""

    run: Run
    trials: tuple[TrialRow, ...]
    steps: tuple[StepRow, ...]
    bad: tuple[BadText, ...]
    left_out: Mapping[str, str]
    facts: Mapping[str, int]
    lines: Mapping[str, Sequence[int]]
    places: Mapping[int, tuple[int, int]]
    at_unix: Mapping[int, float | None]

    def read(self, line: int) -> dict[str, Any]:
        """A line of its journal, whole. Raises PreconditionFailed where the journal is not what it was a moment ago."""
        offset_bytes, size_bytes = self.places[line]
        try:
            with self.run.journal.open("rb") as file:
                file.seek(offset_bytes)
                entry = json.loads(file.read(min(size_bytes, MAX_LINE_BYTES)))
        except (OSError, ValueError) as error:
            raise PreconditionFailed(
                f"Line {line} of {self.run.journal} cannot be read: {error}.", next="Try again: diag runs rebuild"
            ) from None
        return dict(entry)

    def said_of_hosts(self) -> dict[str, dict[str, Any]]:
        """By host, what it said of itself: to a bisection, to a probe, or to the last `probe.host` of a playbook."""
        said = {host: self.read(line)["document"] for host, line in self.facts.items()}
        for step in self.steps:
            if step.kind == "probe.host" and step.state == "done":
                document = (self.read(step.line).get("result") or {}).get("document")
                if isinstance(document, dict) and "facts" in document and "host" in document:
                    said[str(document["host"])] = document
        return said

    def all(self, kind: str) -> Iterator[dict[str, Any]]:
        for line in self.lines.get(kind, ()):
            yield self.read(line)

    def last(self, kind: str) -> dict[str, Any] | None:
        numbers = self.lines.get(kind, ())
        return self.read(numbers[-1]) if numbers else None


def listed(state: Path | None = None, warn: Warn = lambda why: None) -> list[Run]:
    """Newest first: the names begin with the time."""
    return store.ask(_listed, state, warn)


def whole(run: str, state: Path | None = None, warn: Warn = lambda why: None) -> Whole:
    """Raises UsageError for a run that is not there, PreconditionFailed for a journal that cannot be read."""
    found = store.ask(partial(_whole, run=run), state, warn)
    if isinstance(found, Whole):
        if found.run.problem:
            raise PreconditionFailed(
                f"The journal of run {run} cannot be read: {found.run.problem}.",
                next=f"Look at {found.run.journal}, or begin anew.",
            )
        return found
    near = difflib.get_close_matches(run, found, n=3, cutoff=0.4) or found[-3:]
    details = [f"known: {', '.join(near)}"] if near else []
    raise UsageError(f"There is no run {run!r}.", next="See: diag runs list", details=details)


_RUNS = """
SELECT run, program, name,
  (SELECT json_group_array(host) FROM (SELECT host FROM hosts WHERE hosts.run = runs.run ORDER BY position)),
  (SELECT count(*) FROM trials WHERE trials.run = runs.run),
  (SELECT count(DISTINCT step) FROM steps WHERE steps.run = runs.run),
  began_unix, ended_unix, verdict, culprit, coalesce(problem, ''), inode
FROM runs
"""


def _listed(record: sqlite3.Connection) -> list[Run]:
    held = _locked_inodes()
    return [_run(row, held) for row in record.execute(f"{_RUNS} ORDER BY run DESC")]


def _run(row: Sequence[Any], held: frozenset[int]) -> Run:
    run, program, name, hosts, trials, steps, began_unix, ended_unix, verdict, culprit, problem, inode = row
    counts = (trials, steps, began_unix, ended_unix)
    return Run(run, program, name, tuple(json.loads(hosts)), *counts, verdict, culprit, problem, inode in held)


def _locked_inodes() -> frozenset[int]:
    """Of files that some process holds locked; empty where the machine does not tell."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    words = [line.split() for line in lines]
    return frozenset(
        int(inode) for line in words if len(line) > 5 and (inode := line[5].rpartition(":")[2]).isdecimal()
    )


def _whole(record: sqlite3.Connection, run: str) -> Whole | list[str]:
    """The names of all runs where this is none of them."""
    row = record.execute(f"{_RUNS} WHERE run = ?", (run,)).fetchone()
    if row is None:
        return [name for (name,) in record.execute("SELECT run FROM runs ORDER BY run")]
    places: dict[int, tuple[int, int]] = {}
    lines: dict[str, list[int]] = {}
    times: dict[int, float | None] = {}
    for number, kind, at_unix, offset_bytes, size_bytes in record.execute(
        "SELECT number, kind, at_unix, offset_bytes, size_bytes FROM entries WHERE run = ? ORDER BY number", (run,)
    ):
        places[number] = (offset_bytes, size_bytes)
        lines.setdefault(kind, []).append(number)
        times[number] = at_unix
    hosts = record.execute("SELECT host, left_out, facts FROM hosts WHERE run = ? ORDER BY position", (run,)).fetchall()
    return Whole(
        _run(row, _locked_inodes()),
        tuple(_trial(each, times) for each in record.execute(f"{_TRIALS} WHERE run = ? ORDER BY number", (run,))),
        tuple(_step(each, times) for each in record.execute(f"{_STEPS} WHERE run = ? ORDER BY entry", (run,))),
        tuple(BadText(*each) for each in record.execute(f"{_BAD} WHERE run = ? ORDER BY trial, text", (run,))),
        {host: why for host, why, _ in hosts if why is not None},
        {host: line for host, _, line in hosts if line is not None},
        lines,
        places,
        times,
    )


_TRIALS = """
SELECT number, entry, host, outcome, signature, purpose, reason, config, effective,
  garbled_alone, asked_alone, garbled_together, asked_together, start_s, total_s FROM trials
"""
_STEPS = "SELECT entry, step, kind, state, seconds FROM steps"
_BAD = "SELECT trial, text, prompt, how, kind, worst_gap_nats FROM evidence"


def _trial(row: Sequence[Any], times: Mapping[int, float | None]) -> TrialRow:
    number, entry, host, outcome, signature, purpose, reason, config, effective, *counts, start_s, total_s = row
    return TrialRow(
        *(number, entry, host, outcome, signature, purpose, reason, json.loads(config), json.loads(effective)),
        *((counts[0], counts[1]), (counts[2], counts[3]), start_s, total_s, times.get(entry)),
    )


def _step(row: Sequence[Any], times: Mapping[int, float | None]) -> StepRow:
    entry, step, kind, state, seconds = row
    return StepRow(entry, step, kind, state, seconds, times.get(entry))


def folder_of(run: str) -> Path:
    """Where a run's journal lies, or would. Raises UsageError for what cannot be a run's name."""
    if "/" in run or os.sep in run or run in ("", ".", ".."):
        raise UsageError(f"There is no run {run!r}.", next="See: diag runs list")
    return paths.state_dir() / "runs" / run
