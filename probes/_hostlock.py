"""One operator at a time on this host, or on each set of its GPUs: who is at work, doing what, since when.

An flock on a file of ours, held by the live program; the kernel drops it when that ends, however it ends. The file
goes with the lock; one that a killed program left says nothing, because nobody holds it. Programs of one run share it
(several names of a host may be one machine): they hold it LOCK_SH, and whoever else gets that far reads whose it is.

Whoever is at work on some GPUs only has a file for each of them, and shares the host's with all who have other GPUs: it
then is of the run SETS. So whoever wants the whole host is refused by any of them, and refuses them.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import socket
import time
from typing import Any, Dict, List, Optional, Sequence

from . import _state
from ._wire import failure

Json = Dict[str, Any]

LOOKS = 5  # another who only looks, or has just got it for the same run, is through in a moment
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


SETS = "sets of GPUs"
"""The run that all who have some GPUs hold the host's file for."""


def path(gpu: Optional[str] = None) -> str:
    name = "host" if gpu is None else "gpu-" + re.sub(r"[^A-Za-z0-9-]", "_", gpu)
    return os.path.join(_state.folder(), name + ".lock")


class HostLock:
    """`acquire`, then `release`. gpus: only these of the host's; none: all of it. OSError where the folder cannot be
    made, or is not ours alone to write."""

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._host = _FileLock(path())
        self._gpus = [_FileLock(path(gpu)) for gpu in sorted(set(gpus))]

    def acquire(self, doing: str, run: Optional[str] = None) -> Optional[Json]:
        """None: it is ours now; with `run`, ours and that of whoever else holds it for the same run.
        Else who has it: {pid, user, client, host, doing, run, since_unix}."""
        who = self._host.acquire(doing, self._shared(run) if self._gpus else run)
        if who is not None:
            return _of_gpus() or who if who.get("run") == SETS else who
        for one in self._gpus:
            who = one.acquire(doing, run)
            if who is not None:
                self.release()
                return who
        return None

    @staticmethod
    def _shared(run: Optional[str]) -> Optional[str]:
        """Where our own run has the whole host, its part of that; else with all who have some GPUs."""
        who = _looked(path())
        ours = who is not None and run is not None and _whole(who.get("run")) == _whole(run)
        return run if ours else SETS

    def release(self) -> None:
        for one in reversed(self._gpus):
            one.release()
        self._host.release()


class _FileLock:
    """`acquire`, then `release`, of one file."""

    def __init__(self, where: str) -> None:
        self._path = where
        self._fd: Optional[int] = None

    def acquire(self, doing: str, run: Optional[str] = None) -> Optional[Json]:
        """As `HostLock.acquire`."""
        looks = 0
        while True:
            fd = _open(self._path)
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
    return None if shared and run is not None and _whole(who.get("run")) == _whole(run) else who


def _whole(run: Optional[str]) -> Optional[str]:
    """A playbook's bisection is a run of its own, and part of the playbook's: RUN.STEP."""
    return None if run is None else run.partition(".")[0]


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def holder() -> Optional[Json]:
    """Who has it now, or some of its GPUs; None when it is free. Writes nothing."""
    who = _looked(path())
    return _of_gpus() or who if who is not None and who.get("run") == SETS else who


def _of_gpus() -> Optional[Json]:
    """The first who has some GPUs: who wrote the host's file may have let go of it since."""
    try:
        names: List[str] = sorted(os.listdir(_state.folder()))
    except OSError:
        return None
    found = [_looked(os.path.join(_state.folder(), name)) for name in names if re.match(r"gpu-.*\.lock$", name)]
    return next((who for who in found if who is not None), None)


def _looked(where: str) -> Optional[Json]:
    try:
        fd = os.open(where, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
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


def _open(where: str) -> int:
    _state.private(_state.folder())
    return os.open(where, _FLAGS, 0o600)


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
