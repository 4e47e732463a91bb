"""Connecting to a real sshd: whom we trust, what we offer, and what we say when it fails."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
import pytest

from diag.errors import (
    AuthenticationFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    InventoryError,
    LinkLost,
)
from diag.hosts import known_hosts, ssh
from diag.hosts.transport import connect
from tests.hosts.refusing import keygen, refused

if TYPE_CHECKING:
    from conftest import Sshd

pytestmark = pytest.mark.sshd


@pytest.fixture
def other_key(tmp_path: Path) -> str:
    """ "<type> <base64>" of a key that is nobody's."""
    return keygen(tmp_path / "other")


# Host keys


@pytest.mark.parametrize("pattern", ["*", "[127.0.0.*]:*", "other,[127.0.0.1]:{port}", "[12?.0.0.1]:{port}"])
def test_a_key_on_record_is_accepted_by_every_form_of_name(sshd: Sshd, pattern: str) -> None:
    path = sshd.write_known_hosts("known_form", f"{pattern.format(port=sshd.port)} {sshd.host_key_line()}")
    with connect(sshd.host_with(known_hosts=path)) as transport:
        assert transport.exec("true").exit_status == 0


def test_a_hashed_name_is_accepted(sshd: Sshd) -> None:
    path = sshd.write_known_hosts("known_hashed", f"{sshd.name()} {sshd.host_key_line()}")
    subprocess.run(["ssh-keygen", "-H", "-f", path], check=True, capture_output=True)
    with connect(sshd.host_with(known_hosts=path)) as transport:
        assert transport.exec("true").exit_status == 0


