"""A folder that lives as long as one run: locked by its owner, removed by it, or by the next one who looks.

    <root>/<kind>/<name>/        what was put there
    <root>/<kind>/<name>.lock    locked (flock) while its owner lives; its text: JSON, what the removal must know

The lock's file is written, and on disk, before the folder is made. The kernel drops the lock however the owner ends, so
what is not locked is nobody's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import _proc

Json = Dict[str, Any]
Undo = Callable[[str, Mapping[str, Any]], None]

CLAIM_S = 120.0  # an earlier session of this run may not have seen yet that its laptop is gone
QUIET_S = 40.0


class Refused(Exception):
    """An expected failure, as the document of a probe tells it."""

    def __init__(self, what: str, next: str = "", details: Optional[List[str]] = None, kind: str = "precondition"):
        super().__init__(what)
        self.document = {"error": {"kind": kind, "what": what, "next": next, "details": details or []}}


def root(given: Optional[str] = None) -> str:
    """The folder that all of ours lie in; made, and this user's alone."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = given or os.path.join(home, "diag")
    private(path)
    return path


def private(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise Refused(
            "{} is not a folder that only this user may write to.".format(path),
            "Look at who made it; then: chmod 700 (or remove it).",
        )


def refusal(error: OSError) -> Json:
    """What a disk that does not do as it should is told as."""
    what = "{}: {}".format(error.filename or "The folder of the run", error.strerror or error)
    next = "Look at the disk and the rights of this user; XDG_CACHE_HOME in the host's `env` names another folder."
    return Refused(what, next).document


class Held:
    """Claimed on entering the `with`, removed on leaving it. note: what the removal must know; undo does it."""

    def __init__(self, top: str, kind: str, name: str, note: Mapping[str, Any], undo: Undo) -> None:
        if not re.fullmatch(r"[\w.:-]+", name) or name.startswith("."):
            raise Refused("The run id {!r} cannot be the name of a folder.".format(name), kind="usage")
        self.kind_folder = os.path.join(top, kind)
        private(self.kind_folder)
        self.folder = os.path.join(self.kind_folder, name)
        self.lock = self.folder + ".lock"
        self.note, self.undo, self.name = note, undo, name

    def __enter__(self) -> Held:
        deadline = time.monotonic() + CLAIM_S
        while True:
            self.fd = _locked(self.lock, os.O_CREAT)
            if self.fd is not None:
                break
            if time.monotonic() > deadline:
                raise Refused(
                    "Another diag is at work on run {} on this host.".format(self.name),
                    "Wait until it has ended; see: diag runs list",
                )
            time.sleep(0.2)
        _clear(self.folder, self.fd, self.undo)  # of an earlier session that was killed
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(self.note).encode(), 0)
        os.fsync(self.fd)
        sync(self.kind_folder)
        os.mkdir(self.folder, 0o700)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            _remove(self.folder, self.lock, self.fd, self.undo)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def sweep(top: str, kind: str, undo: Undo) -> List[str]:
    """Remove what dead owners left; the names of their runs."""
    kind_folder = os.path.join(top, kind)
    gone: List[str] = []
    for name in sorted(os.listdir(kind_folder)) if os.path.isdir(kind_folder) else []:
        if not name.endswith(".lock"):
            continue
        path = os.path.join(kind_folder, name)
        fd = _locked(path, 0)
        if fd is not None:
            _remove(path[: -len(".lock")], path, fd, undo)
            gone.append(name[: -len(".lock")])
    return gone


def _locked(path: str, flags: int) -> Optional[int]:
    """The lock's file, held; None where somebody else holds it, or removed it in this moment."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            os.close(fd)
            error.filename = path  # a file system without locks, for one
            raise
    os.close(fd)
    return None


def _clear(folder: str, fd: int, undo: Undo) -> None:
    try:
        note = json.loads(os.pread(fd, 1 << 16, 0).decode() or "{}")
    except ValueError:  # torn: nothing was made yet
        note = {}
    if note:
        undo(folder, note)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        raise Refused("{} cannot be removed.".format(folder), "Look at what holds it, and remove it by hand.")


def _remove(folder: str, lock: str, fd: int, undo: Undo) -> None:
    try:
        _clear(folder, fd, undo)
        os.unlink(lock)
    finally:
        os.close(fd)


def sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def quiet(mark: str, limit_s: float = QUIET_S) -> bool:
    """Wait until nothing that carries this run's mark runs any more: it may still read what is to be removed."""
    deadline = time.monotonic() + limit_s
    while True:
        table = _proc.processes(False)
        alive = _proc.marked(mark, [p.pid for p in table if p.state not in "ZX" and p.pid != os.getpid()])
        if not alive or time.monotonic() > deadline:
            return not alive
        time.sleep(0.2)


def messages(talk: Any, lease_s: float) -> Any:
    """Each message that is not a ping, until the laptop says stop, is gone, or is silent for `lease_s` seconds."""
    while True:
        try:
            message = talk.receive(lease_s)
        except EOFError:
            return
        if message is None or message.get("cmd") == "stop":
            return
        if message.get("cmd") != "ping":
            yield message
