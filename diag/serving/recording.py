"""What a trial asks, as a script that a job asks without us; and its answers, played back to the same client.

    groups = script(engine, suite, max_new_tokens, sampling, concurrency)   # goes into the job: probes/_script.py
    with played_back(exchanges) as http:                                    # what came of it
        engine.client(http).generate(...)

Nothing here knows how an engine is asked: its own client is rehearsed on a stage where it finds no server, and what
it would have sent is the script. Ids that only a server can tell are numbers of ours there: they become references.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx

from diag.serving import suites
from diag.serving.client import Client, Prompt
from diag.serving.engine import Engine
from diag.verdict.prompts import Suite

BASE = "http://job"
MODEL = "diag-rehearsal-model"
VERSION = "999.0"
"""Newer than any: older ones are asked in another way (vLLM before 0.10.2), which no script knows."""
_PROMPT_IDS = [-7] * 7919
_OUTPUT_IDS = [-11]
_START = len(_PROMPT_IDS) - 1

Json = dict[str, Any]


class _Stage(httpx.BaseTransport):
    """Notes what is sent to it. Tells a version and a model, and nothing else."""

    def __init__(self) -> None:
        self.sent: list[Json] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode("ascii")
        if request.method == "GET" and path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": MODEL}]})
        body = json.loads(request.content) if request.content else None
        self.sent.append({"method": request.method, "path": path, "body": body})
        if request.method == "GET":
            return httpx.Response(200, json={"version": VERSION}) if path == "/version" else httpx.Response(404)
        return httpx.Response(200, json={})

    def taken(self) -> list[Json]:
        taken, self.sent = self.sent, []
        return taken


def script(
    engine: Engine,
    suite: Suite,
    max_new_tokens: int,
    sampling: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    rounding: bool = False,
) -> list[Json]:
    """Groups for probes/_script.py, in the order of `suites.ask`: each prompt alone, all together, then what a judge
    wants to know (each prompt's ids, a score of each answer), what the server says of itself, and with `rounding` what
    `suites.rounding` asks."""
    stage = _Stage()
    with httpx.Client(transport=stage, base_url=BASE) as http:
        client = engine.client(http).asking(sampling or {}, concurrency)
        client.server_info()
        facts = stage.taken()
        prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts]
        generated = [_generated(client, stage, prompt, max_new_tokens) for prompt in prompts]
        groups = [_group("the model's name", [{"method": "GET", "path": "/v1/models", "body": None, "id": "models"}])]
        ways = ["alone", "together"] if len(prompts) > 1 else ["alone"]
        for number, (prompt, request) in enumerate(zip(prompts, generated), 1):
            told = f"prompt {number}/{len(prompts)} ({prompt.name}), alone"
            groups.append(_group(told, [{**request, "id": f"alone {prompt.name}"}]))
        if "together" in ways:
            asked = [{**request, "id": f"together {p.name}"} for p, request in zip(prompts, generated)]
            groups.append(_group(f"{len(prompts)} prompts at once", asked, concurrency or len(prompts)))
        for prompt in prompts:
            client.tokenize(prompt)
            groups.append(_group("the verdicts", [{**each, "id": f"ids {prompt.name}"} for each in stage.taken()]))
        client.score(_PROMPT_IDS, _OUTPUT_IDS)
        scored = stage.taken()
        for how in ways:
            for prompt in prompts:
                made = [_scored(engine, each, how, prompt.name) for each in scored]
                groups.append(_group("the verdicts", made))
        groups.append(_group("the configuration in force", [{**each, "id": each["path"]} for each in facts]))
        if rounding:
            groups += _rounding(engine, client, stage, prompts[: suites.ROUNDED_PROMPTS], scored, facts)
    return [group for group in groups if group["requests"]]


def _rounding(
    engine: Engine, client: Client, stage: _Stage, prompts: Sequence[Prompt], scored: Sequence[Json], facts: list[Json]
) -> list[Json]:
    """Last, and not of a server that speculates: log-probabilities take another path through it."""
    unless = [[each["path"], name] for each in facts for name in suites.SPECULATES]
    asked = []
    for prompt in prompts:
        client.decoded(prompt, suites.ROUNDED_TOKENS)
        asked.append({**stage.taken()[-1], "id": f"decoded {prompt.name}", "unless": unless})
    scores = [_scored(engine, each, "decoded", prompt.name) for prompt in prompts for each in scored]
    return [_group("the rounding", asked, len(asked)), _group("the rounding", scores)]


def _generated(client: Client, stage: _Stage, prompt: Prompt, max_new_tokens: int) -> Json:
    client.generate(prompt, max_new_tokens)
    request = stage.taken()[-1]  # what it wants to know before is asked with the facts
    return {**request, "body": _with_model(request["body"])}


def _scored(engine: Engine, request: Json, how: str, name: str) -> Json:
    """The request to score one answer, of ids that the server will have told by then."""
    prompt_ids, output_ids = [f"ids {name}", engine.prompt_ids_path], [f"{how} {name}", engine.output_ids_path]
    body = _referring(_with_model(request["body"]), prompt_ids, output_ids)
    return {**request, "body": body, "id": f"score {how} {name}", "only": output_ids}


def _referring(value: Any, prompt_ids: list[str], output_ids: list[str]) -> Any:
    if value == [*_PROMPT_IDS, *_OUTPUT_IDS]:
        return {"$": "ids", "of": [prompt_ids, output_ids]}
    if isinstance(value, int) and value == _START:
        return {"$": "start", "of": [prompt_ids]}
    if isinstance(value, dict):
        return {key: _referring(each, prompt_ids, output_ids) for key, each in value.items()}
    return value


def _with_model(value: Any) -> Any:
    if value == MODEL:
        return {"$": "value", "of": [["models", "data.0.id"]]}
    return {key: _with_model(each) for key, each in value.items()} if isinstance(value, dict) else value


def _group(say: str, requests: Sequence[Json], at_once: int = 1) -> Json:
    made = [{**each, "body": _with_model(each["body"])} for each in requests]
    return {"say": say, "at_once": at_once, "requests": made}


class _Playback(httpx.BaseTransport):
    """Answers a request as the server did; one that was sent several times in the order of the answers, and the last of
    them for ever. What nobody asked the server is not found."""

    def __init__(self, exchanges: Iterable[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, list[Mapping[str, Any]]] = {}
        for each in exchanges:
            self._answers.setdefault(_key(each["method"], each["path"], each["body"]), []).append(each)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        with self._lock:
            known = self._answers.get(_key(request.method, request.url.raw_path.decode("ascii"), body))
            if not known:
                return httpx.Response(404, text="this was not asked")
            told = known.pop(0) if len(known) > 1 else known[0]
        if "error" in told:
            raise httpx.ConnectError(str(told["error"]))
        return httpx.Response(int(told["status"]), text=str(told["text"]))


def _key(method: str, path: str, body: Any) -> str:
    return json.dumps([method, path, body], sort_keys=True)


def played_back(exchanges: Iterable[Mapping[str, Any]]) -> httpx.Client:
    """exchanges: as probes/_script.py's `Asker.ask` returns them."""
    return httpx.Client(transport=_Playback(exchanges), base_url=BASE)
