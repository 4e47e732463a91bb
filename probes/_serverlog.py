"""What a server says: the end of it in memory, and in two files of bounded size for whoever comes after us.

The server writes to a pipe, so nothing that happens to the files (a full disk, a folder that is gone) reaches it.
The files go with the supervisor; one that was killed leaves them, and then they are all that tells what happened.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from typing import List, Optional, Set

from . import _proc, _state

MEMORY_BYTES = 8 << 20
FILE_BYTES = 4 << 20
LINE_CHARS = 2000
OLD_S = 7 * 86400.0
# The last line of a traceback, or of a log: at the beginning of a line, or behind a level, a time, a process's name.
_ERROR = re.compile(rb"(?:^|[\]) ])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): [^\r\n]+)", re.M)

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def files(run_id: str) -> List[str]:
    """Of that run, the older one first; they need not exist."""
    path = os.path.join(_state.folder(), "logs", run_id + ".log")
    return [path + ".1", path]


def remove(run_id: str) -> None:
    for path in files(run_id):
        with contextlib.suppress(OSError):
            os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


class Log:
    """The last MEMORY_BYTES of a server's output, drained by a thread so that the server never blocks."""

    def __init__(self, hidden: Set[str], run_id: Optional[str] = None) -> None:
        """hidden: values of secrets. run_id: also kept in `files` of that name, from `drain` on."""
        self.hidden = hidden
        self._run_id = run_id
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def drain(self, server: subprocess.Popen[bytes]) -> None:
        self._thread = threading.Thread(target=self._drain, args=(server,), daemon=True)
        self._thread.start()

    def _drain(self, server: subprocess.Popen[bytes]) -> None:
        if server.stdout is None:
            return
        written = _Files(self._run_id, self.hidden)
        with server.stdout as pipe:
            while True:
                chunk = os.read(pipe.fileno(), 1 << 16)
                written.add(chunk)
                if not chunk:
                    return
                self.add(chunk)

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self._kept += chunk
            if len(self._kept) > MEMORY_BYTES:
                del self._kept[: len(self._kept) - MEMORY_BYTES // 2]

    def last(self, lines: int) -> List[str]:
        """The last non-empty lines as a terminal shows them (what follows the last \\r), secrets hidden."""
        with self._lock:
            kept = bytes(self._kept[-max(lines, 1) * LINE_CHARS :])
        shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in kept.split(b"\n"))
        full = [line for line in shown if line.strip()]
        return [_proc.hide(_proc.text(line[:LINE_CHARS]), self.hidden) for line in full[max(0, len(full) - lines) :]]

    def told(self, lines: int) -> List[str]:
        """As `last`; before that "first error: ...", where the first one that is kept is not among them. Of engines
        with several processes the last lines only say that another one has failed."""
        tail = self.last(lines)
        with self._lock:
            found = _ERROR.search(self._kept)
            first = b"" if found is None else bytes(found.group(1)[:LINE_CHARS])
        shown = _proc.hide(_proc.text(first.rstrip()), self.hidden)
        return tail if not shown or any(shown in line for line in tail) else ["first error: " + shown, *tail]

    def matching(self, pattern: str) -> List[str]:
        """Those lines of what is kept that a regular expression finds something in, whatever the case."""
        with self._lock:
            found = re.findall(rb"^.*(?:" + pattern.encode() + rb").*$", bytes(self._kept), re.M | re.I)
        return [_proc.hide(_proc.text(line.strip()[:LINE_CHARS]), self.hidden) for line in found]

    def close(self) -> None:
        """Wait for the last lines; the pipe ends with the last process of the server. The files go."""
        if self._thread is not None:
            self._thread.join(2)
        if self._run_id is not None:
            remove(self._run_id)


class _Files:
    """At most twice FILE_BYTES. What cannot be written is not: a log is not worth a run."""

    def __init__(self, run_id: Optional[str], hidden: Set[str]) -> None:
        self._hidden = [value.encode("utf-8", "surrogateescape") for value in sorted(hidden, key=len, reverse=True)]
        self._paths = [] if run_id is None else files(run_id)
        self._fd: Optional[int] = None
        self._size = 0
        self._begun = b""
        if self._paths:
            self._open()

    def _open(self) -> None:
        folder = os.path.dirname(self._paths[1])
        with contextlib.suppress(OSError):
            _state.private(_state.folder())
            _state.private(folder)
            for entry in os.scandir(folder):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > OLD_S:
                    os.unlink(entry.path)
            self._fd, self._size = os.open(self._paths[1], _FLAGS, 0o600), 0

    def add(self, chunk: bytes) -> None:
        """Whole lines, so that no secret is cut in two and missed; b"": no more comes."""
        if self._fd is None:
            return
        whole, newline, self._begun = (self._begun + chunk).rpartition(b"\n")
        if not chunk or len(self._begun) > 32 * LINE_CHARS:
            whole, newline, self._begun = whole + newline + self._begun, b"", b""
        for value in self._hidden:
            whole = whole.replace(value, b"***")
        self._write(self._fd, whole + newline)

    def _write(self, fd: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._size += os.write(fd, data)
        if self._size > FILE_BYTES:
            os.close(fd)
            self._fd = None
            with contextlib.suppress(OSError):
                os.replace(self._paths[1], self._paths[0])
            self._open()
