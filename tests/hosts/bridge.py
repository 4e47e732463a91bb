"""A network link with a delay, that can be cut: two network namespaces joined by a pair of TUN devices.

The kernel here has no netem; a small program of ours carries the packets from one device to the other. Root only.

    with Bridge(delay_s=0.02) as bridge:
        process = bridge.popen([...])          # in the server's namespace, at bridge.address
        bridge.run(lambda: connect(...))       # in the client's; threads begun there stay there
        bridge.cut()
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_CLONE_NEWNET = 0x40000000
CLIENT, SERVER = "10.77.0.1", "10.77.0.2"


def possible() -> bool:
    return os.geteuid() == 0 and Path("/dev/net/tun").exists() and all(map(shutil.which, ("ip", "nsenter")))


def enter(namespace: str) -> None:
    """This thread, and those that it starts from now on, are in that network namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(descriptor)


class Bridge:
    def __init__(self, delay_s: float = 0.0, addresses: int = 0) -> None:
        """delay_s: one way. addresses: so many further ones of the server, 10.77.1.1 and so on."""
        self.address = SERVER
        self.more = [f"10.77.{1 + at // 250}.{1 + at % 250}" for at in range(addresses)]
        self._delay_s = delay_s
        name = uuid.uuid4().hex[:8]
        self.client, self.server = f"diag-c-{name}", f"diag-s-{name}"
        self._carrier: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Bridge:
        try:
            for namespace in (self.client, self.server):
                _ip("netns", "add", namespace)
                _ip("-n", namespace, "link", "set", "lo", "up")
            self._carrier = subprocess.Popen(
                [sys.executable, __file__, self.client, self.server, str(self._delay_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._answer()
            for namespace, address in ((self.client, CLIENT), (self.server, SERVER)):
                _ip("-n", namespace, "addr", "add", f"{address}/16", "dev", "tun0")
                _ip("-n", namespace, "link", "set", "tun0", "up")
            for address in self.more:
                _ip("-n", self.server, "addr", "add", f"{address}/32", "dev", "lo")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._carrier is not None:
            self._carrier.kill()
            self._carrier.wait()
            for stream in (self._carrier.stdin, self._carrier.stdout):
                if stream is not None:
                    stream.close()
        for namespace in (self.client, self.server):
            subprocess.run(["ip", "netns", "del", namespace], check=False, stderr=subprocess.DEVNULL)

    def cut(self) -> None:
        """From now on every packet is lost, those under way among them."""
        self._say("cut")

    def restore(self) -> None:
        self._say("restore")

    def delay(self, delay_s: float) -> None:
        self._say(f"delay {delay_s}")

    def turns(self) -> int:
        """How often the client has spoken since the last call, after it had been answered: the round trips that one
        conversation waited for, however slow the machines are. Packets without data do not count, a SYN does."""
        return int(self._say("turns"))

    def inside(self, argv: Sequence[str | Path], *, client: bool = False) -> list[str]:
        """The command line that runs argv in the server's namespace, or in the client's."""
        return ["nsenter", f"--net=/run/netns/{self.client if client else self.server}", "--", *map(str, argv)]

    def run(self, work: Callable[[], Value]) -> Value:
        """work(), in a thread of the client's namespace; what it raises is raised here."""
        found: list[Any] = []

        def thread() -> None:
            try:
                enter(self.client)
                found.append((work(), None))
            except BaseException as error:
                found.append((None, error))

        runner = threading.Thread(target=thread)
        runner.start()
        runner.join()
        value, error = found[0]
        if error is not None:
            raise error
        result: Value = value
        return result

    def _say(self, line: str) -> str:
        if self._carrier is None or self._carrier.stdin is None:
            raise RuntimeError("the bridge is not up")
        self._carrier.stdin.write(line.encode() + b"\n")
        self._carrier.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        line = b"" if self._carrier is None or self._carrier.stdout is None else self._carrier.stdout.readline()
        if not line.startswith(b"ok"):
            raise RuntimeError("the bridge's carrier has ended")
        return line[2:].decode().strip()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class _Way:
    """Packets from one device to the other, each `delay_s` after it came."""

    def __init__(self, source: int, target: int, link: _Link, from_client: bool) -> None:
        self._source, self._target, self._link, self._from_client = source, target, link, from_client
        self._queue: deque[tuple[float, bytes]] = deque()
        self._some = threading.Semaphore(0)
        for work in (self._take, self._give):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        while True:
            packet = os.read(self._source, 65536)
            self._link.seen(self._from_client, packet)
            self._queue.append((time.monotonic() + self._link.delay_s, packet))
            self._some.release()

    def _give(self) -> None:
        while True:
            self._some.acquire()
            due, packet = self._queue.popleft()
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            if self._link.whole:
                with contextlib.suppress(OSError):  # the other end is not up yet
                    os.write(self._target, packet)


class _Link:
    def __init__(self, delay_s: float) -> None:
        self.delay_s, self.whole = delay_s, True
        self.turns = 0
        self._last_from_client = False

    def seen(self, from_client: bool, packet: bytes) -> None:
        if not _says_something(packet):
            return
        self.turns += from_client and not self._last_from_client
        self._last_from_client = from_client


def _says_something(packet: bytes) -> bool:
    """IPv4 with TCP that carries data or opens a connection."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
        return False
    start = (packet[0] & 15) * 4
    return len(packet) > start + (packet[start + 12] >> 4) * 4 or bool(packet[start + 13] & 2)


def _tun(namespace: str) -> int:
    enter(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN_NO_PI))
    return descriptor


def carry(client: str, server: str, delay_s: float) -> None:
    """The carrier: obeys lines on standard input, and ends with it."""
    one, other = _tun(client), _tun(server)
    link = _Link(delay_s)
    sys.setswitchinterval(0.0005)
    _Way(one, other, link, True)
    _Way(other, one, link, False)
    print("ok", flush=True)
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "turns":
            print("ok", link.turns, flush=True)
            link.turns = 0
            continue
        if word == "delay":
            link.delay_s = float(value)
        else:
            link.whole = word == "restore"
        print("ok", flush=True)


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], float(sys.argv[3]))
