"""The record's file: opened, brought up to date with the journals, made anew where it is broken, done without where it
cannot be had.

    rows = store.ask(lambda record: record.execute("SELECT ...").fetchall())

A journal that has grown is read on from where the last reader stopped; one that is another file, or shorter, is read
again. No fault of the file keeps an answer back that the journals could give: then they are read into memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from diag import paths
from diag.records import ingest, schema

T = TypeVar("T")
Warn = Callable[[str], None]

NAME = "records.sqlite3"
BUSY_S = 2.0
"""How long another process that is writing is waited for."""


_NOT_ITS_FAULT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
}


class _Newer(sqlite3.DatabaseError):
    pass


def ask(question: Callable[[sqlite3.Connection], T], state: Path | None = None, warn: Warn = lambda why: None) -> T:
    """What `question` finds in the record, brought up to date. warn: told why the file could not be used."""
    state = state or paths.state_dir()
    if not (state / "runs").is_dir():
        return _in_memory(question, state)
    try:
        return _kept(question, state)
    except sqlite3.DatabaseError as error:
        if not _is_broken(error):
            warn(f"the record {state / NAME} is left alone ({error}); the journals are read instead")
            return _in_memory(question, state)
        warn(f"the record {state / NAME} is broken ({error}) and is made anew from the journals")
    remove(state)
    try:
        return _kept(question, state)
    except sqlite3.DatabaseError as error:
        warn(f"the record {state / NAME} cannot be made anew ({error}); the journals are read instead")
        return _in_memory(question, state)


def remove(state: Path | None = None) -> None:
    """The file and what SQLite keeps beside it. Nothing is lost: the next reader makes it anew."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            ((state or paths.state_dir()) / f"{NAME}{suffix}").unlink()


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    """Not: in use, of a newer diag, or where it cannot be written."""
    return not isinstance(error, _Newer) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NOT_ITS_FAULT


def _kept(question: Callable[[sqlite3.Connection], T], state: Path) -> T:
    with _opened(state / NAME) as record:
        if schema.version_of(record) > schema.VERSION:
            raise _Newer(f"made by a newer diag, version {schema.version_of(record)}; this one knows {schema.VERSION}")
        schema.migrate(record)
        refresh(record, state / "runs")
        return question(record)


def _in_memory(question: Callable[[sqlite3.Connection], T], state: Path) -> T:
    with contextlib.closing(_connection(":memory:")) as record:
        schema.migrate(record)
        refresh(record, state / "runs")
        return question(record)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Readable by its owner alone: it names hosts and holds parts of texts."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        refused = sqlite3.OperationalError(error.strerror)
        refused.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise refused from None
    with contextlib.closing(_connection(str(path))) as record:
        record.execute("PRAGMA journal_mode = WAL")
        record.execute("PRAGMA synchronous = NORMAL")  # what is lost in a crash is read again
        yield record


def _connection(path: str) -> sqlite3.Connection:
    record = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    record.execute("PRAGMA foreign_keys = ON")
    return record


@dataclass(frozen=True)
class _Seen:
    """A journal as it was last read, or as it is."""

    size_bytes: int
    mtime_ns: int
    inode: int


def refresh(record: sqlite3.Connection, runs: Path) -> None:
    """Bring the record up to date with the journals below `runs`."""
    now = dict(_journals(runs))
    known = {
        run: (_Seen(size, mtime, inode), read)
        for run, size, mtime, inode, read in record.execute(
            "SELECT run, size_bytes, mtime_ns, inode, read_bytes FROM runs"
        )
    }
    changed = [run for run, seen in now.items() if run not in known or known[run][0] != seen]
    gone = [run for run in known if run not in now]
    if not changed and not gone:
        return
    record.execute("BEGIN IMMEDIATE")
    try:
        record.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
        for run in sorted(changed):
            _read(record, runs / run / "journal.jsonl", run, now[run])
        record.execute("COMMIT")
    except BaseException:
        record.execute("ROLLBACK")
        raise


def _journals(runs: Path) -> Iterator[tuple[str, _Seen]]:
    with contextlib.suppress(OSError), os.scandir(runs) as folders:
        for folder in folders:
            with contextlib.suppress(OSError):
                told = os.stat(os.path.join(folder.path, "journal.jsonl"))  # noqa: PTH118, PTH116
                yield folder.name, _Seen(told.st_size, told.st_mtime_ns, told.st_ino)


def _read(record: sqlite3.Connection, journal: Path, run: str, now: _Seen) -> None:
    """What is new in it, or all of it."""
    at, number, last = _read_before(record, journal, run)
    if at == 0:
        record.execute("DELETE FROM runs WHERE run = ?", (run,))
        record.execute(
            "INSERT INTO runs (run, program, name, size_bytes, mtime_ns, inode, read_bytes, last_hash) "
            "VALUES (?, '?', '?', 0, 0, 0, 0, '')",
            (run,),
        )
    problem, last_line = None, None
    try:
        for line in ingest.lines(journal, at, number):
            ingest.take(record, run, line)
            at, last_line = line.offset_bytes + line.size_bytes, line
    except (ingest.BadLine, OSError) as error:
        problem = str(error)
    last = last_line.hash if last_line is not None else last
    if at == 0 and problem is None:
        problem = "it is empty"
    record.execute(
        "UPDATE runs SET size_bytes = ?, mtime_ns = ?, inode = ?, read_bytes = ?, last_hash = ?, problem = ? "
        "WHERE run = ?",
        (now.size_bytes, now.mtime_ns, now.inode, at, last, problem, run),
    )


def _read_before(record: sqlite3.Connection, journal: Path, run: str) -> tuple[int, int, str]:
    """(bytes, lines, hash of the last one) of it that are in the record and still stand there; (0, 0, "") where it has
    to be read from the beginning."""
    row = record.execute(
        "SELECT read_bytes, number, offset_bytes, last_hash FROM runs JOIN entries USING (run) "
        "WHERE run = ? AND problem IS NULL ORDER BY number DESC LIMIT 1",
        (run,),
    ).fetchone()
    if row is None:
        return 0, 0, ""
    read_bytes, number, offset_bytes, last = row
    try:
        with journal.open("rb") as file:
            file.seek(offset_bytes)
            same = ingest.hash_of(file.read(read_bytes - offset_bytes)) == last
    except OSError:
        same = False
    return (read_bytes, number, last) if same else (0, 0, "")
