"""Files of a transaction: each operation on the disk by itself, so that a test can stop after any of them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from typing import Any, Callable, Dict, List, Optional

Json = Dict[str, Any]

FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE = 0o600


class Refused(Exception):
    """An expected failure: kind as in diag/errors.py, what happened, what to do."""

    def __init__(self, kind: str, what: str, next: str = "", details: Optional[List[str]] = None) -> None:
        super().__init__(what)
        self.error: Json = {"kind": kind, "what": what, "next": next, "details": details or []}


def os_refused(error: OSError) -> Refused:
    advice = {
        errno.ENOSPC: "Free some space there and run it again.",
        errno.EDQUOT: "Free some of the quota there and run it again.",
        errno.EROFS: "It is on a file system mounted read-only.",
        errno.EFBIG: "Raise the limit of file sizes (ulimit -f) of this account.",
        errno.EBUSY: "It is mounted there by itself (a container's volume): change it where it comes from.",
        errno.ENOENT: "Reinstall the package.",
    }.get(error.errno or 0, "Use a user of the host who may do that there; or set `sudo = true` in the inventory.")
    return Refused("precondition", "{}: {}.".format(error.filename or "A file", error.strerror), advice)


class Ops:
    """All that changes the disk goes through here, one operation a call. A test overrides `did` to crash after
    the k-th, or a single operation to fail."""

    def __init__(self) -> None:
        self.names: Dict[int, str] = {}

    def did(self, name: str) -> None:
        """Called after each operation."""

    def _do(self, name: str, act: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            answer = act(*args, **more)
        except OSError as error:
            if error.filename is None:  # of a write or a sync: the message must name the file
                error.filename = self.names.get(args[0])
            raise
        self.did(name)
        return answer

    def folder(self, path: str) -> None:
        self._do("folder", os.mkdir, path, 0o700)

    def create(self, path: str, flags: int = os.O_EXCL | os.O_WRONLY) -> int:
        fd = int(self._do("create", os.open, path, os.O_CREAT | flags | FLAGS, PRIVATE))
        self.names[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._do("write", os.write, fd, view) :]

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate", os.ftruncate, fd, size)

    def sync(self, fd: int) -> None:
        self._do("sync", os.fsync, fd)

    def like(self, path: str, model: str, mtime_ns: Optional[int]) -> None:
        """Owner, mode and extended attributes of `model`; its time too, or the one given."""
        old, new = os.stat(model), os.stat(path)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            self._do("owner", os.chown, path, old.st_uid, old.st_gid)
        self._do("attributes", shutil.copystat, model, path)
        if mtime_ns is not None:
            self._do("time", os.utime, path, ns=(mtime_ns, mtime_ns))

    def rename(self, old: str, new: str) -> None:
        self._do("rename", os.replace, old, new)

    def remove(self, path: str) -> None:
        if os.path.lexists(path):
            self._do("remove", os.unlink, path)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY)
        self.names[fd] = path
        try:
            self.sync(fd)
        finally:
            os.close(fd)


def put(ops: Ops, path: str, content: bytes, model: str, mtime_ns: Optional[int]) -> None:
    """A new file with this content and the attributes of `model`, durable."""
    fd = ops.create(path)
    try:
        ops.write(fd, content)
        ops.like(path, model, mtime_ns)
        ops.sync(fd)
    finally:
        os.close(fd)
    ops.sync_folder(os.path.dirname(path))


def bytes_of(path: str) -> Optional[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read()


def sha256_of(path: str) -> Optional[str]:
    """sha256 in hex; None for a missing file; a text that equals no hash for one that cannot be read (a link)."""
    try:
        data = bytes_of(path)
    except OSError as error:
        return "unreadable ({})".format(error.strerror)
    return None if data is None else hashlib.sha256(data).hexdigest()


def drop_bytecode(ops: Ops, path: str) -> None:
    """Stale .pyc files of this module: they are judged by time and size, which a careful revert can restore."""
    cache = os.path.join(os.path.dirname(path), "__pycache__")
    stem = os.path.splitext(os.path.basename(path))[0] + "."
    names = os.listdir(cache) if os.path.isdir(cache) and not os.path.islink(cache) else []
    for name in names:
        if name.startswith(stem) and name.endswith(".pyc"):
            ops.remove(os.path.join(cache, name))
