"""What diag has to know of an inference engine, and the engines it knows. How to add one: docs/engines.md.

engine = engine_of("vllm")
with http_client(transport, port) as http:
    answer = engine.client(http).generate(prompt, 32)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from diag.errors import UsageError

if TYPE_CHECKING:
    import httpx

    from diag.serving.client import Client


Name = Literal["sglang", "vllm"]
NAMES: tuple[Name, ...] = get_args(Name)


class Engine(Protocol):
    """name: as in a plan's `engine`, and as a host names its servers. ready_path: answers 200 to a GET when the server
    can be asked; ready_generates: and only after it has generated a token."""

    @property
    def name(self) -> Name: ...

    @property
    def ready_path(self) -> str: ...

    @property
    def ready_generates(self) -> bool: ...

    @property
    def prompt_ids_path(self) -> str:
        """Where the answer to `Client.tokenize`'s request has the prompt's ids: dotted, `*` for each item of a list."""
        ...

    @property
    def output_ids_path(self) -> str:
        """Where a generation has the ids that were emitted."""
        ...

    def client(self, http: httpx.Client) -> Client:
        """Requests in this engine's own words. `Client.server_info` is the effective configuration, flat, by the names
        that `field_of_flag` gives."""
        ...

    def field_of_flag(self, flag: str) -> str:
        """Where the effective configuration has a flag: a dotted path."""
        ...

    def environment(self, argv: Sequence[str]) -> Mapping[str, str]:
        """Variables that a server which diag starts itself needs to tell its configuration; {} for none."""
        ...


def engine_of(name: str) -> Engine:
    """Raises UsageError for an engine that diag does not speak to."""
    if name not in NAMES:
        raise UsageError(f"diag does not speak to {name} servers yet.", next=f"It knows: {', '.join(NAMES)}.")
    return next(engine for engine in _engines() if engine.name == name)


def recognised(http: httpx.Client) -> Engine | None:
    """By what only one of them answers; None for another server. Raises httpx.HTTPError."""
    for engine in _engines():
        if engine.client(http).server_info():
            return engine
    return None


def _engines() -> tuple[Engine, ...]:
    from diag.serving.sglang import SGLANG
    from diag.serving.vllm import VLLM

    # vLLM first: its developer mode has a /server_info too, and SGLang has nothing that a vLLM server would answer.
    return VLLM, SGLANG


def read_path(info: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, numbers index lists: `internal_states.0.verify.padded_rows`. None if absent."""
    value: Any = info
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
