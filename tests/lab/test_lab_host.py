"""The lab's host: what its SSH server lets in and does, and its life from up to down."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from diag.hosts import inventory
from diag.hosts.transport import Transport, connect
from diag.lab import control
from diag.lab.layout import Lab
from tests.lab_fixture import environment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def transport(lab: Lab) -> Iterator[Transport]:
    with connect(inventory.load().get("lab")) as opened:
        yield opened


def silent(line: str) -> None:
    """Nobody listens."""


def test_commands_run_in_a_clean_environment_of_their_own(lab: Lab, transport: Transport) -> None:
    with environment(DIAG_CANARY="1"):
        done = transport.exec("pwd; env; echo oops >&2; exit 7")
    assert done.exit_status == 7
    lines = done.stdout.decode().splitlines()
    assert Path(lines[0]).resolve() == lab.home.resolve()
    names = {line.split("=")[0] for line in lines[1:]}
    assert not {name for name in names if name.startswith(("DIAG_", "PYTHON", "VIRTUAL_ENV"))}
    assert done.stderr == b"oops\n"


def test_a_command_reads_its_input_to_the_end(transport: Transport) -> None:
    assert transport.exec("cat", stdin=bytes(range(256)) * 5000).stdout == bytes(range(256)) * 5000


def test_a_command_that_a_signal_ends_has_no_exit_status(transport: Transport) -> None:
    assert transport.exec("kill -KILL $$").exit_status is None


def client(lab: Lab, **how: object) -> paramiko.SSHClient:
    opened = paramiko.SSHClient()
    opened.load_host_keys(str(lab.known_hosts))
    port = lab.read_state()["port"]
    opened.connect("127.0.0.1", port, username="anyone", look_for_keys=False, allow_agent=False, **how)  # type: ignore[arg-type]
    return opened


def test_only_its_own_key_gets_in(lab: Lab) -> None:
    with client(lab, key_filename=str(lab.user_key)):
        pass
    with pytest.raises(paramiko.AuthenticationException):
        client(lab, key_filename=str(lab.host_key))
    with pytest.raises(paramiko.SSHException):
        client(lab, password="secret")


def test_sftp_works(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("over SFTP")
    with client(lab, key_filename=str(lab.user_key)) as opened, opened.open_sftp() as sftp:
        sftp.put(str(tmp_path / "here.txt"), str(tmp_path / "there.txt"))
    assert (tmp_path / "there.txt").read_text() == "over SFTP"


def test_forwarding_goes_to_loopback_and_nowhere_else(lab: Lab) -> None:
    port = lab.read_state()["port"]
    with client(lab, key_filename=str(lab.user_key)) as opened:
        channel = opened.get_transport().open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0))  # type: ignore[union-attr]
        assert channel.recv(4) == b"SSH-"
        channel.close()
        with pytest.raises(paramiko.ChannelException):
            opened.get_transport().open_channel("direct-tcpip", ("192.0.2.1", 80), ("127.0.0.1", 0))  # type: ignore[union-attr]


def test_its_files_are_the_users_alone(lab: Lab) -> None:
    for path in (lab.ssh, lab.home, lab.user_key, lab.host_key):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_up_is_idempotent_and_says_where_it_is(lab: Lab) -> None:
    before = control.status(lab)
    assert before.running
    assert control.up(lab, silent) == before


def test_the_environment_finds_the_real_files_unless_the_server_is_asked_for(lab: Lab) -> None:
    code = "import importlib.util as u; print(u.find_spec('sglang').origin)"
    found = subprocess.run([lab.python, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(lab.site_packages / "sglang" / "__init__.py")
    asked = subprocess.run(
        [lab.python, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True, check=True
    )
    assert "--speculative-ddtree-budget" in asked.stdout


def test_a_life(lab: Lab, tmp_path: Path) -> None:
    """Another lab beside the session's: up, its own keys, down, and nothing is left of it."""
    with environment(DIAG_STATE_DIR=str(tmp_path / "state"), DIAG_CONFIG_DIR=str(tmp_path / "config")):
        other = Lab.default()
        started = control.up(other, silent)
        assert started.running
        assert other.user_key.read_bytes() != lab.user_key.read_bytes()
        first = other.host_key.read_bytes()
        with connect(inventory.load().get("lab")) as opened:
            assert opened.exec("echo hello").stdout == b"hello\n"
        # An SSH server that was killed is started anew, with fresh keys, on what was built.
        control._end(started.sshd_pid or 0)
        assert not control.status(other).running
        assert control.up(other, silent).running
        assert other.host_key.read_bytes() != first
        pid = control.status(other).sshd_pid
        assert control.down(other, silent)
        assert not other.root.exists()
        assert not other.inventory_file.exists()
        assert pid is not None
        assert not control._alive(pid)
        assert not control.down(other, silent)
        assert not control.status(other).built


def test_an_interrupted_up_is_finished_by_the_next(lab: Lab, tmp_path: Path) -> None:
    with environment(DIAG_STATE_DIR=str(tmp_path / "state"), DIAG_CONFIG_DIR=str(tmp_path / "config")):
        torn = Lab.default()
        torn.ssh.mkdir(parents=True)
        (torn.root / "host").mkdir()
        torn.state_file.write_text('{"sshd_pid": 1, "bui')
        assert not control.status(torn).running
        assert control.up(torn, silent).running
        assert control.down(torn, silent)
