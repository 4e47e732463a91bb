"""One line for each thing that happened, on disk before the next thing happens.

    <state>/runs/<run id>/journal.jsonl    {"schema": 1, "kind": "start" | "trial" | "verdict" | "interrupted", ...}

Append-only, fsynced line by line, readable by its owner alone (prompts and outputs may be private). One writer at a
time: the file is locked while it is open, and a lock ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from diag import paths
from diag.errors import PreconditionFailed

SCHEMA = 1


class Journal:
    """`run_id` also marks every process that the run starts on the host."""

    def __init__(self, folder: Path, run_id: str) -> None:
        """Raises PreconditionFailed where it cannot be written, FileExistsError where it is there already."""
        self.folder, self.run_id = folder, run_id
        self.path = folder / "journal.jsonl"
        try:
            folder.mkdir(parents=True, mode=0o700)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            _sync_folder(folder)  # the file's name must be as durable as its lines
        except FileExistsError:
            raise
        except OSError as error:
            raise _not_written(self.path, error) from None
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def create(cls, root: Path | None = None) -> Journal:
        """A new run below `root` (default: the state folder), named by time and chance."""
        run_id = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)
        return cls((root or paths.state_dir() / "runs") / run_id, run_id)

    @classmethod
    def reopen(cls, folder: Path, run_id: str) -> Journal:
        """Go on writing below what an earlier session wrote. A line that was torn in the middle is cut off first.

        Raises PreconditionFailed while another diag is at it."""
        journal = cls.__new__(cls)
        journal.folder, journal.run_id, journal.path = folder, run_id, folder / "journal.jsonl"
        try:
            journal._fd = os.open(journal.path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise _not_written(journal.path, error) from None
        try:
            fcntl.flock(journal._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(journal._fd)
            raise PreconditionFailed(
                f"Another diag is working on run {run_id}.",
                next="Wait for it, or end it (Ctrl-C there), and try again.",
            ) from None
        content = journal.path.read_bytes()
        os.ftruncate(journal._fd, content.rfind(b"\n") + 1)
        return journal

    def write(self, kind: str, **content: Any) -> None:
        """Durable when this returns. Raises PreconditionFailed where the disk is full, or gone."""
        self.write_all([(kind, content)])

    def write_all(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Several lines, durable together."""
        now = time.time()
        told = ({"schema": SCHEMA, "kind": kind, "at_unix": now, **content} for kind, content in entries)
        view = memoryview(b"".join(json.dumps(entry, ensure_ascii=True).encode() + b"\n" for entry in told))
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            raise _not_written(self.path, error) from None

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _not_written(path: Path, error: OSError) -> PreconditionFailed:
    return PreconditionFailed(
        f"The journal {path} cannot be written: {error.strerror}.",
        next="Without it a run could not be gone on with: make room there, or set DIAG_STATE_DIR to another folder.",
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line. A torn last line, from a crash in mid-write, is left out; any other bad line is an error."""
    lines = path.read_bytes().split(b"\n")
    entries = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn, or empty
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise ValueError(f"{path}:{number}: not a journal line")
        entries.append(entry)
    return entries
