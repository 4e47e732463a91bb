"""What a fix did on this host, written down before it is done; and the lock that lets one operator in at a time."""

from __future__ import annotations

import errno
import fcntl
import getpass
import hashlib
import json
import os
import pwd
import socket
import stat
import time
from typing import Any, Dict, List, Optional, Tuple

from . import _proc
from ._fixfiles import FLAGS, PRIVATE, Ops, Refused, bytes_of

Json = Dict[str, Any]

LOCK_WAIT_S = 5.0
GONE_S = 1.0  # and this much more, where the holder cannot be seen: it may be leaving


def state_dir() -> str:
    home = os.path.expanduser("~")
    if "SUDO_UID" in os.environ:  # some sudoers keep the caller's HOME
        home = pwd.getpwuid(os.geteuid()).pw_dir
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return os.path.join(state, "diag", "fixes")


def open_state_dir(ops: Ops) -> str:
    """Make it, ours alone; a link or a folder that others may write to is refused."""
    path = state_dir()
    diag = os.path.dirname(path)
    os.makedirs(os.path.dirname(diag), mode=0o700, exist_ok=True)
    for folder in (diag, path):
        try:
            ops.folder(folder)
            ops.sync_folder(os.path.dirname(folder))
        except FileExistsError:
            pass
        check_private(folder)
    return path


def check_private(folder: str) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Refused(
            "precondition",
            "{} is not a folder that is this user's alone.".format(folder),
            "Look at who made it; then: chmod 700 (or remove it).",
        )


def clock() -> Json:
    """Now. time: Unix, which anyone may set; up: seconds since the start of the machine, by a clock that nobody
    sets; boot: which start that was, and the time namespace that `up` is counted in; null where there is none."""
    up = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    boot = _proc.read("/proc/sys/kernel/random/boot_id", 64)  # sysctls refuse large reads
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        namespace = ""
    return {"time": time.time(), "up": up, "boot": boot and [_proc.text(boot).strip(), namespace]}


