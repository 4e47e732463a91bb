"""`diag plan new`: the suspects of a start line, given or of a running server, as a plan that `diag bisect` takes."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.bisect import plan
from diag.cli import run
from diag.hosts import inventory
from diag.hosts.transport import connect
from diag.lab import control
from diag.lab.layout import Lab
from diag.serving import server
from tests.lab_fixture import Ran

VLLM = "vllm serve /models/m --kv-cache-dtype fp8 --port 8000"


def test_a_line_becomes_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "new", "--version", "0.11.0", "--command", VLLM]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out)
    made = plan.load(str(file))
    assert made.spec.engine == "vllm"
    assert "kv_cache_dtype" in made.spec.factors


def test_it_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    words = ["plan", "new", "--out", str(out), "--json", "--command", VLLM]
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan"] == out.read_text()
    assert document["file"] == str(out)
    assert run(words) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "new"],
        ["plan", "new", "gpu1", "--command", VLLM],
        ["plan", "new", "--command", "./start.sh"],
        ["plan", "new", "--command", "vllm '"],
        ["plan", "new", "--command", ""],
        ["plan", "new", "no-such-host"],
        ["plan", "new", "--engine", "tgi", "--command", "x"],
    ],
    ids=shlex.join,
)
def test_what_is_missing_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.lab
def test_of_a_running_server(lab: Lab, diag: Callable[..., Ran]) -> None:
    argv = control.start_line(lab, "vllm", ["--max-num-seqs", "4"])
    launch = server.Launch(argv=argv, run_id=f"test-{secrets.token_hex(4)}", ready_timeout_s=120, engine="vllm")
    with connect(inventory.load().get("lab")) as transport, server.start(transport, launch) as up:
        ran = diag("plan", "new", f"lab:{up.port}", "--json")
    document = json.loads(ran.out)
    assert (document["engine"], document["version"]) == ("vllm", "0.14.0")
    assert "async_scheduling" in [factor["name"] for factor in document["factors"]]
    assert "--max-num-seqs" in document["plan"]


@pytest.mark.lab
def test_of_a_host_without_such_a_server(lab: Lab, diag: Callable[..., Ran]) -> None:
    ran = diag("plan", "new", "lab:9")
    assert ran.code == 5
    assert "No server that diag knows runs on port 9 of lab." in ran.err
