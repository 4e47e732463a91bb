"""`--over versions` and `--over commits` with real processes on this machine as the host: real wheels of a toy engine,
a real index, a real repository; pip, git and the server are really run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jsonschema
import pytest

from tests.bisect.over.wheel_index import build, index
from tests.lab_fixture import Ran, command

Diag = Callable[..., Ran]

HERE = Path(__file__).resolve().parent
SCHEMA = json.loads((HERE.parents[2] / "docs" / "schemas" / "bisect.json").read_text())
PLAN = """\
schema: 1
kind: bisect
name: toy
command: "{python} -m sglang.launch_server --port {port}"
prompts: ./suite.yaml
ready_timeout_s: 20
factors:
  batch: {flag: --batch, good: 1, bad: 8}
"""
SUITE = """\
schema: 1
name: one
title: one prompt
max_new_tokens: 32
prompts:
  - {name: river, user: "Tell me about the river."}
"""


def engine(version: str, how: str) -> dict[str, bytes]:
    return {
        "sglang/__init__.py": b"",
        "sglang/launch_server.py": (HERE / "toy_launch_server.py").read_bytes(),
        "sglang/state.py": f"HOW, VERSION = {how!r}, {version!r}\n".encode(),
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(PLAN)
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folders = {"DIAG_STATE_DIR": "state", "DIAG_CONFIG_DIR": "config", "DIAG_CACHE_DIR": "cache"}
    return {**{name: str(tmp_path / part) for name, part in folders.items()}, "XDG_CACHE_HOME": str(tmp_path / "host")}


def released(project: Path, states: Mapping[str, str], yanked: tuple[str, ...] = ()) -> dict[str, str]:
    """What pip must be told."""
    wheels = [build(project / "wheels", "sglang", version, engine(version, how)) for version, how in states.items()]
    return index(project, wheels, yanked)


def arguments(what: str, good: str, bad: str, *more: str) -> list[str]:
    ends = ["--over", what, "--good", good, "--bad", bad]
    return ["bisect", "local", *ends, "--plan", "./toy.yaml", "--set", f"python={sys.executable}", *more]


def left_on_the_host(project: Path) -> list[str]:
    """What lies in the host's cache, but for the wheels that are kept."""
    kinds = [project / "host" / "diag" / kind for kind in ("overlays", "trees")]
    return [path.name for kind in kinds if kind.is_dir() for path in kind.iterdir()]


