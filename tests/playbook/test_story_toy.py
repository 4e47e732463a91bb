"""The shipped playbooks on a toy host: the engine is a toy, the file that is mended is a real release's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.playbook import toys
from tests.playbook.toys import Toy

pytestmark = pytest.mark.wheel

Playbook = Callable[..., object]


def test_the_whole_story_and_the_host_is_as_it_was(toy: Toy, playbook: Playbook) -> None:
    told = playbook("run", "ddtree-garble", "toy", "--set", "ask=false", "--json")
    assert told.code == 1, told.err + told.out
    (host,) = told.document["hosts"].values()
    steps = {step["id"]: step for step in host["steps"]}
    assert {step["state"] for step in steps.values()} == {"done"}
    assert steps["cause"]["result"]["values"]["culprit"] == "budget + 1 != block_size"
    assert steps["after"]["result"]["values"]["verdict"] == "clean"
    assert steps["mend"]["result"]["values"]["changed"] is True
    assert told.document["why"].startswith("culprit: budget + 1 != block_size")
    assert {change["state"] for change in host["changes"]} == {"given back"}
    assert toy.is_pristine()
    (journal,) = toy.runs()
    assert toys.outstanding(journal) == []
