"""Which port a server gets, and whose it is.

A server binds its port minutes after it was started, so a port that nobody listens on may be given away already, and
one that was ours to give may be taken meanwhile.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import time
from typing import Iterable, List, Optional

from . import _proc

PORTS = range(20000, 32000)
# What listens for a container: its engine is nobody's child whom we started, and yet it may be ours.
_FORWARDERS = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "conmon")


class Taken(Exception):
    """That port cannot be given away; the lines tell who holds it."""


class Reservation:
    """No other diag gives this port away while this is held: not in this network, whatever namespace of processes or
    container it is in. The name is an abstract one, which the kernel frees with its holder, however that ends."""

    def __init__(self, port: int) -> None:
        """port: 0 for one that is drawn. Raises Taken, and OSError where none of many is free."""
        self._name: Optional[socket.socket] = None
        self.port = port or self._draw()
        if port and not self._reserve(port):
            raise Taken("Another diag on this host has given it to a server that is still starting.")
        if port and not _proc.port_is_free(port):
            self.release()
            raise Taken(*(told(holders(port)) or ["Who holds it cannot be seen by this user."]))

    def _draw(self) -> int:
        """A port that nobody listens on, below those that the kernel hands out itself.

        Engines take more ports, counted from the one that they are given: SGLang 0.5.12 adds 10000 for gRPC, and does
        not start where that is no port at all.
        """
        for _ in range(100):
            port = random.randrange(PORTS.start, PORTS.stop)
            if self._reserve(port):
                if _proc.port_is_free(port):
                    return port
                self.release()
        raise OSError("none of 100 ports from {} to {} is free".format(PORTS.start, PORTS.stop - 1))

    def _reserve(self, port: int) -> bool:
        """False if another holds it. True also where the system has no such names: then nothing is promised."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind("\0diag-port-{}".format(port))
        except OSError as error:
            name.close()
            return error.errno != errno.EADDRINUSE
        self._name = name
        return True

    def release(self) -> None:
        if self._name is not None:
            self._name.close()
            self._name = None


def holders(port: int) -> List[_proc.Process]:
    """Who listens there, as far as we may see."""
    if _proc.HAS_PROC:
        inodes = {inode for inode, (_, bound) in _proc.listening().items() if bound == port}
        return [each for each in _proc.processes() if inodes & _proc.sockets(each.pid)] if inodes else []
    pids = _proc.command(["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"], 5)[0].split()
    return [process for process in _proc.processes() if str(process.pid) in pids]


def strangers(found: Iterable[_proc.Process], ours: Iterable[_proc.Process]) -> List[_proc.Process]:
    """Those of `found`, who listen at one port, if none of ours is among them, nor one that may listen for a
    container of ours. Empty is no proof: where nobody can be seen there is none."""
    listening = list(found)
    mine = {process.key for process in ours}
    if any(process.key in mine or _is_containers(process) for process in listening):
        return []
    return listening


def _is_containers(process: _proc.Process) -> bool:
    """In a namespace of processes of its own, or unreadable; or a program that forwards to one."""
    try:
        apart = os.readlink(f"/proc/{process.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return True
    return apart or os.path.basename(process.argv[0] if process.argv else "") in _FORWARDERS


def told(found: Iterable[_proc.Process]) -> List[str]:
    return [f"pid {process.pid}: {' '.join(_proc.hide_argv(process.argv))}" for process in found]


def becomes_free(port: int) -> bool:
    """Within two seconds."""
    for _ in range(20):
        if _proc.port_is_free(port):
            return True
        time.sleep(0.1)
    return False
