"""Fixtures for all tests: a real OpenSSH server on loopback, with keys of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.hosts.inventory import Host


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-transcripts",
        action="store_true",
        help="write tests/transcripts/*.txt anew from what the search does; look at the difference first",
    )


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `local` is: a host of this session's own, whose lock and journals are nobody else's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@dataclass(frozen=True)
class Sshd:
    """A running sshd. host: ready to connect to; log: what the server wrote, at level VERBOSE."""

    host: Host
    folder: Path
    port: int
    log: Path
    host_key: Path
    user_key: Path
    known_hosts: Path
    process: subprocess.Popen[bytes]

    def host_with(self, **changes: object) -> Host:
        return Host(**{**self.host.model_dump(), **changes})

    def host_key_line(self) -> str:
        """ "<type> <base64>" of the server's key."""
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    def name(self) -> str:
        return f"[127.0.0.1]:{self.port}"

    def write_known_hosts(self, name: str, *lines: str) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def execs(self) -> int:
        """Commands begun on the server so far."""
        return self.log.read_text(errors="replace").count("Starting session: command")

    def session_pids(self) -> list[int]:
        """Server processes of this sshd's connections, and their children."""
        return descendants(self.process.pid)


def descendants(pid: int) -> list[int]:
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def keygen(path: Path, *options: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path, *options], check=True)
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _sshd_binary() -> str:
    path = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        reason = "OpenSSH's sshd is not installed (Debian: apt install openssh-server)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def _start(
    binary: str, folder: Path, extra: str, address: str = "127.0.0.1", prefix: Sequence[str | Path] = ()
) -> Sshd:
    """address: that it listens at. prefix: what runs it elsewhere, in a network namespace say."""
    host_key, user_key = keygen(folder / "host_key"), keygen(folder / "user_key")
    (folder / "authorized_keys").write_bytes((folder / "user_key.pub").read_bytes())
    (folder / "home").mkdir()
    log, port = folder / "sshd.log", free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"{extra}\nPort {port}\nListenAddress {address}\nHostKey {host_key}\nPidFile none\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        "LogLevel VERBOSE\nMaxStartups 100\nMaxSessions 100\n"
        # An account of its own: its lock is no other's, and no shell start-up file of this machine runs in each exec.
        f"SetEnv HOME={folder / 'home'}\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen([*prefix, binary, "-D", "-e", "-f", config], stderr=stream, stdin=subprocess.DEVNULL)
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    host = Host(
        name="box",
        address="127.0.0.1",
        port=port,
        user=getpass.getuser(),
        identity_file=user_key,
        known_hosts=known_hosts,
    )
    return Sshd(host, folder, port, log, host_key, user_key, known_hosts, process)


def _ready(server: Sshd) -> bool:
    while server.process.poll() is None:
        if "Server listening" in server.log.read_text(errors="replace"):
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="session")
def start_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sshd]]:
    """start_sshd("AllowTcpForwarding no") starts a further server; `extra` goes first in its sshd_config."""
    running: list[Sshd] = []

    def start(extra: str = "") -> Sshd:
        binary = _sshd_binary()
        for _ in range(3):  # the free port may be taken before sshd has it
            server = _start(binary, tmp_path_factory.mktemp("sshd"), extra)
            running.append(server)
            if _ready(server):
                return server
        pytest.fail(f"sshd did not start: {server.log.read_text(errors='replace')}")

    yield start
    for server in running:
        for pid in server.session_pids():
            _kill(pid)
        server.process.kill()
        server.process.wait()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


@pytest.fixture(scope="session")
def sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    """One real sshd for the whole session; `sshd.host` is a Host for it."""
    return start_sshd()
