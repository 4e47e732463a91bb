"""What is particular to vLLM's HTTP and command line.

Facts by version, from released wheels: token ids are told by `return_token_ids` from 0.10.2 on, before that only as
words of the log-probabilities (`return_tokens_as_token_ids`). `/server_info` and `/reset_prefix_cache` exist only
where the server was started with VLLM_SERVER_DEV_MODE=1 (from 0.8 on; as JSON from 0.11 on, before that the text of a
Python object). `/health` tells that the engine lives, not that it can generate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import httpx
from packaging.version import InvalidVersion, Version

from diag.serving.client import (
    IMPOSSIBLE_NATS,
    REQUEST_TIMEOUT_S,
    Answer,
    Client,
    Prompt,
    are_ids,
    json_of,
)
from diag.verdict.compare import Score

READY_PATH = "/health"
DEV_MODE = "VLLM_SERVER_DEV_MODE"
TOKEN_IDS_SINCE = Version("0.10.2")
TOP_LOGPROBS = 5
CLAMPED_NATS = -9999.0
"""What vLLM writes for a log-probability of minus infinity."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECTIONS = (
    *("model_config", "cache_config", "parallel_config", "scheduler_config", "attention_config", "device_config"),
    *("load_config", "lora_config"),
)
_COUNTED = ("spec_decode_", "prefix_cache_", "external_prefix_cache_", "num_preemptions")
_NO_SETTINGS = ("engine", "model_name")
_RENAMED: dict[str, str] = {
    "cache_dtype": "kv_cache_dtype",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "backend": "attention_backend",
}
# vllm.config.CUDAGraphMode: what the JSON of it says in numbers.
_GRAPH_MODES = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}
_METRIC = re.compile(r"^vllm:(\w+?)(?:\{(.*)\})? ([-+.\deE]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TEXT_FIELD = re.compile(r"(?:^|[ ,(])(\w+)=('[^']*'|\"[^\"]*\"|[\w.+-]+)(?=[,) ]|$)")


@dataclass(frozen=True)
class Vllm:
    """See `diag.serving.engine.Engine`."""

    name: Literal["vllm"] = "vllm"
    ready_path: str = READY_PATH
    ready_generates: bool = False
    prompt_ids_path: str = "tokens"
    output_ids_path: str = "choices.0.token_ids"

    def client(self, http: httpx.Client) -> Client:
        return VllmClient(http)

    def field_of_flag(self, flag: str) -> str:
        """`--no-enable-prefix-caching` -> `enable_prefix_caching`; `--compilation-config.mode`: below that section."""
        return flag.removeprefix("--").removeprefix("no-").replace("-", "_")

    def environment(self, argv: Sequence[str]) -> Mapping[str, str]:
        """The mode in which it tells its configuration also lets anybody who reaches the port command it: only where
        the line binds it to the host's own loopback."""
        given = dict(pairwise(argv))
        host = given.get("--host") or next((w.partition("=")[2] for w in argv if w.startswith("--host=")), "")
        return {DEV_MODE: "1"} if host in _LOOPBACK else {}


VLLM = Vllm()


class VllmClient(Client):
    """The same questions by `/v1/completions`, with what vLLM adds to it."""

    def __init__(
        self,
        http: httpx.Client,
        sampling: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        model: str | None = None,
    ) -> None:
        """model: as the server names it; None: it is asked when it is first needed."""
        super().__init__(http, sampling, concurrency)
        self._model, self._version = model, None if model is None else ""
        self._ids_by_words: bool | None = None

    def asking(self, sampling: Mapping[str, Any], concurrency: int | None = None) -> Client:
        return VllmClient(self._http, sampling, concurrency, self._model)

    def server_info(self) -> dict[str, Any]:
        """Flat, by the names of the flags; `version`, `compilation_config`, `speculative_config` and, as `metrics`,
        counters. {} where it is no vLLM server. Without its developer mode, what /metrics tells of the cache."""
        told = self._http.get("/version")
        version = json_of(told)
        if told.status_code != 200 or not isinstance(version, dict) or "version" not in version:
            return {}
        said = self.metrics()
        whole = json_of(self._http.get("/server_info", params={"config_format": "json"}))
        config = whole.get("vllm_config") if isinstance(whole, dict) else None
        if "vllm:" not in said and config is None:
            return {}
        flat = {**cache_labels(said), **flattened(config)}
        return {"version": str(version["version"]), **flat, "metrics": counters(said)}

    def flush_cache(self) -> None:
        """Best effort: without developer mode there is no such path."""
        self._http.post("/reset_prefix_cache")

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        document = self._generated(prompt, max_new_tokens, {})
        return replace(document, prompt=prompt.name) if isinstance(document, Answer) else _answer(prompt.name, document)

    def decoded(self, prompt: Prompt, max_new_tokens: int) -> tuple[Answer, list[float]]:
        document = self._generated(prompt, max_new_tokens, {"logprobs": 1})
        if isinstance(document, Answer):
            return replace(document, prompt=prompt.name), []
        answer, logprobs = _answer(prompt.name, document), _choice(document).get("logprobs")
        told = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        values = [v for v in told if isinstance(v, int | float) and v > CLAMPED_NATS] if isinstance(told, list) else []
        return answer, values if len(values) == len(answer.token_ids) else []

    def _generated(self, prompt: Prompt, max_new_tokens: int, wanted: Mapping[str, Any]) -> dict[str, Any] | Answer:
        body: dict[str, Any] = {"prompt": prompt.text, "temperature": 0, "max_tokens": max_new_tokens}
        sampling = {name: value for name, value in self._sampling.items() if name != "max_new_tokens"}
        body |= sampling
        if "max_new_tokens" in self._sampling:
            body["max_tokens"] = self._sampling["max_new_tokens"]
        try:
            return self._completion({**body, **wanted, **self._wants_ids()})
        except httpx.HTTPError as error:
            return Answer(prompt.name, error=f"no answer: {error or type(error).__name__}")

    def score(
        self, prompt_ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None
    ) -> list[Score] | None:
        body = {"prompt": [*prompt_ids, *emitted], "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP_LOGPROBS}
        try:
            document = self._completion(body)
        except httpx.HTTPError:
            return None
        if isinstance(document, Answer):
            return None
        return scores_from(_choice(document).get("prompt_logprobs"), emitted, rival)

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        try:
            body = {"model": self._served(), "prompt": prompt.text, "add_special_tokens": True}
            response = self._http.post("/tokenize", json=body, timeout=REQUEST_TIMEOUT_S)
        except httpx.HTTPError:
            return None
        document = json_of(response)
        ids = document.get("tokens") if response.status_code == 200 and isinstance(document, dict) else None
        return list(ids) if isinstance(ids, list) and are_ids(ids) else None

    def _completion(self, body: Mapping[str, Any]) -> dict[str, Any] | Answer:
        """The document, or the answer that says why there is none. Raises httpx.HTTPError."""
        whole = {"model": self._served(), **body}
        response = self._http.post("/v1/completions", json=whole, timeout=REQUEST_TIMEOUT_S)
        document = json_of(response)
        if response.status_code != 200 or not isinstance(document, dict):
            return Answer("", error=f"HTTP {response.status_code}: {response.text[:200]}")
        return document

    def _served(self) -> str:
        if self._model is None:
            document = json_of(self._http.get("/v1/models"))
            listed = document.get("data") if isinstance(document, dict) else None
            first = listed[0] if isinstance(listed, list) and listed else None
            self._model = str(first.get("id", "")) if isinstance(first, dict) else ""
        return self._model

    def _wants_ids(self) -> dict[str, Any]:
        """Log-probabilities, which can take another path through the engine, only where ids are not told without."""
        if self._ids_by_words is None:
            document = json_of(self._http.get("/version"))
            said = document.get("version") if isinstance(document, dict) else None
            self._ids_by_words = _before_token_ids(str(said))
        return {"logprobs": 1, "return_tokens_as_token_ids": True} if self._ids_by_words else {"return_token_ids": True}


def _before_token_ids(version: str) -> bool:
    """A build without tags calls itself 0.1.dev...: it is taken to be a new one."""
    try:
        return Version("0.2") < Version(version) < TOKEN_IDS_SINCE
    except InvalidVersion:
        return False


def _choice(document: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _answer(prompt: str, document: Mapping[str, Any]) -> Answer:
    choice = _choice(document)
    if not choice:
        return Answer(prompt, error=f"no choice in the answer: {str(document)[:200]}")
    text, reason = choice.get("text"), str(choice.get("finish_reason") or "")
    return Answer(
        prompt=prompt,
        text=text if isinstance(text, str) else "",
        token_ids=tuple(_ids(choice)),
        finish_reason=reason,
        error="aborted" if reason == "abort" else "",
        meta=_usage(document),
    )


def _ids(choice: Mapping[str, Any]) -> list[int]:
    ids = choice.get("token_ids")
    if isinstance(ids, list) and are_ids(ids):
        return ids
    logprobs = choice.get("logprobs")
    words = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    found = [re.fullmatch(r"token_id:(\d+)", str(word)) for word in words] if isinstance(words, list) else []
    return [int(each[1]) for each in found if each is not None] if all(found) else []


def _usage(document: Mapping[str, Any]) -> dict[str, Any]:
    """As SGLang's meta_info has it: prompt_tokens, and cached_tokens where they are counted."""
    usage = document.get("usage")
    told = dict(usage) if isinstance(usage, dict) else {}
    details = told.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        told["cached_tokens"] = details["cached_tokens"]
    return told


def scores_from(
    prompt_logprobs: Any, emitted: Sequence[int], rival: tuple[int, int] | None = None
) -> list[Score] | None:
    """The last entries of vLLM's `prompt_logprobs` as gaps, one for each id of `emitted`. None if not all are there.

    prompt_logprobs: for each token of the prompt {id: {"logprob": nats, ...}} of the best tokens and itself; the first
    is null.
    """
    entries = prompt_logprobs if isinstance(prompt_logprobs, list) else []
    if len(entries) < len(emitted):
        return None
    scores = []
    for at, (token, entry) in enumerate(zip(emitted, entries[len(entries) - len(emitted) :])):
        told = _logprobs(entry)
        if not told or token not in told:
            return None
        known = {each: value for each, value in told.items() if value is not None}
        if not known:
            return None
        best, own = max(known.values()), told[token]
        rival_gap = best - known[rival[1]] if rival is not None and rival[0] == at and rival[1] in known else None
        gap = IMPOSSIBLE_NATS if own is None else max(0.0, best - own)
        scores.append(Score(gap, rival_gap, None if own is None else -own))
    return scores


def _logprobs(entry: Any) -> dict[int, float | None]:
    """Token id to its log-probability, None for one that is impossible or no number."""
    found: dict[int, float | None] = {}
    for token, told in entry.items() if isinstance(entry, dict) else ():
        value = told.get("logprob") if isinstance(told, dict) else None
        if str(token).isdecimal():
            found[int(token)] = value if isinstance(value, int | float) and CLAMPED_NATS < value < 1e9 else None
    return found


def flattened(config: Any) -> dict[str, Any]:
    """`vllm_config` of /server_info by the names of the flags: of JSON its sections one after another; of the text
    that older versions give, each `name=value` of it."""
    if isinstance(config, str):
        return _of_text(config)
    if not isinstance(config, dict):
        return {}
    flat: dict[str, Any] = {}
    for section in _SECTIONS:
        fields = config.get(section)
        for name, value in fields.items() if isinstance(fields, dict) else ():
            flat.setdefault(_RENAMED.get(str(name)) or str(name), value)
    flat["speculative_config"] = config.get("speculative_config")
    compilation = config.get("compilation_config")
    if isinstance(compilation, dict):
        mode = compilation.get("cudagraph_mode")
        flat["compilation_config"] = {**compilation, "cudagraph_mode": _GRAPH_MODES.get(str(mode), mode)}
    if isinstance(flat.get("dtype"), str):
        flat["dtype"] = flat["dtype"].removeprefix("torch.")
    return flat


def _of_text(config: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for match in _TEXT_FIELD.finditer(config):
        name, value = str(match[1]), str(match[2]).strip("'\"")
        flat.setdefault(_RENAMED.get(name) or name, _typed(value))
    return flat


def cache_labels(metrics: str) -> dict[str, Any]:
    """What /metrics always tells: the labels of `vllm:cache_config_info`."""
    told = next((labels for name, labels, _ in _metrics(metrics) if name == "cache_config_info"), {})
    return {_RENAMED.get(name) or name: _typed(value) for name, value in told.items() if name not in _NO_SETTINGS}


def counters(metrics: str) -> dict[str, float]:
    """Counters that show which paths were taken, summed over their labels: `spec_decode_num_drafts_total`,
    `prefix_cache_hits_total`, ..."""
    found: dict[str, float] = {}
    for name, _, value in _metrics(metrics):
        if name.endswith("_total") and name.startswith(_COUNTED):
            found[name] = found.get(name, 0.0) + value
    return found


def _metrics(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for match in _METRIC.finditer(text):
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], dict(_LABEL.findall(match[2] or "")), value


def _typed(value: str) -> Any:
    known: dict[str, Any] = {"True": True, "False": False, "None": None}
    if value in known:
        return known[value]
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value
