"""Any server that can be asked: by URL, or on a host of the inventory through its SSH connection.

An SGLang server is asked by its own `/generate`, a vLLM server by `/v1/completions` with what vLLM adds to it: both
tell token ids and log-probabilities. Every other one is asked by the plain OpenAI paths, which do not. A key comes from
the environment alone (DIAG_API_KEY, else OPENAI_API_KEY for a URL).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from diag.errors import DiagError, HostUnreachable, PreconditionFailed, UsageError
from diag.serving.client import REQUEST_TIMEOUT_S, Answer, Client, Prompt
from diag.serving.engine import recognised
from diag.verdict.compare import Score

KEYS = ("DIAG_API_KEY", "OPENAI_API_KEY")
CONNECT_TIMEOUT_S = 10.0
LOG_LINES = 400

Kind = Literal["sglang", "vllm", "openai"]


class OpenAIClient(Client):
    """The same questions by `/v1/completions`: text, and no token ids; nothing is scored."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        super().__init__(http)
        self._model = model

    def server_info(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> str:
        return ""

    def flush_cache(self) -> None:
        """There is no such path."""

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        body = {"model": self._model, "prompt": prompt.text, "max_tokens": max_new_tokens, "temperature": 0}
        return _openai(self._http, "/v1/completions", body, prompt.name)

    def decoded(self, prompt: Prompt, max_new_tokens: int) -> tuple[Answer, list[float]]:
        return self.generate(prompt, max_new_tokens), []

    def score(
        self, prompt_ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None
    ) -> list[Score] | None:
        return None

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """name: as the person gave it. argv: the command line of its process; log: reads the end of its log; both are only
    known on a host of the inventory."""

    name: str
    kind: Kind
    model: str
    client: Client
    http: httpx.Client
    argv: tuple[str, ...] = ()
    log: Callable[[], list[str]] = field(default=list, repr=False)

    def chat(self, name: str, user: str, max_new_tokens: int) -> Answer:
        """Through the server's own chat template. meta: `prompt_tokens`, where the server counts them."""
        messages = [{"role": "user", "content": user}]
        body = {"model": self.model, "messages": messages, "max_tokens": max_new_tokens, "temperature": 0}
        return _openai(self.http, "/v1/chat/completions", body, name)

    def abandoned(self, prompts: Sequence[Prompt], max_new_tokens: int, after_s: float) -> int:
        """Ask all at once and hang up on every one; how many were cut off before they had answered."""

        def drop(prompt: Prompt) -> bool:
            body: dict[str, Any] = {"text": prompt.text, "sampling_params": {"max_new_tokens": max_new_tokens}}
            path = "/generate"
            if self.kind != "sglang":
                path, body = "/v1/completions", {"model": self.model, "prompt": prompt.text}
                body["max_tokens"] = max_new_tokens
            try:
                self.http.post(path, json=body, timeout=after_s)
            except httpx.TimeoutException:
                return True
            except httpx.HTTPError:
                return False
            return False

        with ThreadPoolExecutor(max(1, len(prompts))) as pool:
            return sum(pool.map(drop, prompts))


@contextmanager
def opened(target: str) -> Iterator[Endpoint]:
    """target: http(s)://..., HOST, or HOST:PORT of the inventory.

    Raises UsageError, HostError of any kind, and PreconditionFailed where there is no server to ask.
    """
    with ExitStack() as stack:
        if "://" in target:
            yield _endpoint(target, stack.enter_context(_direct(target)))
            return
        http, argv, log = _on_host(target, stack)
        yield replace(_endpoint(target, stack.enter_context(http)), argv=argv, log=log)


def _direct(url: str) -> httpx.Client:
    key = next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = _url(url.rstrip("/").removesuffix("/v1"), url)
    return httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(60, connect=CONNECT_TIMEOUT_S))


