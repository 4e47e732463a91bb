"""The shipped playbooks on a toy host: the engine is a toy, the file that is mended is a real release's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import free_port
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


@contextmanager
def garbling(toy: Toy) -> Iterator[int]:
    """A server of somebody's, which garbles; its port."""
    port = free_port()
    flags = ("--model-path", "/models/toy", "--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "16")
    argv = [toy.prefix / "bin" / "python", "-m", "sglang.launch_server", *flags, "--port", str(port)]
    with subprocess.Popen(argv) as server:
        try:
            yield port
        finally:
            server.terminate()


def test_a_garbling_server_is_searched_by_its_own_start_line(toy: Toy, playbook: Playbook) -> None:
    """Its settings are put under suspicion; it is asked, and left running."""
    book = toy.root / "triage.yaml"
    book.write_text(TRIAGE)
    with garbling(toy) as port:
        told = playbook("run", str(book), "toy", "--set", f"port={port}", "--json")
        assert len(toy.servers()) == 1
    assert told.code == 1, told.err
    steps = {step["id"]: step for step in told.document["hosts"]["toy"]["steps"]}
    assert steps["asked"]["result"]["values"]["garbled"] > 0
    assert steps["cause"]["result"]["values"]["culprit"] == "speculation=on"


# What garbled-output does, without asking every server of the machine that tests run on.
TRIAGE = """\
schema: 1
kind: playbook
name: triage
vars: {port: {type: integer}}
steps:
  - {id: host, probe.host: {prompts: false}}
  - {id: asked, probe.prompts: {port: "{port}"}}
  - {id: cause, bisect: {suspects: host, port: "{port}"}}
"""
