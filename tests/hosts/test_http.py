"""HTTP to a server on the host, over the connection we have."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from diag.hosts.http import ChannelTransport, http_client
from diag.hosts.openssh import OpenSshTransport
from diag.hosts.transport import Transport
from probes import _proc
from tests import conftest


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(1)
        if self.path == "/stream":
            self._stream()
        elif self.path == "/big":
            self._reply(bytes(5_000_000))
        elif self.path == "/die":
            self.close_connection = True
        else:
            self._reply(self.path.encode())

    def do_POST(self) -> None:
        self._reply(self.rfile.read(int(self.headers["Content-Length"])))

    def _reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path.startswith("/close"):
            self.close_connection = True

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"2\r\n%d\n\r\n" % number)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def client(any_transport: Transport, port: int) -> Iterator[httpx.Client]:
    with http_client(any_transport, port) as client:
        yield client


def test_get_and_post(client: httpx.Client) -> None:
    assert client.get("/x?y=1").text == "/x?y=1"
    assert client.post("/", json={"a": "é"}).json() == {"a": "é"}
    assert len(client.get("/big").content) == 5_000_000


@pytest.mark.skipif(not _proc.HAS_PROC, reason="reads /proc")
def test_no_port_is_opened_on_either_side(any_transport: Transport, client: httpx.Client) -> None:
    ours = [os.getpid(), *conftest.descendants(os.getpid())]  # an sshd of the tests is one of them
    ours += [any_transport._pid] if isinstance(any_transport, OpenSshTransport) else []

    def listening() -> set[str]:
        ports = _proc.listening("self")
        return {inode for pid in ours for inode in _proc.sockets(pid) if inode in ports}

    before = listening()
    assert client.get("/x").text == "/x"
    with client.stream("GET", "/stream") as response:
        ours += conftest.descendants(os.getpid())
        assert listening() == before
        response.read()


def test_sixteen_at_once_many_times(client: httpx.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: client.get(f"/{number}").text, range(160)))
    assert answers == [f"/{number}" for number in range(160)]


def test_lines_of_a_stream(client: httpx.Client) -> None:
    with client.stream("GET", "/stream") as response:
        assert list(response.iter_lines()) == ["0", "1", "2"]


def test_a_kept_connection_that_the_server_closed_is_not_used_again(client: httpx.Client) -> None:
    for number in range(5):
        assert client.get(f"/close/{number}").text == f"/close/{number}"
        transport = client._transport
        assert isinstance(transport, ChannelTransport)
        while not all(connection.has_expired() for connection in transport._pool.connections):
            time.sleep(0.01)


def test_nobody_listens(any_transport: Transport) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with http_client(any_transport, taken.getsockname()[1]) as client, pytest.raises(httpx.ConnectError):
            client.get("/")


def test_time_out_and_hang_up(any_transport: Transport, port: int) -> None:
    with http_client(any_transport, port, timeout_s=0.2) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.get("/slow")
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/die")


def test_it_goes_nowhere_else(client: httpx.Client) -> None:
    with pytest.raises(httpx.ConnectError, match="only"):
        client.get("http://example.org/")


def test_settings_of_this_machine_do_not_matter(
    any_transport: Transport, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with http_client(any_transport, port) as client:
        assert client.get("/x").text == "/x"
