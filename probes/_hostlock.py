"""One operator at a time on this host: who is at work, doing what, since when.

An flock on a file of ours, held by the live program; the kernel drops it when that ends, however it ends. The file
goes with the lock; one that a killed program left says nothing, because nobody holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import stat
import time
from typing import Any, Dict, Optional

Json = Dict[str, Any]

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def path() -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "diag", "host.lock")


class HostLock:
    """`acquire`, then `release`. OSError where the folder cannot be made, or is not ours alone to write."""

    def __init__(self) -> None:
        self._fd: Optional[int] = None

    def acquire(self, doing: str) -> Optional[Json]:
        """None: it is ours now. Else who has it: {pid, user, client, host, doing, since_unix}."""
        while True:
            fd = _open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                who = _read(fd)
                os.close(fd)
                return who
            if _still_there(fd):
                break
            os.close(fd)  # its holder has just released and removed it
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(dict(_operator(), doing=doing)).encode(), 0)
        return None

    def release(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(path())
            os.close(self._fd)
            self._fd = None


def holder() -> Optional[Json]:
    """Who has it now; None when it is free. Writes nothing."""
    try:
        fd = os.open(path(), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _read(fd)
    finally:
        os.close(fd)


def said(who: Json) -> str:
    """For a person: who, from where, doing what, for how long."""
    since = who.get("since_unix")
    age = "" if since is None else " for {:.0f} s".format(max(0.0, time.time() - since))
    where = " from {}".format(who["client"]) if who.get("client") else ""
    return "{}{} (pid {}), {}{}".format(who.get("user") or "somebody", where, who.get("pid"), who.get("doing"), age)


def _open() -> int:
    folder = os.path.dirname(path())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(1, "not a folder that only we can write to", folder)
    return os.open(path(), _FLAGS, 0o600)


def _still_there(fd: int) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path()).st_ino
    except OSError:
        return False


def _read(fd: int) -> Json:
    for _ in range(20):  # one who has just got it has not yet written
        with contextlib.suppress(ValueError, OSError):
            return dict(json.loads(os.pread(fd, 4096, 0).decode()))
        time.sleep(0.01)
    return {"pid": None, "user": None, "client": None, "host": None, "doing": "not known", "since_unix": None}


def _operator() -> Json:
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except Exception:  # an account that the password file does not know
        user = str(os.geteuid())
    client = os.environ.get("SSH_CLIENT", "").split(" ")[0] or None
    return {
        "pid": os.getpid(),
        "user": user,
        "client": client,
        "host": socket.gethostname(),
        "since_unix": time.time(),
    }
