"""On the lab's real servers: two hosts at once, and factors of the request that take no restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from diag.lab.layout import Lab
from tests.lab_fixture import TWO_PROMPTS, Ran, lab_processes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

Diag = Callable[..., Ran]
ROOT = Path(__file__).parents[2]

REQUESTS = """\
command: >-
  {python} -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port}
  --attention-backend triton --speculative-algorithm DDTREE --speculative-ddtree-budget 7
  --speculative-eagle-topk 1 --speculative-num-draft-tokens 8 --disable-cuda-graph
prompts: ./two.yaml
factors:
  tokens: {request: max_new_tokens, good: 8, bad: 24}
  crowd: {request: concurrency, good: 1, bad: 2}
"""


@pytest.fixture
def folder(lab: Lab, tmp_path: Path) -> Path:
    """With a short suite, plans, and an inventory that knows the lab under a second name."""
    (tmp_path / "two.yaml").write_text(TWO_PROMPTS)
    shipped = (ROOT / "playbooks" / "plans" / "ddtree-garble.yaml").read_text()
    (tmp_path / "story.yaml").write_text(shipped.replace("prompts: garble", "prompts: two.yaml"))
    (tmp_path / "requests.yaml").write_text(REQUESTS)
    (tmp_path / "diag.toml").write_text(lab.inventory_file.read_text().replace("[hosts.lab", "[hosts.again"))
    return tmp_path


def test_two_hosts_find_the_equality_and_leave_nothing(diag: Diag, lab: Lab, folder: Path) -> None:
    ran = diag("bisect", "lab", "again", "--plan", "./story.yaml", "--json", cwd=folder, timeout_s=500)
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    jsonschema.validate(told, json.loads((ROOT / "docs" / "schemas" / "bisect.json").read_text()))
    assert told["culprit"]["predicate"] == "budget + 1 != block_size"
    assert (told["hosts"], told["left_out"], told["signature"]) == (["lab", "again"], {}, "garbled")
    hosts = [trial["host"] for trial in told["trials"]]
    assert min(hosts.count("lab"), hosts.count("again")) >= 2, "both have worked"
    for host in ("lab", "again"):
        first = next(trial for trial in told["trials"] if trial["host"] == host)
        assert "control" in first["purpose"]
    assert lab_processes(lab) == []


def test_factors_of_the_request_take_no_restart(diag: Diag, lab: Lab, folder: Path) -> None:
    """A healthy server: both ends on the first one, the failing end once more on a second."""
    ran = diag("bisect", "lab", "--plan", "./requests.yaml", "--json", cwd=folder)
    assert ran.code == 3, ran.err
    told = json.loads(ran.out)
    assert told["verdict"] == "not_reproduced"
    good, bad, again = told["trials"]
    assert (good["start_s"] > 0, bad["start_s"], again["start_s"] > 0) == (True, 0.0, True)
    lengths = [{len(text["token_ids"]) for text in trial["texts"]} for trial in (good, bad, again)]
    assert lengths == [{8}, {24}, {24}]
    assert {text["kind"] for trial in told["trials"] for text in trial["texts"]} <= {
        *("identical", "near_tie", "plausible")
    }
    assert lab_processes(lab) == []