def test_an_unknown_key_is_refused_with_its_fingerprint(sshd: Sshd) -> None:
    path = sshd.write_known_hosts("known_none")
    error = refused(sshd, sshd.host_with(known_hosts=path), HostKeyUnknown)
    printed = subprocess.run(["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], check=True, capture_output=True, text=True)
    assert printed.stdout.split()[1] in str(error)
    assert f"diag host trust box --fingerprint {printed.stdout.split()[1]}" in error.next


def test_a_missing_known_hosts_file_is_named(sshd: Sshd) -> None:
    path = sshd.folder / "known_missing"
    error = refused(sshd, sshd.host_with(known_hosts=path), HostKeyUnknown)
    assert f"{path}: there is no such file" in error.details
    assert not path.exists()


def test_a_known_hosts_file_that_cannot_be_read_is_named(sshd: Sshd, tmp_path: Path) -> None:
    error = refused(sshd, sshd.host_with(known_hosts=tmp_path), HostKeyUnknown)
    assert any("cannot be read" in line for line in error.details)


def test_a_changed_key_is_refused_with_file_line_and_both_fingerprints(sshd: Sshd, other_key: str) -> None:
    path = sshd.write_known_hosts("known_changed", "# first line", f"{sshd.name()} {other_key}")
    error = refused(sshd, sshd.host_with(known_hosts=path), HostKeyChanged)
    assert f"{path}:2" in str(error)
    assert str(error).count("SHA256:") == 2


def test_a_key_of_another_type_than_recorded_is_a_changed_key(sshd: Sshd, tmp_path: Path) -> None:
    ecdsa = keygen(tmp_path / "ecdsa", "-t", "ecdsa")
    path = sshd.write_known_hosts("known_type", f"{sshd.name()} {ecdsa}")
    refused(sshd, sshd.host_with(known_hosts=path), HostKeyChanged)


def test_a_revoked_key_is_refused_even_where_it_is_also_on_record(sshd: Sshd) -> None:
    key = sshd.host_key_line()
    path = sshd.write_known_hosts("known_revoked", f"{sshd.name()} {key}", f"@revoked * {key}")
    error = refused(sshd, sshd.host_with(known_hosts=path), HostKeyChanged)
    assert f"{path}:2: @revoked" in error.details


def test_a_host_ca_is_not_passed_over_in_silence(sshd: Sshd, other_key: str) -> None:
    path = sshd.write_known_hosts("known_ca", f"@cert-authority * {other_key}")
    error = refused(sshd, sshd.host_with(known_hosts=path, transport="paramiko"), HostKeyUnknown)
    assert f"{path}:1: @cert-authority: host certificates are not evaluated by diag" in error.details


def test_of_several_host_keys_the_one_on_record_is_asked_for(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    ecdsa = keygen(tmp_path / "ecdsa", "-t", "ecdsa")
    server = start_sshd(f"HostKey {tmp_path / 'ecdsa'}")
    path = server.write_known_hosts("known_second", f"{server.name()} {ecdsa}")
    with connect(server.host_with(known_hosts=path)) as transport:
        assert transport.exec("true").exit_status == 0


# Who we are


def test_a_wrong_user_key_names_user_and_key(sshd: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "wrong")
    host = sshd.host_with(identity_file=tmp_path / "wrong", user="nobody-here")
    error = refused(sshd, host, AuthenticationFailed)
    assert "nobody-here" in str(error)
    assert f"offered: {tmp_path / 'wrong'}" in error.details


def test_a_missing_identity_file_is_said_plainly(sshd: Sshd, tmp_path: Path) -> None:
    error = refused(sshd, sshd.host_with(identity_file=tmp_path / "none"), InventoryError)
    assert str(tmp_path / "none") in str(error)


def test_a_key_with_a_passphrase_points_to_the_agent(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keygen(tmp_path / "locked", "-N", "secret phrase")
    error = refused(sshd, sshd.host_with(identity_file=tmp_path / "locked"), AuthenticationFailed)
    assert any("ssh-add" in line for line in error.details)


def test_a_damaged_identity_file_is_named(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_text("not a key\n")
    error = refused(sshd, sshd.host_with(identity_file=tmp_path / "damaged"), AuthenticationFailed)
    assert any("cannot be used" in line for line in error.details)


def test_without_identity_file_the_default_keys_are_offered(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    refused(sshd, sshd.host_with(identity_file=None), AuthenticationFailed)
    (tmp_path / ".ssh" / "id_ed25519").write_bytes(sshd.user_key.read_bytes())
    with connect(sshd.host_with(identity_file=None)) as transport:
        assert transport.exec("true").exit_status == 0


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A real ssh-agent; agent(path) adds a key to it."""
    path = f"{tmp_path}/agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    out = subprocess.run(["ssh-agent", "-s", "-a", path], check=True, capture_output=True, text=True).stdout
    pid = int(out.split("SSH_AGENT_PID=")[1].split(";")[0])

    def add(key: Path) -> None:
        subprocess.run(["ssh-add", "-q", key], check=True, stdin=subprocess.DEVNULL)

    yield add
    os.kill(pid, signal.SIGTERM)


def test_a_key_of_the_agent_is_offered_unless_a_file_is_named(
    sshd: Sshd, agent: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sshd.user_key.chmod(0o600)
    agent(sshd.user_key)
    with connect(sshd.host_with(identity_file=None)) as transport:
        assert transport.exec("true").exit_status == 0
        # Never forwarded: the account there has no agent.
        assert transport.exec('test -z "$SSH_AUTH_SOCK"').exit_status == 0
    keygen(tmp_path / "wrong")
    error = refused(sshd, sshd.host_with(identity_file=tmp_path / "wrong"), AuthenticationFailed)
    assert not any(line.startswith("offered: agent:") for line in error.details)


def test_a_server_that_asks_for_more_than_a_key(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd("AuthenticationMethods publickey,password\nPasswordAuthentication yes")
    error = refused(server, server.host, AuthenticationFailed)
    assert any("asks for more: password" in line for line in error.details)


def test_a_server_that_takes_no_keys(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd("PubkeyAuthentication no\nPasswordAuthentication yes")
    error = refused(server, server.host, AuthenticationFailed)
    assert any("takes only: password" in line for line in error.details)


# Reaching it at all


def test_a_refused_connection(sshd: Sshd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = refused(sshd, sshd.host_with(port=taken.getsockname()[1]), HostUnreachable)
    assert "refused" in str(error)


def test_a_name_that_does_not_resolve(sshd: Sshd) -> None:
    error = refused(sshd, sshd.host_with(address="no-such-machine.invalid"), HostUnreachable)
    assert "could not be resolved" in str(error)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n\0\0\0\x05garbage"])
def test_a_server_that_does_not_speak_ssh(sshd: Sshd, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers: list[socket.socket] = []
        threading.Thread(target=_greet, args=(server, greeting, peers), daemon=True).start()
        host = sshd.host_with(port=server.getsockname()[1], connect_timeout_s=0.5)
        error = refused(sshd, host, HostUnreachable)
        assert "handshake" in str(error)
        for peer in peers:
            peer.close()


def _greet(server: socket.socket, greeting: bytes, peers: list[socket.socket]) -> None:
    peer, _ = server.accept()
    peers.append(peer)
    peer.sendall(greeting)


def test_no_weak_algorithm_is_offered(sshd: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        offered: list[bytes] = []
        thread = threading.Thread(target=_read_kexinit, args=(server, offered), daemon=True)
        thread.start()
        with pytest.raises(HostUnreachable):
            connect(sshd.host_with(port=server.getsockname()[1], connect_timeout_s=2))
        thread.join()
    (kexinit,) = offered
    assert b"aes256-gcm@openssh.com" in kexinit
    for weak in (b"cbc", b"3des", b"md5", b"hmac-sha1", b"sha1", b"ssh-rsa,", b"ssh-dss"):
        assert weak not in kexinit


def _read_kexinit(server: socket.socket, offered: list[bytes]) -> None:
    """What the client says it can do: its first packet, which is in the clear."""
    peer, _ = server.accept()
    with peer, peer.makefile("rb") as stream:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        stream.readline()
        offered.append(stream.read(int.from_bytes(stream.read(4), "big")))


def test_forwarding_switched_off_says_which_setting(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd("AllowTcpForwarding no")
    with connect(server.host) as transport, pytest.raises(HostError, match="refused a channel") as caught:
        transport.open_tcp("127.0.0.1", server.port, 5)
    assert "AllowTcpForwarding" in caught.value.next


# Through a jump


@pytest.fixture
def hops(sshd: Sshd, start_sshd: Callable[..., Sshd]) -> tuple[Sshd, Sshd]:
    return start_sshd(), sshd


def test_through_a_jump(hops: tuple[Sshd, Sshd]) -> None:
    first, second = hops
    with connect(second.host_with(jump=first.host)) as transport:
        done = transport.exec("echo $SSH_CONNECTION")
    assert done.stdout.split()[3] == str(second.port).encode()
    assert first.execs() == 0


@pytest.mark.parametrize("wrong", [0, 1])
def test_each_hop_is_checked_by_its_own_name(hops: tuple[Sshd, Sshd], other_key: str, wrong: int) -> None:
    bad = hops[wrong]
    path = bad.write_known_hosts("known_hop", f"{bad.name()} {other_key}")
    hosts = [hop.host_with(known_hosts=path) if hop is bad else hop.host for hop in hops]
    host = hosts[1].model_copy(update={"jump": hosts[0]})
    error = refused(hops[1], host, HostKeyChanged)
    assert str(bad.port) in str(error)


def test_a_jump_that_cannot_reach_the_host(hops: tuple[Sshd, Sshd]) -> None:
    first, second = hops
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = second.host_with(jump=first.host, port=taken.getsockname()[1])
        error = refused(second, host, HostUnreachable)
    assert "could not connect to it" in str(error)


# A link that goes away


def sessions(server: Sshd) -> list[int]:
    return server.session_pids()


def test_a_cut_link_is_an_error_not_a_short_answer(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    transport = connect(server.host)
    process = transport.popen("echo begun; exec sleep 60")
    assert process.read(10) == b"begun\n"
    for pid in sessions(server):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(LinkLost, match="ended before the answer was complete"):
        process.read(10)
    assert process.exit_status(1) is None
    with pytest.raises(LinkLost):
        transport.exec("true")
    with pytest.raises(LinkLost):
        transport.open_tcp("127.0.0.1", 1, 1)
    process.close()
    transport.close()


def test_a_silent_link_is_found_dead(start_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch) -> None:
    # A stopped server still acknowledges at the TCP level: only the watchdog can tell.
    assert ssh.WATCH_EVERY_S + ssh.WATCH_LIMIT_S <= 15
    monkeypatch.setattr(ssh, "WATCH_EVERY_S", 0.1)
    monkeypatch.setattr(ssh, "WATCH_LIMIT_S", 0.4)
    server = start_sshd()
    with connect(server.host) as transport:
        process = transport.popen("echo begun; exec sleep 60")
        assert process.read(10) == b"begun\n"
        stopped = sessions(server)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LinkLost):
            process.read(60)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_a_quiet_but_living_link_is_left_alone(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "WATCH_EVERY_S", 0.02)
    monkeypatch.setattr(ssh, "WATCH_LIMIT_S", 5.0)
    with connect(sshd.host) as transport:
        assert transport.exec("sleep 0.5; echo well").stdout == b"well\n"


@pytest.mark.parametrize("kind", ["stream", "process"])
def test_a_channel_that_was_forgotten_does_not_stop_the_connection(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its end, when Python collects it, sends a message: in a thread that is sending one, with Paramiko's lock held."""
    with connect(sshd.host) as transport:
        forgotten: list[object] = [
            transport.open_tcp("127.0.0.1", sshd.port, 10) if kind == "stream" else transport.popen("true")
        ]
        if isinstance(forgotten[0], ssh.SshProcess):
            assert forgotten[0].read(10) == b""
            forgotten[0]._drain.join(10)
        forgotten.append(forgotten)  # what only a collection frees
        del forgotten
        transport.exec("true")  # Paramiko's reader still has the channel that it last read for
        send = paramiko.Transport._send_message

        def collected(self: paramiko.Transport, message: paramiko.Message) -> None:
            if threading.current_thread().name == "sends":
                gc.collect()
            send(self, message)

        monkeypatch.setattr(paramiko.Transport, "_send_message", collected)
        done: list[bytes] = []
        asking = threading.Thread(
            target=lambda: done.append(transport.exec("echo on").stdout), name="sends", daemon=True
        )
        asking.start()
        asking.join(20)
        assert done == [b"on\n"]


def test_closing_leaves_no_session_on_the_server(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    with connect(server.host) as transport:
        assert transport.exec("true").exit_status == 0
        assert sessions(server)
    while sessions(server):
        pass


def test_fingerprints_agree_with_paramiko(sshd: Sshd) -> None:
    key = paramiko.PKey.from_path(sshd.host_key)
    assert known_hosts.fingerprint(key.asbytes()) == key.fingerprint


class _Sleeper(threading.Event):
    """An event in whose waiting time passes without anything happening; the answer comes with the third look."""

    def __init__(self, answers_at: int | None) -> None:
        super().__init__()
        self.looks, self.answers_at = 0, answers_at

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        return self.answers_at is not None and self.looks >= self.answers_at


def test_a_gap_in_which_this_machine_slept_does_not_cut_the_connection() -> None:
    cuts: list[int] = []
    awake = _Sleeper(answers_at=3)
    ssh.cut_unless(awake, lambda: cuts.append(1))
    assert (cuts, awake.looks) == ([], 3)
    dead = _Sleeper(answers_at=None)
    ssh.cut_unless(dead, lambda: cuts.append(1))
    assert cuts == [1]
    assert dead.looks * ssh.WATCH_STEP_S == ssh.WATCH_LIMIT_S
