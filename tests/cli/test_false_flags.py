"""Plans that cannot be right: each run ends early and says what to do. And what is seen of a run before and after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag import cli
from tests.lab_fixture import command

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
PLAN = "factors:\n" + "".join(f"  {name}: {{good: 0, bad: 1, sweep: false}}\n" for name in "abcd")
TRY = 'echo "$DIAG_HOST" >> made; test "$DIAG_B$DIAG_D" != 11'


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.out)
        return read


Diag = Callable[..., Ran]


@pytest.fixture
def diag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Diag:
    """The command in this process, in a folder of its own with a plan."""
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(PLAN)

    def run(*arguments: str) -> Ran:
        code = cli.run(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    return run


def valid(told: Mapping[str, Any], schema: str) -> None:
    jsonschema.validate(told, json.loads((SCHEMAS / f"{schema}.json").read_text()))


def tried(diag: Diag, *more: str, cmd: str = TRY) -> Ran:
    return diag("bisect", *more, "--plan", "./mine.yaml", "--trial-cmd", cmd)


def test_a_good_end_that_fails(diag: Diag) -> None:
    ran = tried(diag, cmd="exit 1")
    assert ran.code == 3
    lines = ran.out.splitlines()
    assert lines[0].startswith("NOT ONE OF THE FACTORS")
    assert "The good settings fail as well" in lines[1]
    assert lines[2].strip().startswith("1 trial,")
    assert any(line.startswith("next: The good configuration fails too") for line in lines)


def test_a_bad_end_that_passes(diag: Diag) -> None:
    ran = tried(diag, cmd="true")
    assert ran.code == 3
    lines = ran.out.splitlines()
    assert lines[0].startswith("NOT REPRODUCED")
    assert "there is nothing to search for" in lines[1]
    assert lines[2].strip().startswith("3 trials,")
    assert any(line.startswith("next: Check that the failing configuration") for line in lines)


def test_one_factor(diag: Diag, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("factors: {batch: {good: 1, bad: 8, sweep: false}}\n")
    ran = tried(diag, cmd='test "$DIAG_BATCH" = 1')
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "CULPRIT   batch=8"
    assert lines[1].strip() == "The trial fails where batch=8, whatever else is set; otherwise all is well."
    assert "2 trials" in lines[2]
    assert any(line.startswith("only suspect") for line in lines)


def test_factors_that_are_the_same_at_both_ends(diag: Diag, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("factors: {batch: {good: 1, bad: 1, levels: [1, 8]}}\n")
    ran = tried(diag)
    assert ran.code == 2
    assert "no factor differs between good and bad: there is nothing to find" in ran.err


def test_a_constraint_that_an_end_breaks(diag: Diag, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(PLAN + "constraints: [a == 0 or b == 0]\n")
    ran = tried(diag)
    assert ran.code == 2
    assert "mine.yaml:6:15: the failing configuration does not satisfy it (a=1 b=1)" in ran.err


def test_a_constraint_is_kept_to(diag: Diag, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(PLAN + "constraints: [c == d]\n")
    ran = tried(diag, "--json")
    told = ran.told
    assert all(trial["config"]["c"] == trial["config"]["d"] for trial in told["trials"])
    assert told["culprit"]["factors"]["b"] == 1
    assert set(told["forbidden"].values()) <= {"c == d"}
    assert told["inseparable"]
    valid(told, "bisect")


# --- several at once ----------------------------------------------------------------------------------------------


def test_a_command_is_tried_for_several_hosts_at_once(diag: Diag, tmp_path: Path) -> None:
    ran = tried(diag, "one", "two", "--json")
    assert ran.code == 1, ran.err
    told = ran.told
    valid(told, "bisect")
    assert told["culprit"]["factors"] == {"b": 1, "d": 1}
    assert (told["host"], told["hosts"], told["left_out"]) == ("one, two", ["one", "two"], {})
    made = (tmp_path / "made").read_text().split()
    counted = Counter(trial["host"] for trial in told["trials"])
    assert not counted - Counter(made)
    assert (Counter(made) - counted).total() <= 1  # one may be under way on the other host when the answer is known
    assert set(made) == {"one", "two"}
    page = diag("runs", "show", told["run"]).out
    assert "one, two" in page.splitlines()[0]
    assert " · two · " in page
    listed = diag("runs", "list", "--json").told
    valid(listed, "runs")
    assert listed["runs"][0]["hosts"] == ["one", "two"]
    shown = diag("runs", "show", told["run"], "--json").told
    valid(shown, "runs-show")
    assert [entry["host"] for entry in shown["entries"]] == [trial["host"] for trial in told["trials"]]


def test_a_host_where_the_good_configuration_fails_is_left_out_and_said_so(diag: Diag) -> None:
    ran = tried(diag, "one", "two", cmd='test "$DIAG_HOST" = one && test "$DIAG_B$DIAG_D" != 11')
    assert ran.code == 1, ran.err
    assert "left out      two: exit code 1" in ran.out
    assert "two is left out: its good configuration does not pass" in ran.err
    assert "  host  " in ran.out
    run = diag("runs", "list", "--json").told["runs"][0]["run"]
    assert "two was left out" in diag("runs", "show", run).out


def test_resumed_it_is_about_the_same_hosts(diag: Diag, tmp_path: Path) -> None:
    told = tried(diag, "one", "two", "--json").told
    count = len((tmp_path / "made").read_text().split())
    assert diag("bisect", "three", "--resume", told["run"]).code == 2
    again = diag("bisect", "--resume", told["run"], "--json")
    assert (again.code, again.told["hosts"]) == (1, ["one", "two"])
    assert len((tmp_path / "made").read_text().split()) == count, "nothing is made again"


def test_ctrl_c_ends_the_trials_of_all(tmp_path: Path, diag: Diag) -> None:
    cmd = "echo $$ >> pids; sleep 60"
    with subprocess.Popen(
        command("bisect", "one", "two", "three", "--plan", "./mine.yaml", "--trial-cmd", cmd),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        pids = tmp_path / "pids"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not pids.exists() or len(pids.read_text().split()) < 3):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Go on: diag bisect --resume" in err
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


# --- before and after -----------------------------------------------------------------------------------------------


def test_dry_run_says_what_would_be_tried_and_how_long(diag: Diag, tmp_path: Path) -> None:
    told = tried(diag, "--dry-run", "--json").told
    valid(told, "bisect-dry-run")
    assert told["expected_minutes"] is None
    assert [step["config"] for step in told["first_trials"][:2]] == [dict.fromkeys("abcd", n) for n in (0, 1)]
    assert "how long is not known" in tried(diag, "--dry-run").out
    assert not (tmp_path / "made").exists()
    tried(diag)
    told = tried(diag, "--dry-run", "--json").told
    assert told["expected_minutes"] is not None
    assert "earlier trials of this plan" in told["minutes_from"]
    page = tried(diag, "one", "two", "--dry-run").out
    assert "trial 3" in page
    assert "earlier trials of this plan" in page


def test_after_each_trial_the_likeliest_and_what_is_to_come(diag: Diag) -> None:
    err = tried(diag).err
    lines = [line for line in err.splitlines() if "likeliest:" in line]
    assert lines
    assert "likeliest: b=1 and d=1" in lines[-1]


def test_a_failure_of_another_kind_counts_for_nothing_and_is_named(diag: Diag) -> None:
    """b breaks the output; c alone makes it end otherwise, which is not what is looked for."""
    fails = 'test "$DIAG_{}" != 1 || {{ echo "signature={}"; exit 1; }}; '
    cmd = fails.format("B", "garbled") + fails.format("C", "HTTP 500")
    ran = tried(diag, "--json", cmd=cmd)
    told = ran.told
    valid(told, "bisect")
    assert (told["signature"], told["culprit"]["factors"]) == ("garbled", {"b": 1})
    assert {other["signature"] for other in told["other_failures"]} == {"HTTP 500"}
    page = tried(diag, cmd=cmd).out
    assert "another fault" in page
    assert page.splitlines()[1].strip().startswith("The output breaks where b=1")


def test_a_run_that_is_being_worked_on_is_not_removed(diag: Diag, tmp_path: Path) -> None:
    from diag.journal import Journal

    told = tried(diag, "--json").told
    with Journal.reopen(tmp_path / "state" / "runs" / told["run"], told["run"]):
        refused = diag("runs", "rm", told["run"])
        assert (refused.code, "Another diag is working" in refused.err) == (5, True)
        assert diag("bisect", "--resume", told["run"]).code == 5
    assert diag("runs", "rm", told["run"]).code == 0
