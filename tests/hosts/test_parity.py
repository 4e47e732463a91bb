"""Ranks that should be alike."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.hosts.parity import ABSENT, differences, flags

RANK: dict[str, Any] = {
    "facts": {
        "os": "Debian",
        "kernel": "6.1",
        "driver": "580.1",
        "cuda": "13.0",
        "gpus": [{"name": "H200", "power_limit_w": 700}] * 8,
        "env": {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"},
    },
    "environments": [{"python_version": "3.12.3", "packages": {"sglang": "0.5.12", "torch": "2.9"}}],
    "sources": [
        {
            "package": "sglang",
            "files": [{"path": "sglang/a.py", "sha256": "f" * 64}],
            "record_checked": {"edited": [], "missing": [], "unlisted": []},
        }
    ],
    "servers": [
        {
            "engine": "sglang",
            "argv": ["python", "-m", "sglang.launch_server", "--tp", "16", "--node-rank", "0", "--port", "30000"],
            "env": {"SGLANG_X": "1"},
            "started_at_unix": 5.0,
        }
    ],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """RANK with one value replaced; path: keys and indices, separated by dots."""
    made = copy.deepcopy(RANK)
    *before, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    at: Any = made
    for part in before:
        at = at[part]
    at[last] = value
    return made


def test_alike_is_alike_and_one_alone_too() -> None:
    assert differences({"a": RANK, "b": copy.deepcopy(RANK)}) == []
    assert differences({"a": RANK}) == differences({}) == []


@pytest.mark.parametrize(
    ("path", "value", "what", "matters"),
    [
        ("environments/0/packages/torch", "2.8", "package torch", True),
        ("environments/0/packages/triton", "3.5", "package triton", True),
        ("environments/0/python_version", "3.11", "python", True),
        ("sources/0/files/0/sha256", "0" * 64, "file sglang/a.py", True),
        ("sources/0/record_checked/edited", ["sglang/b.py"], "sglang files edited", True),
        ("servers/0/argv/4", "8", "server 1 --tp", True),
        ("servers/0/env/SGLANG_X", "2", "server 1 environment SGLANG_X", True),
        ("servers", [], "servers", True),
        ("facts/driver", "575", "driver", False),
        ("facts/gpus/3", {"name": "H100", "power_limit_w": 700}, "gpus", False),
        ("facts/env/NCCL_DEBUG", "WARN", "environment NCCL_DEBUG", False),
    ],
)
def test_one_rank_that_differs(path: str, value: Any, what: str, matters: bool) -> None:
    found = {one.what: one for one in differences({"a": RANK, "b": changed(path, value), "c": RANK})}
    assert what in found
    assert found[what].values["a"] == found[what].values["c"] != found[what].values["b"]
    if what != "servers":
        assert list(found) == [what]
        assert found[what].matters is matters


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("servers/0/argv/6", "1"),
        ("servers/0/argv/8", "30001"),
        ("servers/0/started_at_unix", 9.0),
        ("facts/env/CUDA_VISIBLE_DEVICES", "4"),
        ("facts/hostname", "other"),
    ],
)
def test_what_ranks_may_have_of_their_own(path: str, value: Any) -> None:
    assert differences({"a": RANK, "b": changed(path, value)}) == []


def test_what_one_does_not_have_is_a_difference() -> None:
    made = copy.deepcopy(RANK)
    del made["environments"][0]["packages"]["torch"]
    [one] = differences({"a": RANK, "b": made})
    assert one.to_json() == {"what": "package torch", "matters": True, "values": {"a": "2.9", "b": ABSENT}}


@given(
    st.dictionaries(
        st.from_regex(r"--[a-z][a-z-]{0,8}", fullmatch=True), st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True)
    )
)
def test_flags_in_both_spellings(wanted: dict[str, str]) -> None:
    spaced = [word for name, value in wanted.items() for word in (name, value)]
    joined = [f"{name}={value}" for name, value in wanted.items()]
    assert flags(["python", *spaced]) == flags(["python", *joined]) == wanted
    assert flags(["x", "--a", "--b", "1", "2", "--a"]) == {"--a": "set", "--b": "1 2"}