def _url(base: str, told: str) -> httpx.URL:
    """Raises UsageError for what no server can have."""
    try:
        url = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise _no_url(told, str(error)) from None
    if url.scheme not in ("http", "https"):
        raise _no_url(told, f"'{url.scheme}' is not http or https")
    if not url.host:
        raise _no_url(told, "it names no host")
    if (url.port or 1) > 65535:
        raise _no_url(told, f"{url.port} is no port")
    return url


def _no_url(told: str, why: str) -> UsageError:
    return UsageError(f"{told} is no URL of a server: {why}.", next="Write it as http://HOST:PORT.")


def _on_host(target: str, stack: ExitStack) -> tuple[httpx.Client, tuple[str, ...], Callable[[], list[str]]]:
    """(connection, command line of the server's process, its log); the latter two empty where it is not seen."""
    from diag.hosts import inventory, reaping
    from diag.hosts.http import http_client
    from diag.hosts.transport import connect

    name, _, port = target.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{target}: '{port}' is no port.", next="Write HOST, HOST:PORT or a URL.")
    if not name or "/" in name:
        raise UsageError(f"'{target}' names no host.", next="Write HOST, HOST:PORT or a URL.")
    transport = stack.enter_context(connect(inventory.load().get(name)))
    found = [one for one in reaping.servers(transport)["servers"] if one.get("port") and not one.get("orphan")]
    if port:
        server = next((one for one in found if int(one["port"]) == int(port)), None)
    else:
        server = _only(found, transport.host.name)
    http = http_client(transport, int(port) if server is None else int(server["port"]))
    key = os.environ.get(KEYS[0])
    if key:
        http.headers["Authorization"] = f"Bearer {key}"
    if server is None:
        return http, (), list

    def log() -> list[str]:
        try:
            return list(reaping.logs(transport, str(server["pid"]), LOG_LINES)["log"]["lines"])
        except DiagError:  # it has ended meanwhile, which its answers show
            return []

    return http, tuple(server["argv"]), log


def _only(servers: list[Any], host: str) -> Any:
    if not servers:
        raise PreconditionFailed(
            f"No inference server runs on {host}.", next=f"Start one, or name its port: {host}:PORT."
        )
    if len(servers) > 1:
        ports = ", ".join(str(one["port"]) for one in servers)
        raise UsageError(f"{host} has servers on ports {ports}.", next=f"Name one: {host}:{servers[0]['port']}.")
    return servers[0]


def _endpoint(target: str, http: httpx.Client) -> Endpoint:
    try:
        engine = recognised(http)
        models = http.get("/v1/models")
    except httpx.HTTPError as error:
        what = f"{target} does not answer: {error or type(error).__name__}."
        raise HostUnreachable(what, next="Look at the address, and whether the server is up.") from None
    model = _first_model(models)
    if models.status_code in (401, 403):
        what = f"{target} wants a key (HTTP {models.status_code})."
        raise HostUnreachable(what, next=f"Put it into the environment variable {KEYS[0]}.")
    if engine is not None:
        return Endpoint(target, engine.name, model or "", engine.client(http), http)
    if model is None:
        what = f"{target} answers, but neither as an SGLang, a vLLM nor an OpenAI-compatible server."
        raise PreconditionFailed(what, next="Name the address that has /v1/models.")
    return Endpoint(target, "openai", model, OpenAIClient(http, model), http)


def _first_model(response: httpx.Response) -> str | None:
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _openai(http: httpx.Client, path: str, body: dict[str, Any], name: str) -> Answer:
    try:
        response = http.post(path, json=body, timeout=REQUEST_TIMEOUT_S)
    except httpx.HTTPError as error:
        return Answer(name, error=f"no answer: {error or type(error).__name__}")
    try:
        document = response.json()
        choice = document["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        usage = document.get("usage") or {}
        return Answer(
            name, text=str(text or ""), finish_reason=str(choice.get("finish_reason") or ""), meta=dict(usage)
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(name, error=f"HTTP {response.status_code}: {response.text[:200]}")
