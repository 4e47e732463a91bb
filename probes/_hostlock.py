"""One operator at a time on this host: who is at work, doing what, since when.

An flock on a file of ours, held by the live program; the kernel drops it when that ends, however it ends. The file
goes with the lock; one that a killed program left says nothing, because nobody holds it. Programs of one run share it
(several names of a host may be one machine): they hold it LOCK_SH, and whoever else gets that far reads whose it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from typing import Any, Dict, Optional

from . import _state
from ._wire import failure

Json = Dict[str, Any]

LOOKS = 5  # another who only looks, or has just got it for the same run, is through in a moment
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def path(name: str = "host.lock") -> str:
    return os.path.join(_state.folder(), name)


class HostLock:
    """`acquire`, then `release`. OSError where the folder cannot be made, or is not ours alone to write."""

    def __init__(self, *name: str) -> None:
        self._path = path(*name)
        self._fd: Optional[int] = None

    def acquire(self, doing: str, run: Optional[str] = None) -> Optional[Json]:
        """None: it is ours now; with `run`, ours and that of whoever else holds it for the same run.
        Else who has it: {pid, user, client, host, doing, run, since_unix}."""
        looks = 0
        while True:
            _state.private(_state.folder())
            fd = os.open(self._path, _FLAGS, 0o600)
            who = _claim(fd, doing, run)
            if who is None and _still_there(fd, self._path):
                self._fd = fd
                return None
            os.close(fd)  # where nobody has it, its holder has just released and removed it
            if who is not None:
                looks += 1
                if looks == LOOKS:
                    return who
                time.sleep(0.02)

    def release(self) -> None:
        if self._fd is not None:
            # Others of this run may go on holding it; the last one removes the file.
            if _flock(self._fd, fcntl.LOCK_EX) and _still_there(self._fd, self._path):
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            os.close(self._fd)
            self._fd = None


def taken(lock: HostLock, doing: str, run: Optional[str] = None) -> Optional[Json]:
    """None: `lock` is ours now. Else the document of the refusal, with nothing changed."""
    try:
        who = lock.acquire(doing, run)
    except OSError as error:
        return failure(
            "precondition", "The lock of this host cannot be taken: {}.".format(error), "Set XDG_STATE_HOME in env."
        )
    if who is None:
        return None
    what = "Somebody is at work on this host: {}.".format(said(who))
    return failure("precondition", what, "Wait until that has ended: diag server list tells.")


def _claim(fd: int, doing: str, run: Optional[str]) -> Optional[Json]:
    """None: locked. Else who has it, or is just looking."""
    if _flock(fd, fcntl.LOCK_EX):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(dict(_operator(), doing=doing, run=run)).encode(), 0)
        # The kernel lets go of one before it gives the other: somebody may have come between.
        return None if run is None or _flock(fd, fcntl.LOCK_SH) else _read(fd)
    shared = _flock(fd, fcntl.LOCK_SH)
    who = _read(fd)
    return None if shared and run is not None and whole(who.get("run")) == whole(run) else who


def whole(run: Optional[str]) -> Optional[str]:
    """A playbook's bisection is a run of its own, and part of the playbook's: RUN.STEP."""
    return None if run is None else run.partition(".")[0]


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def holder(where: str = "") -> Optional[Json]:
    """Who has it now, or that file; None when it is free. Writes nothing."""
    try:
        fd = os.open(where or path(), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        return None if _flock(fd, fcntl.LOCK_EX) else _read(fd)
    finally:
        os.close(fd)


def said(who: Json) -> str:
    """For a person: who, from where, doing what, for how long."""
    since = who.get("since_unix")
    age = "" if since is None else " for {:.0f} s".format(max(0.0, time.time() - since))
    where = " from {}".format(who["client"]) if who.get("client") else ""
    return "{}{} (pid {}), {}{}".format(who.get("user") or "somebody", where, who.get("pid"), who.get("doing"), age)


def _still_there(fd: int, where: str) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(where).st_ino
    except OSError:
        return False


def _read(fd: int) -> Json:
    for _ in range(20):  # one who has just got it has not yet written
        with contextlib.suppress(ValueError, OSError):
            return dict(json.loads(os.pread(fd, 4096, 0).decode()))
        time.sleep(0.01)
    unknown: Json = dict.fromkeys(("pid", "user", "client", "host", "run", "since_unix"))
    return dict(unknown, doing="not known")


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