class Journal:
    """The history of one fix in one site-packages folder. `last` is the latest transaction: its intent and marks."""

    def __init__(self, folder: str, fix: str, site: str) -> None:
        key = hashlib.sha256(os.path.realpath(site).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.folder = folder
        self.path = os.path.join(folder, "{}-{}.journal".format(fix, key))
        self.records, self.valid_bytes = records_of(self.path)

    @property
    def last(self) -> Tuple[Optional[Json], List[Json]]:
        begun = [at for at, record in enumerate(self.records) if record["do"] == "intent"]
        return (self.records[begun[-1]], self.records[begun[-1] + 1 :]) if begun else (None, [])

    def marks(self) -> List[str]:
        return [record["do"] for record in self.last[1]]

    def outstanding(self) -> Optional[Json]:
        """The intent of a transaction that did not end."""
        intent, _ = self.last
        return None if {"committed", "rolled_back"} & set(self.marks()) else intent

    def applied(self) -> Optional[Json]:
        """The intent whose new files are in place, by the journal."""
        found = None
        for at, record in enumerate(self.records):
            if record["do"] == "committed":
                intent = next(back for back in reversed(self.records[:at]) if back["do"] == "intent")
                found = intent if intent["act"] == "apply" else None
        return found

    def changes(self) -> List[Json]:
        """Each time that files were renamed: {first, last: the marks around it (last: null while it is outstanding),
        old, new: {path: sha256}}. One that was rolled back left the old content."""
        found: List[Json] = []
        intent: Json = {}
        for record in self.records:
            if record["do"] == "intent":
                intent = record
            elif record["do"] == "committing":
                old, new = ({each["path"]: each[side] for each in intent["files"]} for side in ("pre", "post"))
                found.append({"id": intent["id"], "first": record, "last": None, "old": old, "new": new})
            elif record["do"] in ("committed", "rolled_back") and found and found[-1]["id"] == intent["id"]:
                found[-1]["last"] = record
                if record["do"] == "rolled_back":
                    found[-1]["new"] = found[-1]["old"]
        return found

    def add(self, ops: Ops, record: Json) -> None:
        new = not os.path.lexists(self.path)
        fd = ops.create(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(fd).st_size > self.valid_bytes:  # a torn last record
                ops.truncate(fd, self.valid_bytes)
            record = dict(record, **clock())
            line = line_of(record)
            ops.write(fd, line)
            ops.sync(fd)
        finally:
            os.close(fd)
        if new:
            ops.sync_folder(self.folder)
        self.records.append(record)
        self.valid_bytes += len(line)

    def backup(self, intent: Json, at: int) -> str:
        return os.path.join(self.folder, "{}.{}.{}.orig".format(os.path.basename(self.path), intent["id"], at))


def line_of(record: Json) -> bytes:
    body = json.dumps(record, sort_keys=True).encode()
    return b"%d %s %s\n" % (len(body), hashlib.sha256(body).hexdigest().encode(), body)


def records_of(path: str) -> Tuple[List[Json], int]:
    """The records, and how many bytes they take. A torn last one is left out: it announced nothing yet."""
    found: List[Json] = []
    size = 0
    lines = (bytes_of(path) or b"").splitlines(keepends=True)
    for line in lines:
        length, _, rest = line.partition(b" ")
        digest, _, body = rest[:-1].partition(b" ")
        whole = line.endswith(b"\n") and length == str(len(body)).encode()
        if not whole or digest != hashlib.sha256(body).hexdigest().encode():
            break
        found.append(json.loads(body.decode()))
        size += len(line)
    if len(found) < len(lines) - 1:
        raise Refused(
            "precondition",
            "The journal {} is damaged at byte {}.".format(path, size),
            "Compare the package with its wheel by hand; the backups lie beside the journal.",
        )
    return found, size


class Lock:
    """flock on a file of ours and on the package's folder (for an operator with another home). The kernel drops
    both when this process ends, however it ends."""

    def __init__(self, folder: str, package_folder: str) -> None:
        self.fds = [os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | FLAGS, PRIVATE)]
        if os.path.isdir(package_folder):
            self.fds.append(os.open(package_folder, os.O_RDONLY))
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            # In this order, and never the second without the first: two who hold one each would wait for each other.
            taken = next((at for at, fd in enumerate(self.fds) if not _try_lock(fd)), None)
            if taken is None:
                break
            late, who = time.monotonic() - deadline, None
            if late > 0:
                who = _holder_of(package_folder) if taken else holder(folder)
            if who is not None or late > GONE_S:
                self.release()
                raise busy(who or {})
            time.sleep(0.05)
        who = dict(operator(), pid=os.getpid(), since_unix=time.time(), host=socket.gethostname())
        try:
            os.ftruncate(self.fds[0], 0)
            os.pwrite(self.fds[0], json.dumps(who).encode(), 0)
        except OSError as error:
            self.release()
            error.filename = os.path.join(folder, "lock")
            raise

    def release(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # else: no locks on this file system
    return True


def busy(who: Json) -> Refused:
    since = who.get("since_unix")
    when = "" if since is None else " since {} ({:.0f} s)".format(_proc.utc(since), time.time() - since)
    return Refused(
        "precondition",
        "Another operator, {}, is changing this installation{}.".format(who.get("user") or "not known", when),
        "Wait until that has ended, and run it again. If it hangs, end process {}.".format(who.get("pid")),
        ["{}: {}".format(name, who[name]) for name in sorted(who)],
    )


def holder(folder: str) -> Optional[Json]:
    """Who holds the lock now, as they wrote it down; None when it is free."""
    path = os.path.join(folder, "lock")
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        seen = _holder_of(path)
        try:
            wrote = dict(json.loads(os.pread(fd, 4096, 0).decode()))
        except ValueError:
            wrote = {}
        # One who has just got it has not yet written, and the text is of the one before.
        return wrote if wrote and (seen is None or seen["pid"] == wrote.get("pid")) else seen or {"pid": "unknown"}
    finally:
        os.close(fd)


def _holder_of(path: str) -> Optional[Json]:
    """Who has an flock on it, by the kernel; None where that cannot be seen."""
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return None
    for line in _proc.text(_proc.read("/proc/locks") or b"").splitlines():
        word = line.split()
        if "FLOCK" in word and "WRITE" in word and word[5].endswith(":{}".format(inode)) and word[4] != "0":
            since = [_proc.started_unix(each) for each in _proc.processes(False) if each.pid == int(word[4])]
            return {"pid": int(word[4]), "user": _owner(word[4]), "since_unix": since[0] if since else None}
    return None


def _owner(pid: str) -> Optional[str]:
    try:
        return pwd.getpwuid(os.stat("/proc/" + pid).st_uid).pw_name
    except (OSError, KeyError):
        return None


def operator() -> Json:
    return {"user": user(), "client": os.environ.get("SSH_CLIENT", "").split(" ")[0]}


def user() -> str:
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except Exception:
        return str(os.geteuid())
