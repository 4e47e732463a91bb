"""A script that a job asks without us, and its answers played back: the verdict is that of asking live."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from diag import bundle
from diag.serving import suites
from diag.serving.engine import engine_of
from diag.serving.recording import played_back, script
from diag.verdict.prompts import Suite

TEXTS = {"a": "one two", "b": "drei"}
SUITE = Suite.model_validate(
    {"schema": 1, "name": "two", "prompts": [{"name": name, "text": text} for name, text in TEXTS.items()]}
)
_script = bundle.load("probes._script")


class Toy(http.server.BaseHTTPRequestHandler):
    """Speaks a little of both engines: emits the prompt's length and what follows, and scores every token as best."""

    speculates = False
    asked: list[tuple[str, Any]]

    def log_message(self, *_: object) -> None:
        pass

    def say(self, document: Any, status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.asked.append((self.path, None))  # type: ignore[attr-defined]
        speculates = self.server.speculates  # type: ignore[attr-defined]
        known: dict[str, Any] = {
            "/server_info": {"dtype": "auto", "speculative_algorithm": "DDTREE" if speculates else None},
            "/version": {"version": "0.22.1"},
            "/v1/models": {"data": [{"id": "toy"}]},
            "/server_info?config_format=json": {"vllm_config": {"model_config": {"dtype": "auto"}}},
        }
        self.say(known.get(self.path, {}), 200 if self.path in known else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))  # type: ignore[attr-defined]
        self.say({"/generate": self.sglang, "/v1/completions": self.vllm, "/tokenize": self.ids}[self.path](body))

    def sglang(self, body: Any) -> Any:
        prompt = body.get("input_ids") or [len(word) for word in body["text"].split()]
        first = int(body.get("logprob_start_len", 0))
        emitted = [len(prompt), 7, 8]
        return {
            "text": "x y z",
            "output_ids": emitted,
            "meta_info": {
                "finish_reason": {"type": "length"},
                "input_token_logprobs": [[-0.5, token, "t"] for token in prompt[first:]],
                "input_top_logprobs": [[[-0.5, token, "t"]] for token in prompt[first:]],
                "output_token_logprobs": [[-0.25, token, "t"] for token in emitted],
            },
        }

    def ids(self, body: Any) -> Any:
        return {"tokens": [len(word) for word in body["prompt"].split()]}

    def vllm(self, body: Any) -> Any:
        if body["model"] != "toy":
            return {"error": "no such model"}
        choice: dict[str, Any] = {"text": "x y z", "token_ids": [7, 8], "finish_reason": "length"}
        if body.get("logprobs"):
            choice["logprobs"] = {"token_logprobs": [-0.25, -0.25]}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [None, *({str(t): {"logprob": -0.5}} for t in body["prompt"][1:])]
        return {"choices": [choice]}


@pytest.fixture
def toy() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Toy) as server:
        server.asked, server.speculates = [], False  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def everything(client: Any) -> list[Any]:
    """All that a trial wants to know of a server."""
    asked = suites.ask(client, SUITE, 4)
    score = suites.Scoring(client, SUITE)
    return [asked, [score(each.answer) for each in asked], client.server_info(), suites.rounding(client, SUITE)]


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_played_back_it_is_what_was_asked_live(toy: http.server.ThreadingHTTPServer, name: str) -> None:
    engine, port = engine_of(name), toy.server_address[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as live:
        wanted = everything(engine.client(live))
    said: list[str] = []
    exchanges = _script.Asker(port, threading.Event()).ask(script(engine, SUITE, 4, rounding=True), said.append)
    with played_back(exchanges) as back:
        assert everything(engine.client(back)) == wanted
    assert wanted[1][0] is not None
    assert wanted[3]
    assert any("alone" in each for each in said)


def test_a_server_that_speculates_is_not_asked_for_its_rounding(toy: http.server.ThreadingHTTPServer) -> None:
    toy.speculates = True  # type: ignore[attr-defined]
    asker = _script.Asker(toy.server_address[1], threading.Event())
    exchanges = asker.ask(script(engine_of("sglang"), SUITE, 4, rounding=True), lambda what: None)
    assert not any(
        (each["body"] or {}).get("return_logprob")
        and "text" in each["body"]
        and "logprob_start_len" not in each["body"]
        for each in exchanges
    )


def test_a_server_that_dies_says_so_in_each_answer(toy: http.server.ThreadingHTTPServer) -> None:
    engine, port = engine_of("sglang"), toy.server_address[1]
    toy.shutdown()
    toy.server_close()
    exchanges = _script.Asker(port, threading.Event()).ask(script(engine, SUITE, 4), lambda what: None)
    with played_back(exchanges) as back:
        asked = suites.ask(engine.client(back), SUITE, 4)
    assert [bool(each.answer.error) for each in asked] == [True] * 4


def test_what_nobody_asked_is_not_found() -> None:
    with played_back([]) as back:
        assert back.post("/generate", json={}).status_code == 404


@pytest.mark.parametrize(
    ("path", "value"),
    [("a.0.b", 1), ("a.*.b", [1, 2]), ("a.1", {"b": 2}), ("c", None), ("a.9.b", None), ("a.*.x", None), ("n", None)],
)
def test_paths_into_an_answer(path: str, value: Any) -> None:
    document = {"a": [{"b": 1}, {"b": 2}], "n": None}
    if value is None:
        with pytest.raises(_script.Missing):
            _script.looked_up(document, path.split("."))
    else:
        assert _script.looked_up(document, path.split(".")) == value
