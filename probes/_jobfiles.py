"""Files of jobs, in a folder that login and compute nodes share: whole or not there, and nobody else's to read."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from typing import Any, Dict, Optional

from . import _state

Json = Dict[str, Any]
MOST_BYTES = 64 << 20


def write(path: str, document: Json) -> None:
    """By rename, so that a reader on another node sees all of it or nothing."""
    data = json.dumps(document).encode("ascii")
    put(path, gzip.compress(data, 6) if path.endswith(".gz") else data)


def put(path: str, data: bytes) -> None:
    part = "{}.{}.part".format(path, os.getpid())
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read(path: str) -> Optional[Json]:
    """None where it is not there, or is nothing that `write` has written."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
        document = json.loads(gzip.decompress(data) if path.endswith(".gz") else data)
    except (OSError, ValueError, EOFError):
        return None
    return document if isinstance(document, dict) else None


def root(given: Optional[str], run: str) -> str:
    """Of a run: below `given`, or below our own folder in the user's home. ValueError for a name that is none."""
    if not re.fullmatch(r"[\w.-]+", run) or run.startswith("."):
        raise ValueError("not a run: {!r}".format(run))
    return os.path.join(os.path.expanduser(given or os.path.join(_state.folder(), "jobs")), run)


def make(folder: str) -> None:
    """With those above it, this user's alone."""
    for each in (os.path.dirname(os.path.dirname(folder)), os.path.dirname(folder), folder):
        _state.private(each)


def remove(folder: str) -> None:
    """With all that is in it, no link followed; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        os.rmdir(folder)
