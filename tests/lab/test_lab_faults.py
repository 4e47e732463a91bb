"""`diag probe prompts` over SSH against servers of the lab that have a fault that is known to be there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from diag.hosts import inventory
from diag.hosts.transport import connect
from diag.lab.layout import Lab, model_dir
from diag.serving import server
from diag.serving.endpoint import Endpoint, opened
from diag.serving.probing import probe
from diag.verdict.prompts import Suite, load

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

SUITE = Suite.model_validate(
    {
        "schema": 1,
        "name": "faults",
        "max_new_tokens": 16,
        "prompts": [
            {"name": "moon", "user": "What is the moon?"},
            {"name": "days", "text": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,"},
        ],
    }
)


@pytest.fixture(scope="module")
def endpoints(lab: Lab) -> Iterator[tuple[Endpoint, Endpoint]]:
    """(one that is healthy, one that ends answers early)"""
    with ExitStack() as stack:
        transport = stack.enter_context(connect(inventory.load().get("lab")))
        made = []
        for flags in ((), ("--lab-fault", "early-end")):
            base = (str(lab.python), "-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}")
            launch = server.Launch(argv=(*base, *flags), run_id=f"test-{secrets.token_hex(4)}", ready_timeout_s=200)
            running = stack.enter_context(server.start(transport, launch))
            made.append(stack.enter_context(opened(f"lab:{running.port}")))
        yield made[0], made[1]


def test_a_fluent_answer_that_is_too_short_is_found_and_a_healthy_server_is_not_accused(
    endpoints: tuple[Endpoint, Endpoint],
) -> None:
    healthy, early = endpoints
    right = probe(healthy, SUITE, reference=healthy)
    assert {answer.verdict for answer in right.answers} == {"healthy"}
    assert {lead.state for lead in right.leads if lead.id in ("chat-template", "detokeniser")} == {"excluded"}
    wrong = probe(early, SUITE, reference=healthy)
    assert wrong.effective["lab_fault_drawn"] is True
    short = [answer for answer in wrong.answers if answer.finish_reason == "stop"]
    assert short
    assert {answer.verdict for answer in short} == {"garbled"}
    assert {answer.evidence[0].rule for answer in short} == {"reference"}


def test_a_shipped_suite_finds_it_too_and_knows_what_the_server_was_asked_to_be(
    endpoints: tuple[Endpoint, Endpoint],
) -> None:
    healthy, early = endpoints
    right = probe(healthy, load("smoke"), reference=healthy)
    assert {answer.verdict for answer in right.answers} == {"healthy"}
    assert [sign for sign in right.signs if sign.severity == "suspect" or sign.id == "not-as-asked"] == []
    assert early.argv[-2:] == ("--lab-fault", "early-end")
    wrong = probe(early, load("smoke"), reference=healthy)
    assert wrong.summary.rate.garbled >= 4
