"""`diag bisect` over real SSH connections, with real processes of a toy engine on the other side."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag import cli, journal
from diag.bisect import bench as benches
from diag.cli import bisect as command
from diag.hosts.holding import held
from diag.hosts.transport import connect
from tests.conftest import Sshd, free_port

pytestmark = pytest.mark.sshd

TOY = Path(__file__).resolve().parent / "toy_flags_server.py"
PLAN = """\
command: "{python} {toy} --port {port}"
prompts: ./suite.yaml
ready_timeout_s: 30
factors:
  batch: {flag: --batch, good: 1, bad: 8, sweep: false}
  graph: {flag: --graph, good: 0, bad: 1, sweep: false}
"""
SUITE = """\
schema: 1
name: one
max_new_tokens: 32
prompts:
  - {name: river, user: "Tell me about the river."}
"""
HOST = """\
[hosts.{name}]
address = "127.0.0.1"
port = {port}
identity_file = "{key}"
known_hosts = "{known}"
"""

Bisect = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def bisect(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Bisect]:
    """bisect("one", "two", ...): the command in this process; hosts one and two are the same sshd, dead is nobody."""
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(benches, "RETRY_WAIT_S", 0.1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(PLAN)
    (tmp_path / "suite.yaml").write_text(SUITE)
    ports = {"one": sshd.port, "two": sshd.port, "dead": free_port()}
    entries = (
        HOST.format(name=name, port=port, key=sshd.user_key, known=sshd.known_hosts) for name, port in ports.items()
    )
    split = HOST.format(name="split", port=sshd.port, key=sshd.user_key, known=sshd.known_hosts)
    more = split + 'gpu_sets = ["0,1", "2"]\n[groups]\nring = ["one", "two"]\n'
    (tmp_path / "diag.toml").write_text("schema = 1\n" + "".join(entries) + more)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        sets = ("--set", f"python={sys.executable}", "--set", f"toy={TOY}")
        code = cli.run(["bisect", *arguments, "--plan", "./toy.yaml", *sets, "--json"])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, json.loads(out)

    yield run
    assert servers() == []


def servers() -> list[str]:
    """Toy servers that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(TOY).encode() in line and b"--port" in line and not line.startswith(b"sh"):
                found.append(line.decode())
    return found


def culprit(told: dict[str, Any]) -> dict[str, Any]:
    factors: dict[str, Any] = told["culprit"]["factors"]
    return factors


def test_two_hosts_do_it_and_a_dead_one_is_named(bisect: Bisect) -> None:
    code, told = bisect("one", "dead", "two")
    assert (code, culprit(told)) == (1, {"batch": 8})
    assert list(told["left_out"]) == ["dead"]
    assert {trial["host"] for trial in told["trials"]} == {"one", "two"}
    assert all(trial["outcome"] in ("pass", "fail") for trial in told["trials"])


def test_a_group_stands_for_its_hosts(bisect: Bisect) -> None:
    code, told = bisect("ring", "one", "dead", "--dry-run")
    assert (code, told["hosts"]) == (0, ["one", "two", "dead"])


def test_hosts_that_are_all_dead_are_one_error(bisect: Bisect) -> None:
    code, told = bisect("dead")
    assert (code, told["error"]["kind"]) == (4, "host_unreachable")


def test_a_host_where_somebody_else_is_at_work_is_left_alone(bisect: Bisect, sshd: Sshd) -> None:
    with connect(sshd.host) as colleague, held(colleague, "diag bisect, run theirs", "theirs"):
        code, told = bisect("one")
        assert (code, told["error"]["kind"]) == (5, "precondition")
        assert "from 127.0.0.1" in told["error"]["what"]
        assert "run theirs for" in told["error"]["what"]
        assert servers() == []


def test_a_host_with_sets_of_gpus_is_two_places(bisect: Bisect, sshd: Sshd) -> None:
    """A colleague may have the one; its server then sees the other's GPUs and no more."""
    code, told = bisect("split", "--check")
    assert code == 1
    trials = [entry for entry in journal.read(Path(told["journal"])) if entry["kind"] == "trial"]
    env = {trial["host"]: trial["details"]["env"] for trial in trials}
    assert env == {
        "split.gpu0-1": {"CUDA_VISIBLE_DEVICES": "0,1"},
        "split.gpu2": {"CUDA_VISIBLE_DEVICES": "2"},
    }
    with connect(sshd.host) as colleague, held(colleague, "theirs", "theirs", ("1",)):
        assert bisect("split.gpu0-1", "--check")[0] == 5
        assert bisect("one", "--check")[0] == 5, "the whole host"
        assert bisect("split.gpu2", "--check")[0] == 1, "nobody is at work there"


def test_a_plan_that_says_which_gpus_is_refused_there(bisect: Bisect, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text("env: {CUDA_VISIBLE_DEVICES: '0'}\n" + PLAN)
    code, told = bisect("split")
    assert (code, told["error"]["kind"]) == (2, "usage")
    assert "gpu_sets" in told["error"]["what"]


def cut_at(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The connection is cut while the server of that trial is asked."""
    begun: list[int] = []
    starts, waits = command._Show.trial_starts, command._Show.waits_for

    def trial_starts(show: Any, count: int, *more: Any) -> None:
        begun.append(count)
        starts(show, count, *more)

    def waits_for(show: Any, what: str) -> None:
        if what.startswith("prompt 1/") and begun == list(range(1, number + 1)):
            begun.append(0)  # once
            for pid in sshd.session_pids():
                name = Path(f"/proc/{pid}/comm")
                if name.exists() and name.read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
        waits(show, what)

    monkeypatch.setattr(command._Show, "trial_starts", trial_starts)
    monkeypatch.setattr(command._Show, "waits_for", waits_for)


@pytest.mark.parametrize("number", [1, 2])
def test_a_link_cut_while_a_server_is_asked_costs_that_trial(
    bisect: Bisect, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cut_at(sshd, monkeypatch, number)
    code, told = bisect("one")
    assert (code, culprit(told)) == (1, {"batch": 8})
    outcomes = [trial["outcome"] for trial in told["trials"]]
    assert outcomes.count("infra") == 1
    assert outcomes[number - 1] == "infra"
    assert told["trials"][number]["config"] == told["trials"][number - 1]["config"], "the same once more"


def test_a_flag_that_the_engine_does_not_know(bisect: Bisect, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(PLAN + "  odd: {flag: --odd-one, good: 0, bad: 1}\n")
    code, told = bisect("one")
    assert (code, told["error"]["kind"]) == (5, "server_died")
    assert "does not know --odd-one (factor 'odd')" in told["error"]["what"]
    assert "Leave it out of the plan" in told["error"]["next"]


def test_what_kills_the_server_when_it_is_asked_is_found(bisect: Bisect, tmp_path: Path) -> None:
    """And what only garbles is another fault."""
    (tmp_path / "toy.yaml").write_text(PLAN + "  dies: {flag: --dies, good: 0, bad: 1, sweep: false}\n")
    code, told = bisect("one")
    assert (code, culprit(told)) == (1, {"dies": 1})
    assert told["signature"] == "died: RuntimeError: CUDA error: misaligned address N"
    assert {other["signature"] for other in told["other_failures"]} <= {"garbled"}
