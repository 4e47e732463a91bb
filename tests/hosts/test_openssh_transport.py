"""The user's own OpenSSH as the transport: what it adds, and that it is no less strict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diag.errors import (
    AuthenticationFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    LinkLost,
    PreconditionFailed,
)
from diag.hosts import openssh
from diag.hosts.inventory import Host
from diag.hosts.transport import connect, kind_of
from tests.hosts.refusing import keygen, refused

if TYPE_CHECKING:
    from conftest import Sshd

pytestmark = pytest.mark.sshd


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where control sockets go: a short path of our own. Empty again after each test."""
    folder = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


def via_openssh(sshd: Sshd, **changes: object) -> Host:
    return sshd.host_with(transport="openssh", **changes)


# Host keys


def test_unknown_changed_and_revoked_keys_are_refused(sshd: Sshd, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    for lines, kind in (
        ([], HostKeyUnknown),
        ([f"{sshd.name()} {other}"], HostKeyChanged),
        ([f"{sshd.name()} {sshd.host_key_line()}", f"@revoked * {sshd.host_key_line()}"], HostKeyChanged),
        ([f"@cert-authority * {other}"], HostKeyUnknown),
    ):
        path = sshd.write_known_hosts("known_tried", *lines)
        refused(sshd, via_openssh(sshd, known_hosts=path), kind)
    refused(sshd, via_openssh(sshd, known_hosts=tmp_path / "missing"), HostKeyUnknown)


@pytest.fixture
def certified(start_sshd: Callable[..., Sshd], tmp_path: Path) -> tuple[Sshd, str]:
    """A server that shows a host certificate for 127.0.0.1, and its authority's key."""
    authority = keygen(tmp_path / "authority")
    keygen(tmp_path / "cert_key")
    sign = ["ssh-keygen", "-q", "-s", "authority", "-I", "x", "-h", "-n", "127.0.0.1", "cert_key.pub"]
    subprocess.run(sign, check=True, cwd=tmp_path)
    server = start_sshd(f"HostKey {tmp_path}/cert_key\nHostCertificate {tmp_path}/cert_key-cert.pub")
    return server, authority


def test_a_certificate_of_the_authority_on_record_is_taken_without_being_asked_to(
    certified: tuple[Sshd, str], tmp_path: Path
) -> None:
    server, authority = certified
    path = server.write_known_hosts("known_ca", f"@cert-authority {server.name()} {authority}")
    host = server.host_with(known_hosts=path)
    assert kind_of(host) == "openssh"
    with connect(host) as transport:
        assert transport.exec("echo well").stdout == b"well\n"
    wrong = server.write_known_hosts("known_wrong", f"@cert-authority {server.name()} {keygen(tmp_path / 'wrong')}")
    refused(server, server.host_with(known_hosts=wrong), HostKeyUnknown)


def test_paramiko_stays_the_default_and_can_be_insisted_on(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of(sshd.host) == "paramiko"
    path = sshd.write_known_hosts("known_both", f"@cert-authority * {sshd.host_key_line()}")
    assert kind_of(sshd.host_with(known_hosts=path, transport="paramiko")) == "paramiko"
    assert kind_of(Host(name="x", address="local", transport="openssh")) == "local"
    monkeypatch.setenv("PATH", "/nowhere")
    assert kind_of(sshd.host_with(known_hosts=path)) == "paramiko"
    with pytest.raises(PreconditionFailed, match="no `ssh`"):
        connect(via_openssh(sshd))


def test_a_fido_key_needs_openssh(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "id.pub").write_text("sk-ssh-ed25519@openssh.com AAAA me\n")
    assert kind_of(sshd.host_with(identity_file=tmp_path / "id")) == "openssh"


# Who we are, and how we get there


def test_a_wrong_user_key(sshd: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "wrong")
    error = refused(sshd, via_openssh(sshd, identity_file=tmp_path / "wrong"), AuthenticationFailed)
    assert any("Permission denied" in line for line in error.details)


def test_nobody_listens_or_the_name_does_not_resolve(sshd: Sshd) -> None:
    refused(sshd, via_openssh(sshd, port=1), HostUnreachable)
    refused(sshd, via_openssh(sshd, address="no.such.host.invalid"), HostUnreachable)


def test_through_a_jump_each_hop_is_checked(sshd: Sshd, start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    far = start_sshd()
    with connect(via_openssh(far, jump=sshd.host)) as transport:
        assert transport.exec("echo far").stdout == b"far\n"
    wrong = sshd.write_known_hosts("known_jump", f"{sshd.name()} {keygen(tmp_path / 'other')}")
    refused(far, via_openssh(far, jump=sshd.host_with(known_hosts=wrong)), HostKeyChanged)
    refused(far, via_openssh(far, known_hosts=wrong, jump=sshd.host), HostKeyUnknown)


def test_the_users_configuration_counts_with_ssh_name_and_only_then(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host alias\n HostName 127.0.0.1\n Port {sshd.port}\n ProxyCommand nc %h %p\n HostKeyAlias {sshd.name()}\n"
        f"Host *\n StrictHostKeyChecking no\n ForwardAgent yes\n RemoteCommand touch {tmp_path}/canary\n"
        f" LocalCommand touch {tmp_path}/canary\n PermitLocalCommand yes\n RequestTTY force\n"
    )
    binary = tmp_path / "bin" / "ssh"
    binary.parent.mkdir()
    # ssh reads the account's configuration whatever HOME says; this one puts ours in its place.
    binary.write_text(
        f'#!/bin/sh\ncase " $* " in *" -F none "*) exec /usr/bin/ssh "$@";; esac\nexec /usr/bin/ssh -F {config} "$@"\n'
    )
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)
    relay = tmp_path / "bin" / "nc"
    relay.write_text(f'#!/bin/sh\ntouch {tmp_path}/proxied\nexec {sys.executable} -c "{_NETCAT}" "$@"\n')
    relay.chmod(0o755)
    named = Host(
        name="box",
        address="nowhere.invalid",
        ssh_name="alias",
        transport="openssh",
        user=sshd.host.user,
        identity_file=sshd.user_key,
        known_hosts=sshd.known_hosts,
    )
    with connect(named) as transport:
        assert transport.exec("echo well; tty || true").stdout == b"well\nnot a tty\n"
    assert (tmp_path / "proxied").exists()
    assert not (tmp_path / "canary").exists()
    empty = sshd.write_known_hosts("known_empty")
    refused(sshd, named.model_copy(update={"known_hosts": empty}), HostKeyUnknown)


_NETCAT = (
    "import os,socket,sys,threading;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
    "threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')],daemon=True).start();"
    "[os.write(1,d) for d in iter(lambda:s.recv(65536),b'')]"
)


# A link that goes away, and what is left


def test_a_cut_link_is_an_error_not_a_short_answer(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    with connect(via_openssh(server)) as transport:
        process = transport.popen("echo begun; exec sleep 60")
        assert process.read(10) == b"begun\n"
        for pid in server.session_pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(LinkLost, match="ended before the answer was complete"):
            process.read(10)
        assert process.exit_status(1) is None
        process.close()
        with pytest.raises(LinkLost):
            transport.exec("true")
        with pytest.raises(LinkLost):
            transport.open_tcp("127.0.0.1", 1, 1)


def test_a_silent_link_is_found_dead(start_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch) -> None:
    assert openssh.ALIVE_EVERY_S * (openssh.ALIVE_COUNT + 1) <= 15
    monkeypatch.setitem(openssh._STRICT, "ServerAliveInterval", "1")
    monkeypatch.setitem(openssh._STRICT, "ServerAliveCountMax", "1")
    server = start_sshd()
    with connect(via_openssh(server)) as transport:
        process = transport.popen("echo begun; exec sleep 60")
        assert process.read(10) == b"begun\n"
        stopped = server.session_pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LinkLost):
            process.read(60)
        process.close()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_closing_leaves_no_session_and_no_master(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    with connect(via_openssh(server)) as transport:
        assert transport.exec("true").exit_status == 0
        assert server.session_pids()
    _until(lambda: not server.session_pids())


def test_a_client_that_is_killed_leaves_no_master(start_sshd: Callable[..., Sshd], folders: Path) -> None:
    server = start_sshd()
    code = (
        "import json, sys, time; from diag.hosts.inventory import Host; from diag.hosts.transport import connect\n"
        "with connect(Host(**json.loads(sys.argv[1]))) as t: print('up', flush=True); time.sleep(60)"
    )
    host = via_openssh(server).model_dump_json()
    with subprocess.Popen([sys.executable, "-c", code, host], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        assert server.session_pids()
        client.kill()
    _until(lambda: not server.session_pids())
    for left in folders.iterdir():  # of the killed client: its own folder, without a socket
        assert [path.name for path in left.iterdir()] == ["log"]
        (left / "log").unlink()
        left.rmdir()


def test_many_sessions_at_once_each_with_its_own_status(sshd: Sshd) -> None:
    with connect(via_openssh(sshd)) as transport:
        processes = [transport.popen(f"echo {at}; exit {at}") for at in range(20)]
        for at, process in enumerate(processes):
            assert process.read(10) == f"{at}\n".encode()
            assert process.exit_status(10) == at
            process.close()
        assert transport.exec("exit 255").exit_status == 255


def test_an_account_that_opens_no_sessions(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd("MaxSessions 0")
    with connect(via_openssh(server)) as transport, pytest.raises(HostError, match="MaxSessions"):
        transport.exec("true")


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
