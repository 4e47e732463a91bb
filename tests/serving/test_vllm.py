"""vLLM in the lab's second personality: asked, scored, read back, probed and bisected as any server is."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from diag import probe
from diag.hosts import inventory, reaping
from diag.hosts.transport import Transport, connect
from diag.lab.layout import Lab, model_dir
from diag.serving import server
from diag.serving.client import Prompt
from diag.serving.engine import recognised
from diag.serving.suspects import plan_text, suspects
from diag.serving.vllm import VllmClient
from diag.verdict import prompts
from tests.lab_fixture import Ran

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'
# The mask of the step before is read where a captured step is replayed, and only a step that verifies drafts has one.
FAULT = ("--lab-fault", "stale-mask", "--speculative-config", NGRAM)
POEM = Prompt("poem", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,")

SUITE = {
    "schema": 1,
    "name": "one",
    "max_new_tokens": 16,
    "prompts": [{"name": POEM.name, "text": POEM.text, "expect": "Friday"}],
}


@contextmanager
def serving(lab: Lab, transport: Transport, *flags: str) -> Iterator[server.Server]:
    argv = (str(lab.python.with_name("vllm")), "serve", str(model_dir()), "--host", "127.0.0.1", "--port", "{port}")
    launch = server.Launch(
        argv=(*argv, *flags), run_id=f"test-{secrets.token_hex(4)}", ready_timeout_s=120, engine="vllm"
    )
    with server.start(transport, launch) as running:
        yield running
    assert running.stopped["left"] == []


@pytest.fixture(scope="module")
def transport(lab: Lab) -> Iterator[Transport]:
    with connect(inventory.load().get("lab")) as opened:
        yield opened


@pytest.fixture(scope="module")
def running(lab: Lab, transport: Transport) -> Iterator[server.Server]:
    """Healthy, with speculation."""
    with serving(lab, transport, "--speculative-config", NGRAM, "--no-enable-prefix-caching") as up:
        yield up


def test_it_is_told_from_an_sglang_server(running: server.Server) -> None:
    found = recognised(running.client._http)
    assert found is not None
    assert found.name == "vllm"


def test_answers_have_the_ids_that_their_text_was_made_of(running: server.Server) -> None:
    answer = running.client.generate(POEM, 16)
    assert answer.error == ""
    assert len(answer.token_ids) == 16
    assert answer.finish_reason == "length"
    assert "Wednesday" in answer.text


def test_older_versions_tell_ids_as_words(running: server.Server) -> None:
    client = VllmClient(running.client._http)
    client._ids_by_words = True
    assert client.generate(POEM, 8).token_ids == running.client.generate(POEM, 8).token_ids


def test_an_answer_scores_as_likely_and_salad_does_not(running: server.Server) -> None:
    client = running.client
    ids, answer = client.tokenize(POEM), client.generate(POEM, 12)
    assert ids is not None
    scores = client.score(ids, answer.token_ids)
    assert scores is not None
    assert [round(score.gap_nats, 3) for score in scores] == [0.0] * 12
    wrong = client.score(ids, [token + 1000 for token in answer.token_ids], rival=(0, answer.token_ids[0]))
    assert wrong is not None
    assert min(score.gap_nats for score in wrong[:3]) > 3
    assert wrong[0].rival_gap_nats == 0.0


def test_what_is_in_force_is_told_by_the_names_of_the_flags(running: server.Server) -> None:
    info = running.client.server_info()
    assert info["enable_prefix_caching"] is False
    assert info["kv_cache_dtype"] == "auto"
    assert info["speculative_config"] == json.loads(NGRAM)
    assert info["compilation_config"]["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert info["dtype"] == "float32"
    running.client.generate(POEM, 16)
    after = running.client.server_info()["metrics"]
    assert after["spec_decode_num_drafts_total"] > info["metrics"]["spec_decode_num_drafts_total"]


def test_a_refused_request_is_an_answer_with_an_error(running: server.Server) -> None:
    answer = running.client.asking({"temperature": 0.7}).generate(POEM, 4)
    assert answer.error.startswith("HTTP 400: ")


def test_an_answer_of_all_at_once_is_that_of_each_alone(running: server.Server) -> None:
    alone = running.client.generate(POEM, 12)
    together = running.client.generate_together([POEM] * 4, 12)
    assert {answer.token_ids for answer in together} == {alone.token_ids}


def test_probe_prompts_asks_and_scores_it(running: server.Server, tmp_path: Path, diag: Callable[..., Ran]) -> None:
    """What the look of a text says is tested elsewhere; here, that the model's own scores are asked for."""
    (tmp_path / "one.yaml").write_text(json.dumps(SUITE))
    ran = diag("probe", "prompts", f"lab:{running.port}", "--suite", str(tmp_path / "one.yaml"), "--json")
    document = json.loads(ran.out)
    assert document["kind"] == "vllm"
    assert all(len(answer["token_ids"]) == 16 for answer in document["answers"])
    assert {each["rule"] for answer in document["answers"] for each in answer["evidence"]} <= {"salad"}


