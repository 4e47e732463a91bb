"""Lines of a journal into rows. Whatever a line holds, it becomes rows or a problem, never an exception."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.verdict.compare import HEALTHY

PROGRAM = "bisect"
"""Of a journal that does not say."""

MAX_TEXT, MAX_JSON = 400, 8192
MAX_EVIDENCE = 2000
"""Texts of a run that have a row of their own; the counts of each trial are whole."""


class BadLine(ValueError):
    """A line that is not what a journal holds; says where and why."""


@dataclass(frozen=True)
class Line:
    """One whole line. number: from 1. offset_bytes, size_bytes: where it stands, its newline included."""

    number: int
    offset_bytes: int
    raw: bytes
    entry: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        return len(self.raw)

    @property
    def hash(self) -> str:
        return hash_of(self.raw)


def hash_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def lines(journal: Path, offset_bytes: int = 0, number: int = 0) -> Iterator[Line]:
    """Whole lines from there on, `number` of them lying before it. A torn last line is left out.

    Raises BadLine for a line that is no JSON object, OSError."""
    with journal.open("rb") as file:
        file.seek(offset_bytes)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            number += 1
            yield Line(number, offset_bytes, raw, entry_of(raw, number))
            offset_bytes += len(raw)


def entry_of(raw: bytes, number: int) -> dict[str, Any]:
    """Raises BadLine for what is no JSON object with a kind."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise BadLine(f"line {number} is not a journal line")
    return entry


def take(record: sqlite3.Connection, run: str, line: Line) -> None:
    """One line's rows. Raises BadLine for a line of a known kind that lacks what it must have."""
    entry, kind = line.entry, str(line.entry["kind"])
    if line.number == 1 and kind != "start":
        raise BadLine("it does not begin with what the run is about")
    at_unix = _number(entry.get("at_unix"))
    record.execute(
        "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)",
        (run, line.number, _text(kind), at_unix, line.offset_bytes, line.size_bytes),
    )
    reader = _READERS.get(kind)
    if reader is None:
        return
    try:
        reader(record, run, line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadLine(f"line {line.number} ({kind}): {type(error).__name__} {error}") from None


def _start(record: sqlite3.Connection, run: str, line: Line) -> None:
    entry = line.entry
    program = _text(entry.get("program") or PROGRAM)
    name = _text(entry.get("plan_name") or entry.get("name") or "?")
    record.execute(
        "UPDATE runs SET program = ?, name = ?, began_unix = ? WHERE run = ?",
        (program, name, _number(entry.get("at_unix")), run),
    )
    hosts = entry["hosts"] if "hosts" in entry else [entry["host"]] if entry.get("host") is not None else []
    rows = [(run, _text(host), at) for at, host in enumerate(hosts)]
    record.executemany("INSERT OR IGNORE INTO hosts (run, host, position) VALUES (?, ?, ?)", rows)


def _resumed(record: sqlite3.Connection, run: str, line: Line) -> None:
    record.execute("UPDATE hosts SET left_out = NULL WHERE run = ?", (run,))


def _host(record: sqlite3.Connection, run: str, line: Line) -> None:
    _of_host(record, run, line.entry["host"], left_out=_text(line.entry["out"]))


def _facts(record: sqlite3.Connection, run: str, line: Line) -> None:
    _of_host(record, run, line.entry["host"], facts=line.number)


def _of_host(record: sqlite3.Connection, run: str, host: object, **values: str | int) -> None:
    (count,) = record.execute("SELECT count(*) FROM hosts WHERE run = ?", (run,)).fetchone()
    name = _text(host)
    record.execute("INSERT OR IGNORE INTO hosts (run, host, position) VALUES (?, ?, ?)", (run, name, count))
    for column, value in values.items():
        record.execute(f"UPDATE hosts SET {column} = ? WHERE run = ? AND host = ?", (value, run, name))


def _step(record: sqlite3.Connection, run: str, line: Line) -> None:
    entry = line.entry
    row = (run, line.number, _text(entry["id"]), _text(entry.get("step", "?")), _text(entry["state"]))
    record.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?)", (*row, _number(entry.get("seconds"))))


def _trial(record: sqlite3.Connection, run: str, line: Line) -> None:
    entry = line.entry
    number, texts = int(entry["number"]), entry["texts"]
    counts = [count for how in ("alone", "together") for count in _counted(texts, how)]
    row = (
        *(run, number, line.number, _text(entry.get("host") or ""), _text(entry["outcome"])),
        *(_text(entry.get(name) or "") for name in ("signature", "purpose", "reason")),
        *(_json(entry[name]) for name in ("config", "effective")),
        *counts,
        *(_number(entry.get(name)) or 0.0 for name in ("start_s", "total_s")),
    )
    record.execute(f"INSERT OR REPLACE INTO trials VALUES ({', '.join('?' * len(row))})", row)
    bad = [(at, text) for at, text in enumerate(texts) if not _healthy(text)]
    if bad:
        _evidence(record, run, number, bad)


def _evidence(record: sqlite3.Connection, run: str, trial: int, bad: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    (count,) = record.execute("SELECT count(*) FROM evidence WHERE run = ?", (run,)).fetchone()
    rows = [
        (
            run,
            trial,
            at,
            _text(text["prompt"]),
            _text(text["how"]),
            _text(text["kind"]),
            _number(text["worst_gap_nats"]),
        )
        for at, text in bad[: max(0, MAX_EVIDENCE - count)]
    ]
    record.executemany("INSERT OR REPLACE INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _counted(texts: Sequence[Mapping[str, Any]], how: str) -> tuple[int, int]:
    """(garbled, asked)"""
    asked = [text for text in texts if text["how"] == how]
    return sum(not _healthy(text) for text in asked), len(asked)


def _healthy(text: Mapping[str, Any]) -> bool:
    told = text.get("healthy")
    return told if isinstance(told, bool) else text["kind"] in HEALTHY


def _verdict(record: sqlite3.Connection, run: str, line: Line) -> None:
    verdict, culprit = _text(line.entry["verdict"]), line.entry.get("culprit")
    told = _text(culprit) if culprit is not None else None
    record.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)", (run, line.number, verdict, told))
    record.execute(
        "UPDATE runs SET verdict = ?, culprit = ?, ended_unix = ? WHERE run = ?",
        (verdict, told, _number(line.entry.get("at_unix")), run),
    )


_READERS = {
    "start": _start,
    "resumed": _resumed,
    "host": _host,
    "facts": _facts,
    "step": _step,
    "trial": _trial,
    "verdict": _verdict,
}


def _text(value: object, limit: int = MAX_TEXT) -> str:
    """What SQLite takes: no lone surrogates, not without end."""
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _json(values: Mapping[str, Any]) -> str:
    """{} where it is larger than a configuration can be."""
    text = json.dumps(dict(values))
    return text if len(text) <= MAX_JSON else "{}"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
