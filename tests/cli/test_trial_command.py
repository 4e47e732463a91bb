"""`diag bisect --trial-cmd`, `--resume` and `diag runs`, as a person uses them: real commands, real kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.lab_fixture import Ran, command

Diag = Callable[..., Ran]

PLAN = "factors:\n" + "".join(f"  {name}: {{good: 0, bad: 1}}\n" for name in ("a", "b", "c", "d"))
# Breaks when b and d are both at their failing level; leaves a line for each trial made.
TRY = 'echo "$DIAG_A $DIAG_B $DIAG_C $DIAG_D" >> made; test "$DIAG_B$DIAG_D" != 11'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"DIAG_STATE_DIR": str(tmp_path / "state"), "DIAG_CONFIG_DIR": str(tmp_path / "config")}


def bisect(diag: Diag, project: Path, env: dict[str, str], *more: str, cmd: str = TRY) -> Ran:
    return diag("bisect", "--plan", "./mine.yaml", "--trial-cmd", cmd, *more, env=env, cwd=project)


def made(project: Path) -> list[str]:
    return (project / "made").read_text().splitlines()


def test_a_pair_is_found_without_a_host(diag: Diag, project: Path, env: dict[str, str]) -> None:
    ran = bisect(diag, project, env, "--json")
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    assert told["verdict"] == "culprit"
    assert told["culprit"]["factors"] == {"b": 1, "d": 1}
    assert told["culprit"]["relation"] == "and"
    assert told["host"] == "this machine"
    assert len(made(project)) == len(told["trials"]) == len(set(made(project)))


def test_dry_run_makes_no_trial(diag: Diag, project: Path, env: dict[str, str]) -> None:
    ran = bisect(diag, project, env, "--dry-run")
    assert ran.code == 0
    assert "DIAG_B=1" in ran.out
    assert not (project / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("bisect", "--plan", "./mine.yaml"), 2, "'command' is missing"),
        (("bisect", "box", "box", "--plan", "./mine.yaml", "--trial-cmd", "true"), 2, "named twice"),
        (("bisect", "--plan", "./mine.yaml", "--trial-cmd", "nonesuch"), 5, "exit code 127"),
        (("bisect", "--plan", "./mine.yaml", "--trial-cmd", "false"), 3, ""),
        (("bisect", "--plan", "./mine.yaml", "--trial-cmd", "true"), 3, ""),
        (("bisect",), 2, "Which host"),
        (("bisect", "--resume", "none"), 2, "There is no run 'none'"),
        (("bisect", "--resume", "../x"), 2, "There is no run '../x'"),
        (("runs", "show", "none"), 2, "There is no run 'none'"),
    ],
)
def test_wrong_input(
    diag: Diag, project: Path, env: dict[str, str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = diag(*arguments, env=env, cwd=project)
    assert ran.code == code, ran.err
    assert said in ran.err


def test_kill_9_loses_the_running_trial_and_no_other(diag: Diag, project: Path, env: dict[str, str]) -> None:
    slow = TRY.replace("test ", "sleep 0.2; test ")
    cut: list[str] = []
    for _ in range(4):  # killed again and again, the run still ends, and counts nothing twice
        resume = ("--resume", cut[0]) if cut else ("--plan", "./mine.yaml", "--trial-cmd", slow)
        child = subprocess.Popen(
            command("bisect", *resume),
            env={**os.environ, **env},
            cwd=project,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = len(made(project)) if (project / "made").exists() else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not (project / "made").exists() or len(made(project)) < before + 2):
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        listed = json.loads(diag("runs", "list", "--json", env=env).out)["runs"]
        assert len(listed) == 1
        cut = [listed[0]["run"]]
        assert listed[0]["ended"] in ("cut off", "culprit")
    ran = diag("bisect", "--resume", cut[0], "--json", env=env, cwd=project)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    assert told["culprit"]["factors"] == {"b": 1, "d": 1}
    configs = [json.dumps(trial["config"]) for trial in told["trials"]]
    assert len(configs) == len(set(configs))
    assert [trial["number"] for trial in told["trials"]] == list(range(1, len(configs) + 1))
    # At most one trial was lost with each kill.
    assert len(made(project)) <= len(configs) + 4
    shown = diag("runs", "show", cut[0], env=env)
    assert "ended: culprit" in shown.out
    assert diag("runs", "rm", cut[0], env=env).code == 0
    assert json.loads(diag("runs", "list", "--json", env=env).out)["runs"] == []


def test_a_changed_plan_is_refused_with_the_difference(diag: Diag, project: Path, env: dict[str, str]) -> None:
    assert bisect(diag, project, env).code == 1
    run = json.loads(diag("runs", "list", "--json", env=env).out)["runs"][0]["run"]
    again = diag("bisect", "--resume", run, env=env, cwd=project)
    assert again.code == 1  # finished: the same verdict, and no trial is made again
    count = len(made(project))
    (project / "mine.yaml").write_text(PLAN.replace("c: {good: 0, bad: 1}", "c: {good: 0, bad: 2}"))
    refused = diag("bisect", "--resume", run, env=env, cwd=project)
    assert refused.code == 5
    assert "-  c: {good: 0, bad: 1}" in refused.err
    assert "+  c: {good: 0, bad: 2}" in refused.err
    assert len(made(project)) == count


# Shows in about two of three runs, and never without both: a counter instead of chance, so that the test is the same
# every time.
FLAKY = (
    "n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count; "
    'if [ "$DIAG_B$DIAG_D" = 11 ] && [ $((n % 3)) -ne 1 ]; then echo garbled=3/8; exit 1; fi; echo garbled=0/8'
)


def test_a_fault_that_flakes_is_named_with_its_rates(diag: Diag, project: Path, env: dict[str, str]) -> None:
    (project / "mine.yaml").write_text("max_trials: 150\n" + PLAN)
    ran = bisect(diag, project, env, "--flaky", "--json", cmd=FLAKY)
    assert ran.code == 1, (ran.out[-2000:], ran.err[-500:])
    told = json.loads(ran.out)
    assert told["culprit"]["factors"] == {"b": 1, "d": 1}
    assert told["culprit"]["confidence"] >= 0.98
    assert told["rates"]["active"]["garbled"] < told["rates"]["active"]["tried"]
    assert told["rates"]["idle"]["garbled"] == 0
    assert told["held_out"]
    schema = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "bisect.json").read_text())
    jsonschema.validate(told, schema)
    page = bisect(diag, project, env, "--flaky", cmd=FLAKY)
    assert "rates         with it" in page.out
    assert page.out.startswith("CULPRIT")
