"""What programs write down for the report: bounded, and without secrets."""

from __future__ import annotations

import json

from diag.records import telling


def test_what_is_in_force_is_whole_once_and_then_what_differs() -> None:
    info = {
        "attention_backend": "triton",
        "budget": 7,
        "api_key": "sk-abcdefghijklmnop",
        "states": [{"a": 1}],
        "x": "y" * 999,
    }
    first = telling.in_force(info, None)["server_info"]
    assert first == {"attention_backend": "triton", "budget": 7, "api_key": "***"}
    assert telling.in_force({**info, "budget": 16}, first) == {"server_info_changed": {"budget": 16}}
    assert telling.in_force(info, first) == {"server_info_changed": {}}
    assert telling.in_force({}, None) == {}
    nested = {"vllm_config": {"cache_config": {"cache_dtype": "fp8", "blocks": [1]}, "a": {"b": {"c": {"d": 1}}}}}
    assert telling.in_force(nested, None)["server_info"] == {"vllm_config.cache_config.cache_dtype": "fp8"}


def test_of_too_much_the_largest_part_goes_and_is_named() -> None:
    document = {"facts": {"os": "x"}, "sources": ["s" * 5000], "environments": ["e" * 3000], "servers": []}
    assert telling.bounded(document, 10_000) == document
    kept = telling.bounded(document, 4000)
    assert kept["left_out"] == ["sources"]
    assert "environments" in kept
    assert len(json.dumps(telling.bounded(document, 100))) <= 100
