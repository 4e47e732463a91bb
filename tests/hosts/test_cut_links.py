"""A link that is cut, at each point of a connection's life: a typed error in time, and never a success that is none.

By a proxy that stops carrying bytes and keeps its sockets open: at the level of TCP the peer still answers, so only
our own watch can tell. Where root allows it, the same once over a link that loses every packet. benchmarks/hosts.py
has all points with the real limits.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from diag.errors import DiagError, HostError, HostUnreachable, LinkLost
from diag.hosts import courier, ssh
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from tests import conftest as servers
from tests.hosts.bridge import Bridge, possible

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sshd

pytestmark = pytest.mark.sshd


class Proxy:
    """Carries connections to 127.0.0.1:port until it is cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._cut = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    if self._cut.is_set():
                        return
                    data = source.recv(65536)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)


@pytest.fixture
def proxied(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Proxy, Host]]:
    monkeypatch.setattr(ssh, "WATCH_EVERY_S", 0.2)
    monkeypatch.setattr(ssh, "WATCH_LIMIT_S", 0.5)
    proxy = Proxy(sshd.port)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{proxy.port} {sshd.host_key_line()}\n")
    yield proxy, sshd.host_with(port=proxy.port, known_hosts=known, connect_timeout_s=1)
    proxy.close()


@pytest.mark.parametrize(
    ("stage", "kind"),
    [("connect", HostUnreachable), ("host key", HostUnreachable)],
    ids=["in the banner", "at authentication"],
)
def test_while_connecting(proxied: tuple[Proxy, Host], stage: str, kind: type[DiagError]) -> None:
    proxy, host = proxied
    with pytest.raises(kind):
        ssh.open_ssh(host, note=lambda passed: proxy.cut() if passed == stage else None)


def test_before_connecting(proxied: tuple[Proxy, Host]) -> None:
    proxy, host = proxied
    proxy.cut()
    with pytest.raises(HostUnreachable):
        connect(host)


def _open(host: Host, cut: Callable[[], None]) -> None:
    with connect(host) as transport:
        cut()
        transport.exec("true")


def _output(host: Host, cut: Callable[[], None]) -> None:
    with connect(host) as transport:
        process = transport.popen("while :; do echo x; sleep 0.02; done")
        process.read(10)
        cut()
        while process.read(30):
            pass


def _status(host: Host, cut: Callable[[], None]) -> None:
    with connect(host) as transport:
        process = transport.popen("echo x; read y")
        process.read(10)
        cut()
        process.close_stdin()
        process.read(30)


def _program(host: Host, cut: Callable[[], None]) -> None:
    with connect(host) as transport, courier.converse(transport, "supervise", _SERVER) as conversation:
        conversation.next(30)
        cut()
        for _ in conversation.events(30):
            pass


_SERVER = {
    "argv": ["sleep", "60"],
    "port": "auto",
    "run_id": f"cut-{os.getpid()}",
    "ready": {"path": "/", "deadline_s": 60},
    "lease_s": 2,
}


@pytest.mark.parametrize("point", [_open, _output, _status, _program])
def test_once_connected(proxied: tuple[Proxy, Host], point: Callable[[Host, Callable[[], None]], None]) -> None:
    proxy, host = proxied
    with pytest.raises(LinkLost, match="ended before the answer was complete"):
        point(host, proxy.cut)


def test_after_the_answer_it_is_an_answer(proxied: tuple[Proxy, Host]) -> None:
    proxy, host = proxied
    with connect(host) as transport:
        assert courier.call(transport, "hello")["version"]
        proxy.cut()


@pytest.mark.skipif(not possible(), reason="a link that loses packets needs root, /dev/net/tun, ip and nsenter")
def test_a_link_that_loses_every_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "WATCH_EVERY_S", 1.0)
    monkeypatch.setattr(ssh, "WATCH_LIMIT_S", 2.0)
    with Bridge(delay_s=0.01) as bridge:
        server = servers._start(servers._sshd_binary(), tmp_path, "", bridge.address, bridge.inside([]))
        assert servers._ready(server)
        server.known_hosts.write_text(f"[{bridge.address}]:{server.port} {server.host_key_line()}\n")
        host = server.host_with(address=bridge.address, connect_timeout_s=2)

        def cut_midway() -> None:
            with connect(host) as transport:
                assert transport.exec("echo there").stdout == b"there\n"
                process = transport.popen("echo begun; exec sleep 60")
                assert process.read(10) == b"begun\n"
                bridge.cut()
                process.read(60)

        with pytest.raises(LinkLost):
            bridge.run(cut_midway)
        with pytest.raises(HostError):
            bridge.run(lambda: connect(host).close())
        for pid in server.session_pids():
            os.kill(pid, 9)
        server.process.kill()
        server.process.wait()


FLOOD = """
import resource, sys
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
import json
with connect(Host(**json.loads(sys.argv[1]))) as transport:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = transport.exec(sys.argv[2], timeout_s=120)
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(done.stdout), len(done.stderr), done.truncated)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in other units elsewhere")
@pytest.mark.parametrize("kind", ["paramiko", "openssh"])
def test_a_flood_is_kept_within_bounds(sshd: Sshd, kind: str) -> None:
    host = sshd.host_with(transport=kind).model_dump_json()
    command = "head -c 8000000 /dev/zero >&2; head -c 64000000 /dev/zero | tr '\\0' x"
    done = subprocess.run([sys.executable, "-c", FLOOD, host, command], capture_output=True, text=True, check=True)
    before, after, out, err, truncated = done.stdout.split()
    assert int(after) - int(before) < 60_000  # kilobytes, of 72 MB that came
    assert (int(err), truncated) == (8_000_000, "True")
    assert 8 << 20 <= int(out) < (8 << 20) + 100
