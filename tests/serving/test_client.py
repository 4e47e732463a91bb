"""What SGLang answers, in its own shapes, and what is made of it; answers nobody expects, too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.serving import engine
from diag.serving.client import IMPOSSIBLE_NATS, Client, Prompt, scores_from
from diag.serving.sglang import SGLANG
from diag.verdict.compare import Score

# Shapes as SGLang 0.5.12 gives them; numbers made up.
OWN = [[None, 1, None], [-2.0, 2, None], [-0.5, 7, None], [-3.0, 8, None]]
TOP = [
    None,
    [[-2.0, 2, None], [-2.5, 3, None]],
    [[-0.25, 9, None], [-0.5, 7, None]],
    [[-1.0, 4, None], [-1.125, 5, None]],
]


def test_scores_are_gaps_of_the_last_emitted_tokens() -> None:
    assert scores_from(OWN, TOP, 2) == [Score(0.25), Score(2.0)]
    assert scores_from(OWN, TOP, 3) == [Score(0.0), Score(0.25), Score(2.0)]


def test_a_rival_is_looked_up_at_its_place_only() -> None:
    assert scores_from(OWN, TOP, 2, rival=(1, 5)) == [Score(0.25), Score(2.0, 0.125)]
    assert scores_from(OWN, TOP, 2, rival=(0, 9)) == [Score(0.25, 0.0), Score(2.0)]
    assert scores_from(OWN, TOP, 2, rival=(1, 9)) == [Score(0.25), Score(2.0, None)]


@pytest.mark.parametrize("value", [None, -math.inf, math.nan])
def test_a_token_without_a_number_beside_best_ones_is_one_the_model_holds_impossible(value: float | None) -> None:
    scores = scores_from([[value, 1, None]], [[[-1.0, 2, None]]], 1)
    assert scores is not None
    assert scores[0].gap_nats == IMPOSSIBLE_NATS


@pytest.mark.parametrize(
    ("own", "top", "emitted"),
    [
        ([], [], 1),
        (OWN, [], 1),
        (OWN, TOP, 5),
        (OWN, TOP, 4),
        ([[-1.0, 1, None]], [None], 1),
        ([[-1.0, 1, None]], [[]], 1),
        ([[-1.0, 1, None]], [[[None, 1, None]]], 1),
        ([[-1.0, 1, None]], [[[math.nan, 1, None]]], 1),
        ([None], [None], 1),
        ([[]], [[[-1.0, 1, None]]], 1),
        ([["x", 1, None]], [[[-1.0, 1, None]]], 1),
        ({"a": 1}, {"b": 2}, 1),
        (7, 7, 1),
    ],
)
def test_what_is_not_all_there_is_no_score(own: Any, top: Any, emitted: int) -> None:
    assert scores_from(own, top, emitted) is None


def test_a_token_better_than_the_best_reported_has_no_gap() -> None:
    assert scores_from([[-0.5, 1, None]], [[[-0.75, 2, None]]], 1) == [Score(0.0)]


def test_nothing_emitted_has_no_scores() -> None:
    assert scores_from(OWN, TOP, 0) == []


def client(handler: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client(httpx.Client(transport=httpx.MockTransport(handler), base_url="http://server"))


def answering(document: Any, status: int = 200) -> Client:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return client(lambda request: httpx.Response(status, content=content))


POEM = Prompt("poem", "Write")


def test_an_answer_as_sglang_gives_it() -> None:
    meta = {"finish_reason": {"type": "length", "length": 3}, "spec_accept_length": 2.5, "completion_tokens": 3}
    answer = answering({"text": "abc", "output_ids": [1, 2, 3], "meta_info": meta}).generate(POEM, 3)
    assert (answer.prompt, answer.text, answer.token_ids) == ("poem", "abc", (1, 2, 3))
    assert (answer.finish_reason, answer.accept_length, answer.error) == ("length", 2.5, "")


def test_it_asks_greedily_and_for_nothing_more() -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"text": "", "output_ids": []})

    client(handler).generate(POEM, 40)
    assert seen == [("/generate", {"text": "Write", "sampling_params": {"temperature": 0, "max_new_tokens": 40}})]


def test_an_aborted_request_is_an_error_that_says_why() -> None:
    meta = {"finish_reason": {"type": "abort", "message": "out of memory"}}
    assert "out of memory" in answering({"text": "", "meta_info": meta}).generate(POEM, 3).error


@pytest.mark.parametrize(
    "document", [b"", b"<html>", b"\xff", [], [1], None, "text", 3, {"error": {"message": "no"}}, [{"text": "a"}]]
)
def test_what_is_no_answer_is_an_error_or_an_empty_text(document: Any) -> None:
    assert answering(document, status=500).generate(POEM, 3).error.startswith("HTTP 500")
    if not isinstance(document, dict):
        assert answering(document).generate(POEM, 3).error.startswith("HTTP 200")
    assert answering(document).tokenize(POEM) is None
    assert answering(document).score([1], [2]) is None
    assert answering(document).server_info() == (document if isinstance(document, dict) else {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
META = st.fixed_dictionaries(
    {},
    optional={
        "finish_reason": JSON,
        "spec_accept_length": JSON,
        "input_token_logprobs": JSON,
        "input_top_logprobs": JSON,
    },
)


@given(st.fixed_dictionaries({}, optional={"text": JSON, "output_ids": JSON, "meta_info": META | JSON}))
@settings(max_examples=300, deadline=None)
def test_no_answer_of_any_shape_is_a_traceback(document: dict[str, Any]) -> None:
    strange = answering(document)
    answer = strange.generate(POEM, 3)
    assert isinstance(answer.text, str)
    assert all(isinstance(token, int) for token in answer.token_ids)
    assert answer.accept_length is None or isinstance(answer.accept_length, int | float)
    ids = strange.tokenize(POEM)
    assert ids is None or all(isinstance(token, int) for token in ids)
    scores = strange.score([1, 2], [3, 4])
    assert scores is None or len(scores) == 2


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_a_server_that_is_gone_is_an_error_in_the_answer() -> None:
    gone = client(refuse)
    assert gone.generate(POEM, 3).error == "no answer: refused"
    assert [a.error for a in gone.generate_together([POEM, POEM], 3)] == ["no answer: refused"] * 2
    assert gone.generate_together([], 3) == []
    assert gone.tokenize(POEM) is None
    assert gone.score([1], [2]) is None


def test_several_at_once_come_back_in_their_order() -> None:
    def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"text": json.loads(request.content)["text"], "output_ids": [1]})

    names = [f"p{i}" for i in range(16)]
    answers = client(echo).generate_together([Prompt(n, n.upper()) for n in names], 3)
    assert [(a.prompt, a.text) for a in answers] == [(n, n.upper()) for n in names]


def test_scoring_asks_for_the_positions_that_were_emitted() -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"meta_info": {"input_token_logprobs": OWN, "input_top_logprobs": TOP}})

    assert client(handler).score([5, 6], [7, 8], rival=(1, 5)) == [Score(0.25), Score(2.0, 0.125)]
    assert seen[0]["input_ids"] == [5, 6, 7, 8]
    assert seen[0]["logprob_start_len"] == 1
    assert client(handler).tokenize(POEM) == [1, 2, 7, 8]


def test_the_information_page_under_its_new_and_its_old_name() -> None:
    def old(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.url.path == "/get_server_info" else 404, json={"a": 1})

    assert client(old).server_info() == {"a": 1}
    assert answering({}, status=404).server_info() == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", {"b": [{"c": 0}, 5]}),
        ("a.b.0.c", 0),
        ("a.b.1", 5),
        ("a.b.2", None),
        ("a.b.-1", None),
        ("a.b.x", None),
        ("a.b.1.c", None),
        ("", None),
        ("a.b.²", None),
    ],
)
def test_dotted_paths(path: str, value: Any) -> None:
    assert engine.read_path({"a": {"b": [{"c": 0}, 5]}}, path) == value


def test_the_field_of_a_flag() -> None:
    assert SGLANG.field_of_flag("--speculative-eagle-topk") == "speculative_eagle_topk"
