"""A run in one file that another diag can read: its journal, and those of the runs that it began.

RUN.tar.gz      RUN/journal.jsonl, RUN.step/journal.jsonl, ...
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from diag import paths
from diag.errors import PreconditionFailed, UsageError
from diag.records import ingest
from diag.wholefile import becoming

MAX_BYTES = 512 * 1024 * 1024
"""Of a journal that is taken in."""
MAX_RUNS = 100
_MEMBER = re.compile(r"(?P<run>[0-9]{8}-[0-9]{6}-[\w.-]{1,120})/journal\.jsonl")

Rewrite = Callable[[bytes], bytes]


def write(runs: list[str], to: Path, rewrite: Rewrite = lambda line: line) -> None:
    """rewrite: of each line, for strangers. Whole, or not at all. Raises PreconditionFailed."""
    with becoming(to) as new, tarfile.open(new, "w:gz", compresslevel=6) as archive:
        for run in runs:
            journal = paths.state_dir() / "runs" / run / "journal.jsonl"
            content = b"".join(rewrite(line) for line in journal.read_bytes().splitlines(keepends=True))
            member = tarfile.TarInfo(f"{run}/journal.jsonl")
            member.size, member.mode, member.mtime = len(content), 0o600, int(journal.stat().st_mtime)
            archive.addfile(member, io.BytesIO(content))


def read(file: Path) -> list[str]:
    """Take its runs in; their names. Nothing is overwritten, and nothing but journals is taken.

    Raises UsageError for what is no such file, PreconditionFailed where a run is there already."""
    try:
        with tarfile.open(file, "r:gz") as archive:
            found = dict(_journals(archive, file))
    except (OSError, tarfile.TarError, zlib.error, EOFError) as error:
        raise UsageError(f"{file} is no run of diag: {error}.", next="Write one: diag runs export RUN FILE") from None
    root = paths.state_dir() / "runs"
    there = [run for run in found if (root / run).exists()]
    if there:
        raise PreconditionFailed(
            f"Run {there[0]} is here already.", next=f"Look at it: diag runs show {there[0]}; or remove it first."
        )
    for run, content in found.items():
        _put(root / run, content)
    return list(found)


def _journals(archive: tarfile.TarFile, file: Path) -> Iterator[tuple[str, bytes]]:
    for number, member in enumerate(archive):
        named = _MEMBER.fullmatch(member.name)
        body = archive.extractfile(member) if named is not None and member.isreg() else None
        if named is None or body is None or member.size > MAX_BYTES or number >= MAX_RUNS:
            raise UsageError(f"{file} holds {member.name!r}, which is no journal of a run.", next="Export it again.")
        content = body.read()
        try:
            for line in content.splitlines(keepends=True):
                ingest.entry_of(line, 0)
        except ingest.BadLine:
            raise UsageError(f"{file}: the journal of {named['run']} is damaged.", next="Export it again.") from None
        yield named["run"], content


def _put(folder: Path, content: bytes) -> None:
    try:
        folder.mkdir(parents=True, mode=0o700)
        with os.fdopen(os.open(folder / "journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise PreconditionFailed(f"{folder} cannot be written: {error.strerror}.", next="Make room there.") from None
