"""A TCP stream from here, for a laptop that has only an exec (a container without a network of its own)."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Dict, Mapping

if TYPE_CHECKING:
    from ._wire import Talk

CHUNK = 65536


def run(args: Mapping[str, Any], talk: Talk) -> Dict[str, Any]:
    """args: host, port, timeout_s. event: connected; after the next message from the laptop both directions are bare
    bytes, and there is no end record. Not connected: {"refused": why, "timed_out": bool}."""
    address = (str(args["host"]), int(args["port"]))
    try:
        peer = socket.create_connection(address, float(args["timeout_s"]))
    except OSError as error:
        return {"refused": str(error), "timed_out": isinstance(error, socket.timeout)}
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    talk.emit({"event": "connected"})
    try:
        talk.receive(None)
    except EOFError:
        os._exit(0)
    # What has come behind that message is bytes already.
    threading.Thread(target=_copy_up, args=(talk._pending, talk._read_fd, peer), daemon=True).start()
    _copy_down(peer, talk._write_fd)
    os._exit(0)


def _copy_up(first: bytes, read_fd: int, peer: socket.socket) -> None:
    try:
        peer.sendall(first)
        while True:
            data = os.read(read_fd, CHUNK)
            if not data:
                break
            peer.sendall(data)
    except OSError:
        pass
    os._exit(0)  # the laptop has hung up, or is gone: a server that keeps its side open must not keep us


def _copy_down(peer: socket.socket, write_fd: int) -> None:
    try:
        while True:
            view = memoryview(peer.recv(CHUNK))
            if not view:
                return
            while view:
                view = view[os.write(write_fd, view) :]
    except OSError:
        return
