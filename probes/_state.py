"""The folder of ours on this host: this user's alone, and no link is followed into it."""

from __future__ import annotations

import os
import stat


def folder() -> str:
    """Where it is, whether or not it exists."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "diag")


def private(path: str) -> None:
    """Make it if need be. Raises PermissionError where somebody else could write to it, and other OSErrors."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(1, "not a folder that only we can write to", path)
