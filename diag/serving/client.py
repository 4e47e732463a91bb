"""Requests to an SGLang server and what comes back. Thread-safe: several requests may be under way at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from diag.serving import sglang
from diag.verdict.answers import Answer
from diag.verdict.compare import Score

__all__ = ["Answer", "Client", "Prompt", "scores_from"]

REQUEST_TIMEOUT_S = 300.0

IMPOSSIBLE_NATS = 99.0
"""The gap of a token that the model holds impossible."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is sent. `messages` are rendered by the server's own chat template where `chat` is set."""

    name: str
    text: str


class Client:
    """sampling: goes into every `generate` besides what diag itself asks for. concurrency: how many of
    `generate_together` are under way at once; None: all."""

    def __init__(
        self, http: httpx.Client, sampling: Mapping[str, Any] | None = None, concurrency: int | None = None
    ) -> None:
        self._http = http
        self._sampling = dict(sampling or {})
        self._concurrency = concurrency

    def asking(self, sampling: Mapping[str, Any], concurrency: int | None = None) -> Client:
        """The same server, asked in another way."""
        return Client(self._http, sampling, concurrency)

    def close(self) -> None:
        """Its connections; those made by `asking` share them."""
        self._http.close()

    def server_info(self) -> dict[str, Any]:
        """The effective configuration; {} where the server has no such page."""
        for path in sglang.INFO_PATHS:
            response = self._http.get(path)
            if response.status_code == 200 and isinstance(body := json_of(response), dict):
                return body
        return {}

    def metrics(self) -> str:
        """The server's counters in Prometheus' format; "" where it has none."""
        response = self._http.get("/metrics")
        return response.text if response.status_code == 200 else ""

    def flush_cache(self) -> None:
        """Best effort: an engine without a prefix cache answers with an error, which changes nothing for us."""
        self._http.post("/flush_cache")

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        """Greedy. Whatever goes wrong with the request is in the answer's `error`; a lost link is raised."""
        return self._generate(prompt, max_new_tokens, {})

    def decoded(self, prompt: Prompt, max_new_tokens: int) -> tuple[Answer, list[float]]:
        """As `generate`, and the log-probability that decode gave each token; [] where it does not tell all of them."""
        answer = self._generate(prompt, max_new_tokens, {"return_logprob": True})
        found = [_scored(entry) for entry in _list(answer.meta.get("output_token_logprobs"))]
        told = [each[0] for each in found if each is not None]
        return answer, told if len(told) == len(answer.token_ids) else []

    def _generate(self, prompt: Prompt, max_new_tokens: int, wanted: Mapping[str, Any]) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, **self._sampling}
        body = {"text": prompt.text, "sampling_params": sampling, **wanted}
        try:
            response = self._http.post("/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError as error:
            return Answer(prompt.name, error=f"no answer: {error or type(error).__name__}")
        document = json_of(response)
        if response.status_code != 200 or not isinstance(document, dict):
            return Answer(prompt.name, error=f"HTTP {response.status_code}: {response.text[:200]}")
        return _answer(prompt.name, document)

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        """All at the same moment, so that the server batches them; answers in the order of `prompts`."""
        if not prompts:
            return []
        with ThreadPoolExecutor(min(len(prompts), self._concurrency or len(prompts))) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, max_new_tokens), prompts))

    def score(
        self, prompt_ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None
    ) -> list[Score] | None:
        """Teacher-forced scores of `emitted` after `prompt_ids`, by this server's own prefill.

        rival: (index into emitted, token) whose gap is wanted as well. None where the server does not report
        log-probabilities.
        """
        ids = [*prompt_ids, *emitted]
        body = {
            "input_ids": ids,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            # SGLang reports from this position on; one earlier, since the first entry has no predecessor to score it.
            "logprob_start_len": max(len(prompt_ids) - 1, 0),
            "top_logprobs_num": 5,
            "return_text_in_logprobs": True,
        }
        meta = self._scored_meta(body)
        return scores_from(meta.get("input_token_logprobs"), meta.get("input_top_logprobs"), len(emitted), rival)

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        """The ids the server makes of a prompt, read from its own input log-probabilities."""
        body = {
            "text": prompt.text,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        entries = _list(self._scored_meta(body).get("input_token_logprobs"))
        ids = [entry[1] for entry in entries if isinstance(entry, list) and are_ids(entry[1:2])]
        return ids if ids and len(ids) == len(entries) else None

    def _scored_meta(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The meta_info of a request for log-probabilities; {} where it was refused or got no answer."""
        try:
            response = self._http.post("/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError:
            return {}
        document = json_of(response)
        return _meta(document) if response.status_code == 200 and isinstance(document, dict) else {}


def scores_from(
    token_logprobs: Any, top_logprobs: Any, emitted: int, rival: tuple[int, int] | None = None
) -> list[Score] | None:
    """The last `emitted` entries of SGLang's input log-probabilities as gaps. None if they are not all there.

    token_logprobs: [[log-probability or None, token id, text], ...]; top_logprobs: for each the best such triples.
    """
    pairs = list(zip(_list(token_logprobs), _list(top_logprobs)))
    if len(pairs) < emitted:
        return None
    scores = []
    for at, (entry, entries) in enumerate(pairs[len(pairs) - emitted :]):
        own, top = _scored(entry), [t for each in _list(entries) if (t := _scored(each)) is not None]
        if not top or (own is None and not _is_null(entry)):
            return None
        best = max(value for value, _ in top)
        # Best tokens but no number for this one: it was -inf or NaN, which JSON has no word for.
        gap = IMPOSSIBLE_NATS if own is None else max(0.0, best - own[0])
        rival_gap = None
        if rival is not None and rival[0] == at:
            rival_gap = next((best - value for value, token in top if token == rival[1]), None)
        scores.append(Score(gap, rival_gap, None if own is None else -own[0], _piece(entry)))
    return scores


def _scored(entry: Any) -> tuple[float, int] | None:
    """(log-probability, token id) of such a triple; None where it is null, infinite, or no such triple."""
    if not isinstance(entry, list) or not are_ids(entry[1:2]):
        return None
    value, token = entry[:2]
    if not isinstance(value, int | float) or not -1e9 < value < 1e9:
        return None
    return float(value), token


def _piece(entry: Any) -> str:
    """The text of such a triple's token; "" where it is not told."""
    text = entry[2] if isinstance(entry, list) and len(entry) > 2 else None
    return text if isinstance(text, str) else ""


def _is_null(entry: Any) -> bool:
    """A token with null, NaN or an infinity for its log-probability."""
    if not isinstance(entry, list) or not are_ids(entry[1:2]):
        return False
    return entry[0] is None or (isinstance(entry[0], float) and not math.isfinite(entry[0]))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def are_ids(value: Any) -> bool:
    """Whether it is a list of token ids, and not empty."""
    return isinstance(value, list) and value != [] and all(type(token) is int for token in value)


def _meta(document: Mapping[str, Any]) -> dict[str, Any]:
    meta = document.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _answer(prompt: str, document: Mapping[str, Any]) -> Answer:
    meta = _meta(document)
    text, ids, accept_length = document.get("text"), document.get("output_ids"), meta.get("spec_accept_length")
    reason = meta.get("finish_reason") or {}
    kind = str(reason.get("type", "")) if isinstance(reason, dict) else str(reason)
    message = reason.get("message", "") if isinstance(reason, dict) else ""
    return Answer(
        prompt=prompt,
        text=text if isinstance(text, str) else "",
        token_ids=tuple(ids) if isinstance(ids, list) and are_ids(ids) else (),
        finish_reason=kind,
        accept_length=accept_length if isinstance(accept_length, int | float) else None,
        error=f"aborted: {message}" if kind == "abort" else "",
        meta=meta,
    )
