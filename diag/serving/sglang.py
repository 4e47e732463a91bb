"""What is particular to SGLang's HTTP and command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import httpx

    from diag.serving.client import Client

READY_PATH = "/health_generate"

# New name first: releases from 0.5.4 on answer the old one with a deprecation warning in their log.
INFO_PATHS = ("/server_info", "/get_server_info")


@dataclass(frozen=True)
class Sglang:
    """See `diag.serving.engine.Engine`. Its health path answers only after a token was generated."""

    name: Literal["sglang"] = "sglang"
    ready_path: str = READY_PATH
    ready_generates: bool = True
    prompt_ids_path: str = "meta_info.input_token_logprobs.*.1"
    output_ids_path: str = "output_ids"

    def client(self, http: httpx.Client) -> Client:
        from diag.serving.client import Client

        return Client(http)

    def field_of_flag(self, flag: str) -> str:
        """/server_info reports every flag: `--speculative-eagle-topk` -> `speculative_eagle_topk`."""
        return flag.removeprefix("--").replace("-", "_")

    def environment(self, argv: Sequence[str]) -> Mapping[str, str]:
        return {}


SGLANG = Sglang()
