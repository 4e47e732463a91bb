"""`diag server list | logs | stop` over a real connection."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from diag.cli.server import server as command
from diag.errors import PreconditionFailed
from diag.hosts.holding import held
from diag.hosts.transport import connect
from tests.hosts import valid

if TYPE_CHECKING:
    from conftest import Sshd

pytestmark = pytest.mark.sshd
FAKE = Path(__file__).parents[1] / "probes" / "fake_server.py"


@pytest.fixture
def host(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host `box`, whose lock lies in a folder of the test."""
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "laptop"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.toml").write_text(
        f'schema = 1\n[hosts.box]\naddress = "127.0.0.1"\nport = {sshd.port}\nidentity_file = "{sshd.user_key}"\n'
        f'known_hosts = "{sshd.known_hosts}"\nenv = {{ XDG_STATE_HOME = "{tmp_path}/host" }}\n'
    )
    return tmp_path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "launch_server.py"
    shutil.copy(FAKE, script)
    with (tmp_path / "server.log").open("wb") as log:
        words = [sys.executable, script, "0", "--api-key", "canary"]
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    while b"serving" not in (tmp_path / "server.log").read_bytes():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)


def test_list_read_refuse_adopt(host: Path, running: subprocess.Popen[bytes]) -> None:
    told = valid.document("server-list", run("list", "box", "--json").stdout)
    assert running.pid in [one["pid"] for one in told["servers"]]
    assert f"pid {running.pid}: sglang" in run("list", "box").stdout
    logs = run("logs", "box", running.pid)
    assert (logs.return_value, logs.stdout.splitlines()[-1]) == (0, "serving")
    log = valid.document("server-logs", run("logs", "box", running.pid, "--json").stdout)["log"]
    assert (log["source"], log["lines"][-1], log["why"]) == (str(host / "server.log"), "serving", None)
    refused = run("stop", "box", running.pid)
    assert isinstance(refused.exception, PreconditionFailed)
    assert running.poll() is None
    assert not (host / "laptop").exists()
    done = run("stop", "box", running.pid, "--adopt", "--json")
    assert done.return_value == 0, done.output
    running.wait(10)
    document = valid.document("server-stop", done.stdout)
    assert (document["clean"], document["left"], document["server"]["pid"]) == (True, [], running.pid)
    evidence = Path(document["evidence"])
    assert (evidence.stat().st_mode & 0o777, evidence.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    kept = json.loads(evidence.read_text())
    assert kept["log"]["lines"][-1] == "serving"
    assert "canary" not in evidence.read_text() + done.output + logs.output
    assert list((host / "host" / "diag").iterdir()) == []
    assert isinstance(run("stop", "box", running.pid, "--adopt").exception, PreconditionFailed)


def test_of_a_group_every_host_is_listed_and_a_dead_one_is_said(
    host: Path, sshd: Sshd, running: subprocess.Popen[bytes]
) -> None:
    inventory = host / "hosts.toml"
    inventory.write_text(inventory.read_text() + '[hosts.down]\naddress = "127.0.0.1"\nport = 1\n')
    with connect(sshd.host_with(env={"XDG_STATE_HOME": f"{host}/host"})) as colleague, held(colleague, "testing", "r"):
        page = run("list", "all")
        told = run("list", "all", "--json")
    hosts = valid.document("server-list-group", told.stdout)["hosts"]
    assert (page.return_value, told.return_value) == (4, 4)
    assert running.pid in [one["pid"] for one in hosts["box"]["servers"]]
    assert hosts["box"]["lock"]["doing"] == "testing"
    assert hosts["down"]["error"]["kind"] == "host_unreachable"
    assert f"pid {running.pid}: sglang" in page.stdout
    assert "testing for" in page.stdout
    assert "down:\nnot looked at: down (127.0.0.1 port 1)" in page.stdout


def test_what_is_left_is_dirty_and_says_so(
    host: Path, running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = host / "hosts.toml"
    inventory.write_text(
        inventory.read_text().replace("env = { ", f'env = {{ PATH = "{host}/bin:{os.environ["PATH"]}", ')
    )
    (host / "bin").mkdir()
    smi = host / "bin" / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\ncase "$*" in *compute-apps*) echo {running.pid}, 5000;; *) echo 6000;; esac\n')
    smi.chmod(0o755)
    done = run("stop", "box", running.pid, "--adopt")
    assert done.return_value == 1
    assert "DIRTY" in done.stdout
    assert "GPU memory: NOT BACK" in done.stdout


def test_evidence_that_cannot_be_kept_stops_nothing(
    host: Path, running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "laptop").write_text("a file where a folder should be")
    refused = run("stop", "box", running.pid, "--adopt")
    assert isinstance(refused.exception, PreconditionFailed)
    assert "nothing was stopped" in str(refused.exception)
    assert running.poll() is None
