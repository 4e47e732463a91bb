"""An environment that root owns: by `sudo -n` when the inventory says so, and a clear answer when that is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.errors import PreconditionFailed
from diag.fixes import transaction
from diag.hosts.inventory import Host, load
from diag.hosts.local import LocalProcess, LocalTransport
from probes import _fixjournal
from tests.fixes.crashing import FIX, Rig

FAKE = """#!/bin/sh
printf "%s\\n" "$1 $2 $3" >> "$DIAG_TEST_LOG"
[ "$1 $2" = "-n --" ] || exit 9
shift 2
exec env SUDO_USER=ops SUDO_UID=1000 "$@"
"""

REFUSING = """#!/bin/sh
echo "sudo: a password is required" >&2
exit 1
"""


class WithPath(LocalTransport):
    """A login shell with these variables."""

    def __init__(self, host: Host, **variables: str) -> None:
        super().__init__(host)
        self.variables = variables

    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> LocalProcess:
        set_them = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return super().popen(f"{set_them} {command}", max_stderr_bytes=max_stderr_bytes)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig.build(tmp_path)


def fake(folder: Path, text: str) -> str:
    """A PATH on which this is sudo."""
    (folder / "bin").mkdir()
    (folder / "bin" / "sudo").write_text(text)
    (folder / "bin" / "sudo").chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def test_everything_of_a_fix_runs_by_sudo(rig: Rig, tmp_path: Path) -> None:
    host = rig.host(Host(name="here", address="local", sudo=True))
    log = tmp_path / "log"
    with WithPath(host, PATH=fake(tmp_path, FAKE), DIAG_TEST_LOG=str(log)) as transport:
        change = transaction.plan(FIX, transaction.inspect(transport, FIX, str(rig.site)))
        assert transaction.check(transport, FIX, change) == "apply"
        outcome = transaction.apply(transport, FIX, change)
        assert outcome.standing.state == "applied"
        assert outcome.standing.journal is not None
        transaction.revert(transport, FIX, outcome.installed)
    assert rig.side() == "old"
    lines = log.read_text().splitlines()
    assert len(lines) == 10  # five commands; each asks first whether it may
    assert all(line.startswith("-n -- /") for line in lines)
    records = _fixjournal.records_of(outcome.standing.journal)[0]
    assert {record["who"]["user"] for record in records if record["do"] == "intent"} == {"ops"}


def test_nothing_runs_by_sudo_unless_the_inventory_says_so(rig: Rig, tmp_path: Path) -> None:
    host = Host(name="here", address="local", env=rig.env)
    with WithPath(host, PATH=fake(tmp_path, REFUSING)) as transport:
        transaction.inspect(transport, FIX, str(rig.site))


def test_a_refused_sudo_is_said(rig: Rig, tmp_path: Path) -> None:
    host = Host(name="here", address="local", sudo=True, env=rig.env)
    with (
        WithPath(host, PATH=fake(tmp_path, REFUSING)) as transport,
        pytest.raises(PreconditionFailed, match="sudo on here did not let us") as caught,
    ):
        transaction.inspect(transport, FIX, str(rig.site))
    assert "NOPASSWD" in caught.value.next
    assert "sudo: a password is required" in caught.value.details


def test_a_host_without_sudo(rig: Rig, tmp_path: Path) -> None:
    """Nor is another interpreter tried for it."""
    for name in ("sh", "env", "python3"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "few").mkdir(exist_ok=True)
        (tmp_path / "few" / name).symlink_to(found)
    host = Host(name="here", address="local", sudo=True, env=rig.env)
    with (
        WithPath(host, PATH=str(tmp_path / "few")) as transport,
        pytest.raises(PreconditionFailed, match="sudo on here") as caught,
    ):
        transaction.inspect(transport, FIX, str(rig.site))
    assert any("not found" in line for line in caught.value.details)


def test_the_inventory_has_it(tmp_path: Path) -> None:
    file = tmp_path / "diag.toml"
    file.write_text('schema = 1\n[hosts.a]\naddress = "a"\nsudo = true\n[hosts.b]\naddress = "b"\n')
    hosts = load([file]).hosts
    assert (hosts["a"].sudo, hosts["b"].sudo) == (True, False)


def test_the_state_folder_is_that_of_root_even_if_home_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ops")
    assert _fixjournal.state_dir() == "/home/ops/.local/state/diag/fixes"
    monkeypatch.setenv("SUDO_UID", "1000")
    assert not _fixjournal.state_dir().startswith("/home/ops")


# --- the real one ------------------------------------------------------------------------------------------


def real_sudo() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to become someone else")
    if (
        subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode != 0
        if shutil.which("sudo")
        else True
    ):
        pytest.skip("needs sudo")


class AsNobody(LocalTransport):
    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> LocalProcess:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-c", command]
        return super().popen(shlex.join(user), max_stderr_bytes=max_stderr_bytes)


@pytest.fixture
def open_rig() -> Iterator[Rig]:
    """Where another user may look."""
    with tempfile.TemporaryDirectory(prefix="diag-sudo-") as folder:
        Path(folder).chmod(0o755)
        yield Rig.build(Path(folder))


def test_the_real_sudo_refuses_nobody(open_rig: Rig) -> None:
    real_sudo()
    with (
        AsNobody(Host(name="here", address="local", sudo=True, env=open_rig.env)) as transport,
        pytest.raises(PreconditionFailed, match="sudo on here") as caught,
    ):
        transaction.inspect(transport, FIX, str(open_rig.site))
    assert any("password" in line for line in caught.value.details), caught.value.details


def test_the_real_sudo_lets_root(open_rig: Rig) -> None:
    real_sudo()
    with LocalTransport(open_rig.host(Host(name="here", address="local", sudo=True))) as transport:
        change = transaction.plan(FIX, transaction.inspect(transport, FIX, str(open_rig.site)))
        outcome = transaction.apply(transport, FIX, change)
        assert json.loads((open_rig.root / "now/state/diag/fixes/lock").read_text())["user"]
        assert transaction.revert(transport, FIX, outcome.installed).changed
    assert open_rig.side() == "old"
