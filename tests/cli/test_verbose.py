"""`-v`: what is done on which host, and why; no secret, nothing on standard output."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.cli import run
from diag.hosts import narrate
from diag.hosts.inventory import Host
from diag.hosts.narrate import PURPOSES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    log = logging.getLogger("diag")
    yield
    log.handlers.clear()
    log.setLevel(logging.NOTSET)


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts.toml").write_text(
        'schema = 1\n[hosts.here]\naddress = "local"\n[hosts.here.env]\nX = "s3cret"\n'
    )
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [["-v", "host", "check", "here"], ["host", "check", "here", "--verbose"]], ids=str)
def test_it_is_told_wherever_it_stands(inventory: None, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == 1
    assert "here: this machine, no connection is needed" in captured.err
    assert "here: send probes.hello: see who answers there; changes nothing" in captured.err
    assert "s3cret" not in captured.err


def test_without_it_nothing_is_told(inventory: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["host", "check", "here", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_after_two_dashes_it_is_somebody_elses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--", "-v"]) == 2
    assert "'-v'" in capsys.readouterr().err
    assert logging.getLogger("diag").handlers == []


def test_a_server_is_told_without_its_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diag")
    host = Host(name="gpu1", address="h", user="ops")
    narrate.connecting(host, "paramiko")
    narrate.program(host, "probes.supervise", {"argv": ["vllm", "serve", "m", "--api-key", "s3cret"]})
    assert "gpu1: connect to ops@h port 22 (paramiko)" in caplog.text
    assert "it starts: vllm serve m --api-key ***" in caplog.text


def test_every_program_that_is_sent_has_a_purpose() -> None:
    files = [path for folder in ("probes", "kernels") for path in (ROOT / folder).glob("*.py")]
    programs = {f"{path.parent.name}.{path.stem}" for path in files if "\ndef run(" in path.read_text()}
    assert set(PURPOSES) == programs


def test_a_purpose_costs_no_import() -> None:
    """courier is imported by every command that connects."""
    code = "import sys, diag.hosts.narrate; sys.exit('diag.bundle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
