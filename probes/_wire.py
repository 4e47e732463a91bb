"""Host side of the wire (docs/host-protocol.md): records to the laptop, JSON lines from it."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import zlib
from typing import Any, Callable, Dict, List, Optional

STALLED_S = 30.0  # a laptop that takes nothing for this long is gone


class TimeLimit(BaseException):
    """The laptop's limit for this call has passed. Not an Exception, so that no probe swallows it."""


def record(kind: str, document: Dict[str, Any]) -> bytes:
    """One record: "\\x1e<kind> <length> <sha256 of the body>\\n" and the zlib-compressed JSON body."""
    body = zlib.compress(json.dumps(document).encode("ascii"))
    return b"\x1e%s %d %s\n%s" % (kind.encode("ascii"), len(body), hashlib.sha256(body).hexdigest().encode(), body)


class Talk:
    """A probe's line to the laptop. `emit` may be called from any thread, `receive` from one."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lock = threading.Lock()
        self._pending = b""
        self._ended = False  # stdin: the laptop says no more, but may still read
        self._broken = False  # stdout: nobody reads

    def emit(self, event: Dict[str, Any]) -> None:
        """Send a progress record at once. Never raises for a lost laptop: the next `receive` says so."""
        self._send(record("event", event))

    def end(self, document: Dict[str, Any]) -> None:
        self._send(record("end", document))

    def receive(self, timeout_s: Optional[float]) -> Optional[Dict[str, Any]]:
        """The next message, or None after timeout_s seconds. EOFError: the laptop is gone."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._ended or self._broken:
                raise EOFError("the laptop is gone")
            if not select.select([self._read_fd], [], [], left)[0]:
                return None
            data = self._read()
            self._ended = not data
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        return self._message(line)

    @staticmethod
    def _message(line: bytes) -> Dict[str, Any]:
        try:
            message = json.loads(line.decode("utf-8"))
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ValueError("not a message from the laptop: {!r}".format(line[:80]))
        return message

    def _read(self) -> bytes:
        try:
            return os.read(self._read_fd, 65536)
        except OSError:  # ECONNRESET where stdin is a socket
            return b""

    def _send(self, data: bytes) -> None:
        with self._lock:
            view = memoryview(data)
            while view and not self._broken:
                # Small pieces after select do not block, so a dead link cannot stop a supervisor here.
                try:
                    if select.select([], [self._write_fd], [], STALLED_S)[1]:
                        view = view[os.write(self._write_fd, view[: select.PIPE_BUF]) :]
                        continue
                except OSError:
                    pass
                self._broken = True


def _private_streams() -> Talk:
    """Take stdin and stdout for the wire; prints of ours and of any child go to stderr."""
    talk = Talk(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return talk


def _arm(limit_s: Optional[float]) -> None:
    """An orphan must not outlive its call: the limit holds on this side too."""
    if limit_s is None:
        return

    def passed(signum: int, frame: Any) -> None:
        raise TimeLimit("not done within {:g} s".format(limit_s))

    signal.signal(signal.SIGALRM, passed)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def failure(kind: str, what: str, next: str = "", details: Optional[List[str]] = None) -> Dict[str, Any]:
    """The document of an expected failure; `kind` is one of diag/errors.py."""
    return {"error": {"kind": kind, "what": what, "next": next, "details": details or []}}


def guarded(run: Callable[[Dict[str, Any], Talk], Dict[str, Any]], args: Dict[str, Any], talk: Talk) -> Dict[str, Any]:
    """run(args, talk), where whatever is raised becomes a document with the traceback's last lines."""
    try:
        document = run(args, talk)
        if not isinstance(document, dict):
            raise TypeError("the probe returned {}, not a dict".format(type(document).__name__))
        json.dumps(document)
        return document
    except BaseException as error:
        import traceback  # a fifth of what the interpreter takes to start, and rarely of use

        lines = traceback.format_exc().splitlines()
        what = "{}: {}".format(type(error).__name__, error)
        return failure("host_program_failed", what, details=lines[-30:])


def serve(request: Dict[str, Any]) -> None:
    """Run one request {"module", "args", "env", "limit_s"} and send its end record."""
    talk = _private_streams()
    os.environ.update(request.get("env") or {})

    def run(args: Dict[str, Any], talk: Talk) -> Dict[str, Any]:
        _arm(request.get("limit_s"))
        package = __name__.split(".")[0]
        module = importlib.import_module(package + "." + request["module"])
        document: Dict[str, Any] = module.run(args, talk)
        return document

    document = guarded(run, request["args"], talk)
    signal.setitimer(signal.ITIMER_REAL, 0)
    talk.end(document)
    sys.stderr.flush()
