"""Requests to an SGLang server and what comes back. Thread-safe: several requests may be under way at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from diag.serving import sglang
from diag.verdict.compare import Score

REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Answer:
    """One completed request. token_ids: as emitted, never re-encoded from the text. error: "" if it completed."""

    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    accept_length: float | None = None
    error: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A prompt as it is sent. `messages` are rendered by the server's own chat template where `chat` is set."""

    name: str
    text: str


class Client:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def server_info(self) -> dict[str, Any]:
        """The effective configuration; {} where the server has no such page."""
        for path in sglang.INFO_PATHS:
            response = self._http.get(path)
            if response.status_code == 200 and isinstance(body := _json(response), dict):
                return body
        return {}

    def flush_cache(self) -> None:
        """Best effort: an engine without a prefix cache answers with an error, which changes nothing for us."""
        self._http.post("/flush_cache")

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        """Greedy. Whatever goes wrong with the request is in the answer's `error`; a lost link is raised."""
        body = {"text": prompt.text, "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}}
        try:
            response = self._http.post("/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError as error:
            return Answer(prompt.name, error=f"no answer: {error or type(error).__name__}")
        document = _json(response)
        if response.status_code != 200 or not isinstance(document, dict):
            return Answer(prompt.name, error=f"HTTP {response.status_code}: {response.text[:200]}")
        return _answer(prompt.name, document)

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        """All at the same moment, so that the server batches them; answers in the order of `prompts`."""
        if not prompts:
            return []
        with ThreadPoolExecutor(len(prompts)) as pool:
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
        }
        try:
            response = self._http.post("/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError:
            return None
        document = _json(response)
        if response.status_code != 200 or not isinstance(document, dict):
            return None
        meta = document.get("meta_info") or {}
        return scores_from(
            meta.get("input_token_logprobs") or [], meta.get("input_top_logprobs") or [], len(emitted), rival
        )

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        """The ids the server makes of a prompt, read from its own input log-probabilities."""
        body = {
            "text": prompt.text,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        try:
            response = self._http.post("/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError:
            return None
        document = _json(response)
        if response.status_code != 200 or not isinstance(document, dict):
            return None
        entries = (document.get("meta_info") or {}).get("input_token_logprobs") or []
        return [int(entry[1]) for entry in entries] or None


def scores_from(
    token_logprobs: Sequence[Sequence[Any]],
    top_logprobs: Sequence[Sequence[Sequence[Any]] | None],
    emitted: int,
    rival: tuple[int, int] | None = None,
) -> list[Score] | None:
    """The last `emitted` entries of SGLang's input log-probabilities as gaps. None if they are not all there.

    token_logprobs: [[log-probability or None, token id, text], ...]; top_logprobs: for each the best such triples.
    """
    pairs = list(zip(token_logprobs, top_logprobs))[-emitted:]
    if len(pairs) < emitted:
        return None
    scores = []
    for at, (own, top) in enumerate(pairs):
        if own[0] is None or not top or not math.isfinite(own[0]):
            return None
        best = max(entry[0] for entry in top)
        rival_gap = None
        if rival is not None and rival[0] == at:
            rival_gap = next((best - entry[0] for entry in top if entry[1] == rival[1]), None)
        scores.append(Score(gap_nats=max(0.0, best - own[0]), rival_gap_nats=rival_gap))
    return scores


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _answer(prompt: str, document: Mapping[str, Any]) -> Answer:
    meta = document.get("meta_info") or {}
    reason = meta.get("finish_reason") or {}
    kind = reason.get("type", "") if isinstance(reason, dict) else str(reason)
    return Answer(
        prompt=prompt,
        text=str(document.get("text", "")),
        token_ids=tuple(document.get("output_ids") or ()),
        finish_reason=kind,
        accept_length=meta.get("spec_accept_length"),
        error=f"aborted: {reason.get('message', '')}" if kind == "abort" else "",
        meta=meta,
    )