def wait_until(true: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


STATES = {
    "1.0": "healthy",
    "1.1": "healthy",
    "1.2rc1": "garbled",
    "1.2": "healthy",
    "1.3": "dead",
    "1.4": "dead",
    "1.5": "healthy",
    "1.6": "garbled",
    "1.7": "garbled",
    "1.8": "garbled",
}


def test_versions_are_laid_out_tried_and_taken_away(diag: Diag, project: Path, env: dict[str, str]) -> None:
    env |= released(project, STATES, yanked=("1.7",))
    ran = diag(*arguments("versions", "1.0", "1.8", "--json"), env=env, cwd=project)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    jsonschema.validate(told, SCHEMA)
    assert told["culprit"]["factors"] == {"version": "1.6"}
    assert told["culprit"]["predicate"] == "version >= 1.6"
    assert told["over"]["last_good"] == ["1.5"]
    assert told["over"]["places"] == 8  # neither the yanked one nor the pre-release
    assert all(t["effective"] == t["config"] for t in told["trials"])
    # What ran is what was laid out: the server said so itself, and every file lay in the overlay.
    assert all("/overlays/" in t["details"]["origin"] for t in told["trials"] if t["outcome"] != "skip")
    assert left_on_the_host(project) == []
    assert list((project / "host" / "diag" / "wheels").rglob("*.whl"))


def test_versions_that_do_not_start_are_said_and_not_guessed(diag: Diag, project: Path, env: dict[str, str]) -> None:
    states = {"1.0": "healthy", "1.1": "dead", "1.2": "garbled"}
    env |= released(project, states)
    ran = diag(*arguments("versions", "1.0", "1.2"), env=env, cwd=project)
    assert ran.code == 3, ran.err
    assert ran.out.startswith("NARROWED")
    assert "left          2 of 2, one of which it is:" in ran.out
    assert "version 1.1 (50%, cannot be tried)" in ran.out
    assert "does not start: ImportError: libcudart.so.12" in ran.out
    assert left_on_the_host(project) == []


@pytest.mark.parametrize(
    ("ends", "states", "code", "said"),
    [
        (("1.0", "1.1"), {"1.0": "healthy", "1.1": "dead"}, 5, "The bad end, version 1.1, does not start"),
        (("1.0", "1.1"), {"1.0": "garbled", "1.1": "garbled"}, 3, "version 1.0, the good end, fails itself"),
    ],
)
def test_ends_that_are_no_ends(
    diag: Diag,
    project: Path,
    env: dict[str, str],
    ends: tuple[str, str],
    states: Mapping[str, str],
    code: int,
    said: str,
) -> None:
    env |= released(project, states)
    ran = diag(*arguments("versions", *ends), env=env, cwd=project)
    assert ran.code == code, ran.err
    assert said in ran.out + ran.err
    assert left_on_the_host(project) == []


def test_a_dry_run_shows_the_range_and_starts_nothing(diag: Diag, project: Path, env: dict[str, str]) -> None:
    env |= released(project, STATES)
    ran = diag(*arguments("versions", "1.0", "1.8", "--dry-run"), env=env, cwd=project)
    assert ran.code == 0, ran.err
    assert "9 versions, 1.0 (good) to 1.8 (bad)" in ran.out
    assert "-m sglang.launch_server --port {port} --batch 8" in ran.out
    assert not (project / "state").exists()
    assert left_on_the_host(project) == []


def test_an_interpreter_that_ignores_pythonpath_is_refused(diag: Diag, project: Path, env: dict[str, str]) -> None:
    """Else every trial would be of the installed version, and the answer about nothing."""
    env |= released(project, {"1.0": "healthy", "1.1": "garbled"})
    python = project / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    python.chmod(0o755)
    plan = [*arguments("versions", "1.0", "1.1"), "--set", f"python={python}"]
    ran = diag(*plan, env=env, cwd=project)
    assert ran.code == 5, ran.err
    assert "does not import sglang from the folder that PYTHONPATH names first" in ran.err
    assert left_on_the_host(project) == []


def test_kill_9_leaves_nothing_and_the_run_goes_on(diag: Diag, project: Path, env: dict[str, str]) -> None:
    states = {f"1.{at}": "garbled" if at >= 4 else "healthy" for at in range(5)}
    env |= released(project, states)
    child = subprocess.Popen(
        command(*arguments("versions", "1.0", "1.4")),
        env={**os.environ, **env},
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journals = project / "state" / "runs"
    wait_until(lambda: any('"kind": "trial"' in path.read_text() for path in journals.rglob("journal.jsonl")))
    child.send_signal(signal.SIGKILL)
    child.wait()
    run = json.loads(diag("runs", "list", "--json", env=env).out)["runs"][0]
    assert run["ended"] == "cut off"
    assert run["plan"] == "toy, versions of sglang"
    # The program on the host has seen its input end: it removes what was laid out when the server has gone.
    wait_until(lambda: left_on_the_host(project) == [])
    ran = diag("bisect", "--resume", run["run"], "--set", f"python={sys.executable}", "--json", env=env, cwd=project)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    assert told["culprit"]["factors"] == {"version": "1.4"}
    tried = [t["config"]["version"] for t in told["trials"]]
    assert len(tried) == len(set(tried))
    assert "ended: culprit" in diag("runs", "show", run["run"], env=env).out
    assert left_on_the_host(project) == []


# --- commits on a host ---------------------------------------------------------------------------------------------


def git(repo: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, states: list[str]) -> list[str]:
    """An engine's source below python/, as SGLang keeps it; one commit for each state. Ids, oldest first."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    ids = []
    for at, how in enumerate(states):
        for name, content in engine(f"1.{at}", how).items():
            path = folder / "python" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        git(folder, "add", ".")
        who = ("-c", "user.name=n", "-c", "user.email=e")
        git(folder, *who, "commit", "-q", "-m", f"step {at}")
        ids.append(git(folder, "rev-parse", "HEAD"))
    return ids


def test_commits_of_a_checkout_on_the_host(diag: Diag, project: Path, env: dict[str, str]) -> None:
    repo = project / "engine"
    ids = repository(repo, ["healthy", "healthy", "dead", "healthy", "garbled", "garbled"])
    ran = diag(*arguments("commits", ids[0], "main", "--repo", str(repo), "--json"), env=env, cwd=project)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    jsonschema.validate(told, SCHEMA)
    assert told["culprit"]["factors"] == {"commit": ids[4]}
    assert told["culprit"]["title"].startswith("step 4, 20")
    assert told["over"]["last_good"] == [ids[3]]
    assert all("/trees/" in t["details"]["origin"] for t in told["trials"] if t["outcome"] != "skip")
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(repo, "status", "--porcelain") == ""
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert left_on_the_host(project) == []


def test_a_commit_without_the_package_is_skipped(diag: Diag, project: Path, env: dict[str, str]) -> None:
    repo = project / "engine"
    ids = repository(repo, ["healthy", "healthy", "garbled"])
    ran = diag(*arguments("commits", ids[0], "main", "--repo", str(repo), "--source", "lib"), env=env, cwd=project)
    assert ran.code == 5
    assert "the commit has no package sglang in lib of its tree" in ran.err
    assert "--source" in ran.err
