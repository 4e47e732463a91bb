"""The client's side of OpenSSH's connection sharing: sessions and TCP streams through a running `ssh -M`.

Spoken to the master's control socket directly, as `ssh -S` does. That tells apart what a process's exit status 255
cannot: the command's own status, a command that a signal ended, and a connection that has gone. It never opens a
connection of its own. Source: PROTOCOL.mux of OpenSSH, version 4 of the protocol (since OpenSSH 5.5).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION = 0x10000002
_ALIVE_CHECK = 0x10000004
_TERMINATE = 0x10000005
_STDIO_FORWARD = 0x10000008
_PERMISSION_DENIED = 0x80000002
_FAILURE = 0x80000003
_EXIT_MESSAGE = 0x80000004
_ALIVE = 0x80000005
_SESSION_OPENED = 0x80000006
_NO_ESCAPE_CHARACTER = 0xFFFFFFFF
_MAX_PACKET_BYTES = 256 * 1024


class MuxRefused(OSError):
    """The master, or the server behind it, would not do that; the text is its own."""


class MuxGone(OSError):
    """Nobody answers at the control socket any more: the connection has ended."""


class Session:
    """A command that runs on the server. `ended` is set when its status is known, or never will be."""

    def __init__(self, link: _Link) -> None:
        self.status: int | None = None
        self.ended = threading.Event()
        self._link = link
        link.socket.settimeout(None)
        threading.Thread(target=self._wait, name="diag-mux", daemon=True).start()

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                kind, _, rest = self._link.receive()
                if kind == _EXIT_MESSAGE:
                    # On the wire it is unsigned; no system has exit codes beyond 255.
                    self.status = struct.unpack(">I", rest[:4])[0] & 0xFF
                    break
        self.ended.set()

    def close(self) -> None:
        """Let go; the server ends the session."""
        with contextlib.suppress(OSError):
            self._link.socket.shutdown(socket.SHUT_RDWR)
        self._link.socket.close()


def session(path: Path, command: str, descriptors: Sequence[int], timeout_s: float) -> Session:
    """Run a command with (stdin, stdout, stderr), which the master gets copies of.

    Raises MuxGone, MuxRefused, TimeoutError.
    """
    link = _Link(path, timeout_s)
    try:
        flags = struct.pack(">4I", 0, 0, 0, 0)  # no terminal, no X11, no agent, no subsystem
        link.ask(_NEW_SESSION, _text("") + flags + struct.pack(">I", _NO_ESCAPE_CHARACTER) + _text("") + _text(command))
        link.hand_over(descriptors)
        link.expect(_SESSION_OPENED)
    except BaseException:
        link.socket.close()
        raise
    return Session(link)


def forward(path: Path, host: str, port: int, descriptors: Sequence[int], timeout_s: float) -> socket.socket:
    """Join (stdin, stdout) to host:port as seen from the server; the stream ends when the returned socket is closed.

    Raises MuxGone, MuxRefused ("Connection refused", say), TimeoutError.
    """
    link = _Link(path, timeout_s)
    try:
        link.ask(_STDIO_FORWARD, _text("") + _text(host) + struct.pack(">I", port))
        link.hand_over(descriptors)
        link.expect(_SESSION_OPENED)
    except BaseException:
        link.socket.close()
        raise
    return link.socket


def master_pid(path: Path, timeout_s: float) -> int:
    with contextlib.closing(_Link(path, timeout_s)) as link:
        link.ask(_ALIVE_CHECK, b"")
        return int(struct.unpack(">I", link.expect(_ALIVE)[:4])[0])


def terminate(path: Path, timeout_s: float) -> None:
    """Ask the master to end. Raises MuxGone when it has."""
    with contextlib.closing(_Link(path, timeout_s)) as link:
        link.ask(_TERMINATE, b"")
        with contextlib.suppress(MuxGone):
            link.receive()


class Presence:
    """An idle connection to the master: it keeps the master alive (ControlPersist counts such connections), ends with
    this process however that ends, and shows at once when the master has gone."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._link = _Link(path, timeout_s)
        self._link.socket.settimeout(None)
        self.gone = threading.Event()
        threading.Thread(target=self._wait, name="diag-mux", daemon=True).start()

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._link.receive()
        self.gone.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._link.socket.shutdown(socket.SHUT_RDWR)
        self._link.socket.close()


class _Link:
    """One connection to the control socket: packets of a length and a body, which begins with its kind."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(str(path))
            self._send(struct.pack(">II", _HELLO, VERSION))
            body = self._packet()
            if len(body) < 8 or struct.unpack(">II", body[:8]) != (_HELLO, VERSION):
                raise MuxRefused("the master speaks another version of the protocol")
        except TimeoutError:
            self.socket.close()
            raise
        except MuxRefused:
            self.socket.close()
            raise
        except OSError as error:
            self.socket.close()
            raise MuxGone(str(error)) from None

    def close(self) -> None:
        self.socket.close()

    def ask(self, kind: int, rest: bytes) -> None:
        self._send(struct.pack(">II", kind, 1) + rest)

    def hand_over(self, descriptors: Sequence[int]) -> None:
        for descriptor in descriptors:
            socket.send_fds(self.socket, [b"\0"], [descriptor])

    def expect(self, wanted: int) -> bytes:
        """The rest of the answer. MuxRefused with the master's words when it is another."""
        kind, _, rest = self.receive()
        if kind == wanted:
            return rest
        if kind in (_PERMISSION_DENIED, _FAILURE):
            size = struct.unpack(">I", rest[:4])[0]
            raise MuxRefused(rest[4 : 4 + size].decode("utf-8", "backslashreplace"))
        raise MuxRefused(f"an answer of kind {kind:#x}, which nobody asked for")

    def receive(self) -> tuple[int, int, bytes]:
        """(kind, request or session, rest)"""
        body = self._packet()
        if len(body) < 8:
            raise MuxGone("a packet without a kind")
        kind, number = struct.unpack(">II", body[:8])
        return kind, number, body[8:]

    def _send(self, body: bytes) -> None:
        try:
            self.socket.sendall(struct.pack(">I", len(body)) + body)
        except (BrokenPipeError, ConnectionError) as error:
            raise MuxGone(str(error)) from None

    def _packet(self) -> bytes:
        size = struct.unpack(">I", self._exactly(4))[0]
        if size > _MAX_PACKET_BYTES:
            raise MuxGone(f"a packet of {size} bytes")
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise MuxGone("the control socket was closed")
            data += more
        return data


def _text(value: str) -> bytes:
    data = os.fsencode(value)
    return struct.pack(">I", len(data)) + data
