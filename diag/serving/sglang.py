"""What is particular to SGLang's HTTP and command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READY_PATH = "/health_generate"

# New name first: releases from 0.5.4 on answer the old one with a deprecation warning in their log.
INFO_PATHS = ("/server_info", "/get_server_info")


def field_of_flag(flag: str) -> str:
    """The name under which /server_info reports a flag: `--speculative-eagle-topk` -> `speculative_eagle_topk`."""
    return flag.removeprefix("--").replace("-", "_")


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
