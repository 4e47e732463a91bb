"""`diag host trust`: the one way a key gets on record, and all the ways it does not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from diag.cli.host import host as command
from diag.errors import DiagError, HostKeyChanged, HostKeyUnknown, HostUnreachable, PreconditionFailed, UsageError
from diag.hosts import known_hosts
from diag.hosts.transport import connect
from tests.hosts import valid

if TYPE_CHECKING:
    from conftest import Sshd

pytestmark = pytest.mark.sshd


def fingerprint(key: Path) -> str:
    printed = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True, text=True)
    return printed.stdout.split()[1]


@pytest.fixture
def known(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A known_hosts file that is not there yet, and an inventory whose host `box` uses it."""
    path = tmp_path / "ssh" / "known_hosts"
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.toml").write_text(
        f'schema = 1\n[hosts.box]\naddress = "127.0.0.1"\nport = {sshd.port}\nuser = "{sshd.host.user}"\n'
        f'identity_file = "{sshd.user_key}"\nknown_hosts = "{path}"\n'
    )
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["trust", "box", *words])


def refused(kind: type[DiagError], *words: str) -> DiagError:
    error = run(*words).exception
    assert type(error) is kind
    assert error.next
    return error


@pytest.mark.parametrize("options", [(), ("--hash",)])
def test_the_key_with_that_fingerprint_is_written_and_then_let_in(
    sshd: Sshd, known: Path, options: tuple[str, ...]
) -> None:
    before = sshd.execs()
    done = run("--fingerprint", fingerprint(sshd.host_key), "--json", *options)
    assert done.exit_code == 0, done.output
    document = valid.document("host-trust", done.stdout)
    assert (document["added"], document["file"], document["name"]) == (True, str(known), sshd.name())
    assert sshd.execs() == before
    assert known.stat().st_mode & 0o777 == 0o600
    assert (sshd.name() in known.read_text()) == (options == ())
    # OpenSSH finds the same key under the same name.
    found = subprocess.run(["ssh-keygen", "-F", sshd.name(), "-f", known], capture_output=True, text=True, check=True)
    assert sshd.host_key_line() in found.stdout
    with connect(sshd.host_with(known_hosts=known)) as transport:
        assert transport.exec("true").exit_status == 0
    written = known.read_bytes()
    again = run("--fingerprint", fingerprint(sshd.host_key), "--json")
    assert valid.document("host-trust", again.stdout)["added"] is False
    assert known.read_bytes() == written


def test_another_fingerprint_writes_nothing_and_shows_what_was_seen(sshd: Sshd, known: Path) -> None:
    wrong = "SHA256:" + "A" * 43
    error = refused(HostKeyUnknown, "--fingerprint", wrong)
    assert f"given: {wrong}" in error.details
    assert any(fingerprint(sshd.host_key) in line for line in error.details)
    assert not known.exists()


@pytest.mark.parametrize("text", ["", "MD5:00", "SHA256:short", "SHA256:" + "A" * 43 + "=", "$(touch canary)"])
def test_what_is_no_fingerprint_is_refused_without_a_connection(known: Path, text: str) -> None:
    refused(UsageError, "--fingerprint", text)
    assert not known.exists()


def test_a_changed_key_is_not_added_beside_the_old_one(sshd: Sshd, known: Path, tmp_path: Path) -> None:
    known.parent.mkdir()
    other = "AAAAC3NzaC1lZDI1NTE5AAAAIG0P+BJLwXm7PKGgXL7n7iGyS9XnJ7xtJtHuYT0t8LCy"
    for line in (f"{sshd.name()} ssh-ed25519 {other}\n", f"@revoked * {sshd.host_key_line()}\n"):
        known.write_text(line)
        error = refused(HostKeyChanged, "--fingerprint", fingerprint(sshd.host_key))
        assert any(f"{known}:1" in detail for detail in error.details)
        assert known.read_text() == line


def test_a_server_of_several_keys_is_asked_for_each(
    start_sshd: Callable[..., Sshd], known: Path, tmp_path: Path
) -> None:
    rsa = tmp_path / "rsa_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", rsa], check=True)
    server = start_sshd(f"HostKey {rsa}")
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(inventory.read_text().replace("port = ", f"port = {server.port} # "))
    assert run("--fingerprint", fingerprint(rsa)).exit_code == 0
    assert run("--fingerprint", fingerprint(server.host_key)).exit_code == 0
    assert [line.split()[1] for line in known.read_text().splitlines()] == ["ssh-rsa", "ssh-ed25519"]


def test_a_file_without_its_last_newline_is_not_spoilt(sshd: Sshd, known: Path) -> None:
    known.parent.mkdir()
    known.write_text("# mine")
    assert run("--fingerprint", fingerprint(sshd.host_key)).exit_code == 0
    assert known.read_text().splitlines() == ["# mine", f"{sshd.name()} {sshd.host_key_line()}"]


def test_a_file_that_cannot_be_written_is_named(sshd: Sshd, known: Path) -> None:
    known.mkdir(parents=True)
    error = refused(PreconditionFailed, "--fingerprint", fingerprint(sshd.host_key))
    assert str(known) in str(error)
    shutil.rmtree(known)


def test_a_host_that_is_not_there(known: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(inventory.read_text().replace("port = ", "port = 1 # "))
    refused(HostUnreachable, "--fingerprint", "SHA256:" + "A" * 43)


def test_hashed_names_are_matched_by_their_own_reader() -> None:
    text = known_hosts.line(known_hosts.hashed("[gpu]:22"), "ssh-ed25519", b"key")
    assert [entry.key for entry in known_hosts.entries_for("[gpu]:22", Path("x"), text)] == [b"key"]
    assert known_hosts.entries_for("gpu", Path("x"), text) == []
