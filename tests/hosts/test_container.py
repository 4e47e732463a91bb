"""Everything inside a container: by a stand-in for docker, and, for root, in real namespaces of their own."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.errors import HostProgramFailed
from diag.hosts import container, courier, http
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from tests.hosts.conftest import fake_docker

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("docker:engine", ["docker", "exec", "-i", "engine"]),
        ("podman:a.b_c-1", ["podman", "exec", "-i", "a.b_c-1"]),
        ("kubectl:llm/sgl-0", ["kubectl", "exec", "-i", "-n", "llm", "sgl-0", "--"]),
        ("kubectl:llm/sgl-0/main", ["kubectl", "exec", "-i", "-n", "llm", "sgl-0", "-c", "main", "--"]),
    ],
)
def test_the_command_line(spec: str, expected: list[str]) -> None:
    assert container.words(Host(name="x", address="local", container=spec).container or "") == expected


@pytest.mark.parametrize("spec", ["docker:engine", "podman:engine", "kubectl:llm/sgl-0", "kubectl:llm/sgl-0/main"])
def test_a_probe_runs_inside(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path / "bin", monkeypatch, run="INSIDE=yes exec")
    with connect(Host(name="here", address="local", container=spec)) as transport:
        assert transport.exec("echo $INSIDE 'a  b'").stdout == b"yes a  b\n"
        assert courier.call(transport, "hello")["version"]


def test_a_container_that_is_not_there_is_named_by_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path / "bin", monkeypatch)
    with connect(Host(name="here", address="local", container="docker:gone")) as transport:
        with pytest.raises(HostProgramFailed) as caught:
            courier.call(transport, "hello")
        assert "Error response from daemon: No such container: gone" in caught.value.details
        assert "docker:gone" in caught.value.next


def test_no_docker_on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with connect(Host(name="here", address="local", container="podman:x")) as transport:
        with pytest.raises(HostProgramFailed) as caught:
            courier.call(transport, "hello")
        assert any("podman" in line and "not found" in line for line in caught.value.details)


namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None,
    reason="namespaces need root, unshare and ip",
)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A "container" with a network and a host name of its own: as isolated as docker makes it, without docker."""
    ready = tmp_path / "ready"
    script = f"ip link set lo up && hostname inside && touch {ready} && exec sleep 300"
    process = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "sh", "-c", script])
    while not ready.exists():
        assert process.poll() is None
    fake_docker(tmp_path / "bin", monkeypatch, run=f"exec nsenter -t {process.pid} --net --uts --ipc --")
    yield Host(name="here", address="local", container="docker:engine")
    process.kill()
    process.wait()


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"outside")

    def log_message(self, *_: object) -> None:
        pass


@namespaces
def test_facts_and_streams_are_those_of_the_inside(engine: Host) -> None:
    outside = HTTPServer(("127.0.0.1", 0), _Hello)
    threading.Thread(target=outside.serve_forever, daemon=True).start()
    port = outside.server_port
    serve = (
        "import http.server,os,socketserver,threading\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(b'inside')\n"
        "threading.Thread(target=lambda: [os.read(0,1), os._exit(7)]).start()\n"
        f"socketserver.TCPServer(('127.0.0.1',{port}),H).serve_forever()"
    )
    try:
        with connect(engine) as transport:
            assert courier.call(transport, "hello")["hostname"] == "inside"
            with pytest.raises(ConnectionRefusedError):
                transport.open_tcp("127.0.0.1", port, 5)  # the same port outside has a server
            server = transport.popen(f'exec python3 -c "{serve}"')
            with http.http_client(transport, port) as client:
                answer = None
                while answer is None:
                    try:
                        answer = client.get("/").text
                    except Exception:
                        assert server.exit_status(0.05) is None
            assert answer == "inside"
            server.write(b"end")
            assert server.exit_status(10) == 7
            server.close()
    finally:
        outside.shutdown()
        outside.server_close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30), max_size=4))
def test_words_reach_the_inside_as_given(tmp_path: Path, words: list[str]) -> None:
    """Through two shells and the engine: nothing in them is ever run."""
    nasty = [*words, "$(touch canary)", "`touch canary`", "'; touch canary; '", "-rf", 'a"b', "!x", "\n"]
    with pytest.MonkeyPatch.context() as patch:
        fake_docker(tmp_path / "bin", patch)
        patch.chdir(tmp_path)
        with connect(Host(name="here", address="local", container="docker:engine")) as transport:
            done = transport.exec(shlex.join(["printf", "%s\\0", *nasty]))
    assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == nasty
    assert not (tmp_path / "canary").exists()


def test_no_command_for_a_host_is_made_of_pieces_of_text() -> None:
    """What `exec` and `popen` are given is shlex.join's work, or a constant: no f-string, no `+`, no `%`."""
    made = []
    for path in (ROOT / "diag").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                pieces = isinstance(node.args[0], ast.JoinedStr | ast.BinOp)
                if node.func.attr in ("exec", "popen", "exec_command") and pieces:
                    made.append(f"{path}:{node.lineno}")
    assert made == []
