"""The six shipped playbooks on the lab's real host and servers, with suites and plans that keep them short."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.fixes import catalogue
from diag.lab.layout import Lab
from diag.source import wheels
from tests.bisect.over.wheel_index import build, files_of, index
from tests.lab_fixture import TWO_PROMPTS, Ran, command, lab_processes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

Diag = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
FIX = catalogue.get("mask-indptr")
# The story's plan without what is innocent: three trials name the rule.
PLAN = """\
command: >-
  {python} -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port}
  --attention-backend triton --speculative-algorithm DDTREE --speculative-eagle-topk 4 --disable-cuda-graph
prompts: ./two.yaml
fault: mask-indptr
max_trials: 24
factors:
  budget: {flag: --speculative-ddtree-budget, good: 7, bad: 16, sweep: false}
  block_size: {flag: --speculative-num-draft-tokens, good: 8, bad: 8, levels: [8, 17], sweep: false}
derived:
  mismatch: {title: the verify step is not as wide as the fixed count, when: budget + 1 != block_size}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("playbooks")
    (made / "two.yaml").write_text(TWO_PROMPTS)
    (made / "short.yaml").write_text(PLAN)
    return made


@pytest.fixture
def playbook(diag: Diag, lab: Lab, folder: Path) -> Iterator[Callable[..., tuple[int, dict[str, Any]]]]:
    """playbook("run", NAME, {variable: value}, code): its document, valid by its schema; the lab is as it was."""
    schema = json.loads((ROOT / "docs" / "schemas" / "playbook-run.json").read_text())

    def run(name: str, sets: dict[str, str], env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        ran = diag("playbook", "run", name, "lab", *words, "--json", env=env, timeout_s=800)
        assert ran.out, ran.err
        told: dict[str, Any] = json.loads(ran.out)
        assert "error" not in told, told
        jsonschema.validate(told, schema)
        return ran.code, told

    yield run
    assert lab_processes(lab) == []


def values(told: dict[str, Any], step: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in told["hosts"]["lab"]["steps"] if one["id"] == step)
    assert found["result"] is not None, (found["state"], found["why"])
    result: dict[str, Any] = found["result"]["values"]
    return result


def is_pristine(lab: Lab) -> bool:
    path = lab.site_packages / FIX.file
    released = wheels.read(wheels.fetch("sglang", "0.5.12"), FIX.file)
    return path.read_bytes() == released


def test_health(playbook: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, told = playbook("health", {"ask": "false"})
    assert (code, told["changed"]) == (1, False)
    assert "mask-indptr" in values(told, "host")["faults"]


def test_ddtree_garble(playbook: Callable[..., tuple[int, dict[str, Any]]], lab: Lab, folder: Path) -> None:
    code, told = playbook("ddtree-garble", {"plan": str(folder / "short.yaml"), "ask": "false"})
    assert (code, told["verdict"]) == (1, "found")
    assert {step["state"] for step in told["hosts"]["lab"]["steps"]} == {"done"}
    assert values(told, "cause")["culprit"] == "budget + 1 != block_size"
    assert values(told, "after")["verdict"] == "clean"
    assert {change["state"] for change in told["hosts"]["lab"]["changes"]} == {"given back"}
    assert is_pristine(lab)


def test_fix_and_verify_keeps_it_and_resume_takes_it_back(
    playbook: Callable[..., tuple[int, dict[str, Any]]], diag: Diag, lab: Lab, folder: Path
) -> None:
    code, told = playbook("fix-and-verify", {"plan": str(folder / "short.yaml")})
    assert (code, told["verdict"], told["changed"]) == (0, "done", True)
    assert (values(told, "before")["verdict"], values(told, "after")["verdict"]) == ("fails", "clean")
    assert not is_pristine(lab)
    assert diag("playbook", "resume", told["run"], "--undo").code == 0
    assert is_pristine(lab)


def test_upgrade_regression(playbook: Callable[..., tuple[int, dict[str, Any]]], folder: Path, tmp_path: Path) -> None:
    attention = str(Path(FIX.file).parent)
    kept = files_of(
        wheels.fetch("sglang", "0.5.12"), lambda name: name.startswith(f"{attention}/") or name == "sglang/__init__.py"
    )
    mended = {**kept, FIX.file: FIX.rewrite(kept[FIX.file].decode()).encode()}
    built = [build(tmp_path / "wheels", "sglang", v, files) for v, files in {"0.5.11": mended, "0.5.12": kept}.items()]
    env = {**index(tmp_path, built), "DIAG_CACHE_DIR": str(tmp_path / "cache")}
    sets = {"plan": str(folder / "short.yaml"), "good": "0.5.11", "bad": "0.5.12"}
    code, told = playbook("upgrade-regression", sets, env)
    assert code == 1
    assert values(told, "cause")["culprit"] == "version 0.5.12"
    assert values(told, "untouched")["holds"] is True


def test_intermittent(playbook: Callable[..., tuple[int, dict[str, Any]]], folder: Path) -> None:
    two = str(folder / "two.yaml")
    code, told = playbook("intermittent", {"plan": str(folder / "short.yaml"), "calm": two, "stress": two})
    assert values(told, "crowd")["garbled"] > 0
    assert values(told, "stopped")["clean"] is True
    assert (code, values(told, "cause")["culprit"]) == (1, "budget + 1 != block_size")


@contextmanager
def served() -> Iterator[int]:
    """`diag lab serve`, which garbles, as a person leaves it running in another terminal; its port."""
    with subprocess.Popen(command("lab", "serve"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)", child.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=60)


def test_garbled_output(playbook: Callable[..., tuple[int, dict[str, Any]]], folder: Path) -> None:
    with served() as port:
        sets = {"suite": str(folder / "two.yaml"), "kernels": "false", "port": str(port)}
        code, told = playbook("garbled-output", sets)
    assert code == 1
    assert values(told, "host")["garbled"] >= 1
    assert "mask-indptr" in values(told, "source")["faults"]
    assert values(told, "asked")["answers"] >= 2
    assert values(told, "cause")["culprit"] == "speculation=on"