def test_probe_host_judges_it(running: server.Server, transport: Transport, tmp_path: Path) -> None:
    """That one alone: `probe host` asks every server of the machine."""
    (facts,) = [one for one in reaping.servers(transport)["servers"] if one["port"] == running.port]
    assert facts["engine"] == "vllm"
    (tmp_path / "one.yaml").write_text(json.dumps(SUITE))
    suite = prompts.load(str(tmp_path / "one.yaml"))
    seen = probe._server(transport, facts, suite, True, lambda line: None)
    assert seen.unknown == ""
    assert seen.effective["speculative_config"] == json.loads(NGRAM)
    assert {text.kind for text in seen.texts} == {"plausible"}


def test_without_its_developer_mode_it_tells_less_and_is_asked_the_same(lab: Lab, transport: Transport) -> None:
    """As a server that somebody else started."""
    argv = (str(lab.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir()))
    launch = server.Launch(
        argv=(*argv, "--port", "{port}", "--host=0.0.0.0"), run_id="test-plain-vllm", ready_timeout_s=120, engine="vllm"
    )
    with server.start(transport, launch) as up:
        info = up.client.server_info()
        assert info == {
            **{"version": "0.14.0", "block_size": 16, "kv_cache_dtype": "auto", "enable_prefix_caching": True},
            "metrics": {},
        }
        up.client.flush_cache()
        assert up.client.generate(POEM, 4).token_ids


def test_a_flag_it_does_not_know_is_refused_as_vllm_refuses_it(lab: Lab, transport: Transport) -> None:
    from diag.errors import ServerDied

    with pytest.raises(ServerDied) as died, serving(lab, transport, "--kv-cache-dtyp", "fp8"):
        pass
    assert any("unrecognized arguments" in line for line in died.value.details)


def test_the_usual_suspects_of_a_start_line_find_the_pair(lab: Lab, tmp_path: Path, diag: Callable[..., Ran]) -> None:
    """End to end: the line of a garbling server, a plan of its suspects, the two settings that it takes. Three of them
    and one prompt, to be quick."""
    line = f"{lab.python.with_name('vllm')} serve {model_dir()} --port 8000 {shlex.join(FAULT)}"
    found = suspects("vllm", "0.14.0", shlex.split(line))
    few = [one for one in found.factors if one.name in ("cuda_graph", "speculation", "prefix_caching")]
    (tmp_path / "one.yaml").write_text(json.dumps(SUITE))
    plan = tmp_path / "suspects.yaml"
    plan.write_text(plan_text(replace(found, factors=tuple(few))).replace("prompts: garble", "prompts: ./one.yaml"))
    ran = diag("bisect", "lab", "--plan", str(plan), "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["verdict"]) == (1, "culprit"), ran.err
    assert set(document["culprit"]["factors"]) == {"cuda_graph", "speculation"}


def test_a_closed_port_is_an_error_of_the_connection(running: server.Server) -> None:
    client = VllmClient(httpx.Client(base_url="http://127.0.0.1:9", timeout=2))
    assert client.generate(POEM, 1).error.startswith("no answer: ")
    assert client.score([1], [2]) is None
    assert client.tokenize(POEM) is None
