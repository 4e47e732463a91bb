"""What vLLM answers, read: configuration, counters, ids, scores. Shapes as in the sources of 0.8.5 to 0.33.0."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.serving.client import IMPOSSIBLE_NATS, Prompt
from diag.serving.engine import recognised
from diag.serving.vllm import VLLM, VllmClient, cache_labels, counters, flattened, scores_from

TEXT = (
    "model='/m', speculative_config=None, tokenizer='/m', skip_tokenizer_init=False, dtype=torch.bfloat16, "
    "tensor_parallel_size=2, enforce_eager=False, kv_cache_dtype=auto, "
    'enable_prefix_caching=True, chunked_prefill_enabled=True, compilation_config={"level":3,"custom_ops":[]}'
)
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0",note="a\\"b"} 1.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 3.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0"} 7.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 1.0
"""


def test_the_configuration_of_older_versions_is_text() -> None:
    found = flattened(TEXT)
    assert found["tensor_parallel_size"] == 2
    assert (found["enforce_eager"], found["enable_prefix_caching"]) == (False, True)
    assert found["enable_chunked_prefill"] is True
    assert found["kv_cache_dtype"] == "auto"
    assert found["speculative_config"] is None


@pytest.mark.parametrize(
    ("told", "mode"),
    [(0, "NONE"), (1, "PIECEWISE"), ([2, 0], "FULL_DECODE_ONLY"), ([2, 1], "FULL_AND_PIECEWISE"), ("FULL", "FULL")],
)
def test_the_graph_mode_has_its_name(told: Any, mode: str) -> None:
    found = flattened({"compilation_config": {"cudagraph_mode": told}, "cache_config": {"cache_dtype": "fp8"}})
    assert found["compilation_config"]["cudagraph_mode"] == mode
    assert found["kv_cache_dtype"] == "fp8"


def test_what_metrics_tell_of_the_cache() -> None:
    assert cache_labels(METRICS) == {
        **{"block_size": 16, "kv_cache_dtype": "fp8", "enable_prefix_caching": False},
        "note": 'a\\"b',
    }


def test_counters_are_summed_and_times_are_none() -> None:
    assert counters(METRICS) == {"spec_decode_num_drafts_total": 15.0, "prefix_cache_hits_total": 7.0}


def _entry(**logprobs: float | None) -> dict[str, Any]:
    return {token.removeprefix("t"): {"logprob": value, "rank": 1} for token, value in logprobs.items()}


def test_scores_are_gaps_to_the_best() -> None:
    found = scores_from([None, _entry(t5=-0.1, t7=-2.1), _entry(t3=-0.5)], [7, 3], rival=(0, 5))
    assert found is not None
    assert [round(score.gap_nats, 6) for score in found] == [2.0, 0.0]
    assert found[0].rival_gap_nats == 0.0


@pytest.mark.parametrize("value", [-9999.0, None, math.nan, -math.inf])
def test_an_impossible_token_has_the_greatest_gap(value: float | None) -> None:
    (score,) = scores_from([_entry(t5=-0.1, t7=value)], [7]) or []
    assert score.gap_nats == IMPOSSIBLE_NATS


@pytest.mark.parametrize("told", [None, [], [None], [_entry(t5=-0.1)], [_entry(t7=None)], "x", [5]])
def test_without_all_scores_there_are_none(told: Any) -> None:
    assert scores_from(told, [7]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("7"), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_anything_may_come_where_an_answer_was_expected(told: Any) -> None:
    scores_from(told, [7])
    flattened(told)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=json.dumps(told))

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://h") as http:
        client = VllmClient(http)
        assert client.generate(Prompt("p", "x"), 4).prompt == "p"
        client.score([1], [7])
        client.tokenize(Prompt("p", "x"))
        client.server_info()
        recognised(http)


def _served(version: str, asked: list[dict[str, Any]]) -> httpx.Client:
    """A server of that version, as far as ids go; what it was asked is kept."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/version":
            return httpx.Response(200, json={"version": version})
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        body = json.loads(request.content)
        asked.append(body)
        choice: dict[str, Any] = {"text": " b", "finish_reason": "length"}
        if body.get("return_token_ids"):
            choice["token_ids"] = [7, 8]
        if body.get("return_tokens_as_token_ids"):
            choice["logprobs"] = {"tokens": ["token_id:7", "token_id:8"]}
        usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://h")


@pytest.mark.parametrize(
    ("version", "by_words"),
    [("0.8.5", True), ("0.10.1.1", True), ("0.10.2", False), ("0.33.0", False), ("0.1.dev1+gabc", False), ("x", False)],
)
def test_ids_are_asked_for_as_the_version_tells_them(version: str, by_words: bool) -> None:
    asked: list[dict[str, Any]] = []
    answer = VllmClient(_served(version, asked), {"top_p": 0.5, "max_new_tokens": 9}).generate(Prompt("p", "a"), 4)
    assert answer.token_ids == (7, 8)
    assert answer.meta["cached_tokens"] == 2
    assert asked[0]["max_tokens"] == 9
    assert ("logprobs" in asked[0]) is by_words
    assert (asked[0]["model"], asked[0]["top_p"], asked[0]["temperature"]) == ("m", 0.5, 0)


@pytest.mark.parametrize(
    ("line", "env"),
    [
        ("vllm serve m --host 127.0.0.1", {"VLLM_SERVER_DEV_MODE": "1"}),
        ("vllm serve m --host=localhost", {"VLLM_SERVER_DEV_MODE": "1"}),
        ("vllm serve m --host 0.0.0.0", {}),
        ("vllm serve m", {}),
    ],
)
def test_developer_mode_only_where_nobody_else_gets_in(line: str, env: dict[str, str]) -> None:
    assert VLLM.environment(line.split()) == env
