"""Counters that are fingerprints, lines of a log, and the cheap false leads."""

from __future__ import annotations

from typing import Any

import pytest

from diag.verdict.leads import Seen, leads
from diag.verdict.telemetry import flags, graph_replays, graphs, nan_lines, not_as_asked, signs

SPEC = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}


@pytest.mark.parametrize(
    ("info", "lengths", "ids"),
    [
        (SPEC, [1.0, 1.0, 1.01, 1.0], ["never-accepted"]),
        (SPEC, [4.0, 4.0, 4.0, 4.0], ["always-accepted"]),
        (SPEC, [1.5, 2.0, 4.0, 1.2], []),
        (SPEC, [None, None, None, None], ["no-accept-length"]),
        ({}, [None], []),
    ],
)
def test_accept_lengths(info: dict[str, Any], lengths: list[float | None], ids: list[str]) -> None:
    assert [sign.id for sign in signs(info, lengths, [])] == ids


def test_a_cache_that_was_never_hit_proves_nothing_about_it() -> None:
    (sign,) = signs({"disable_radix_cache": True}, [], [0, 0], cache_asked=True)
    assert "switched off" in sign.what
    assert signs({}, [], [0, 128], cache_asked=True) == []


def test_lines_that_tell_of_no_numbers() -> None:
    log = ["Detected errors during sampling! NaN in the logits.", "running finance job", "probs contain nan", "ready"]
    assert nan_lines(log) == [log[0], log[2]]


def test_settings_that_are_not_as_asked() -> None:
    asked = flags(["python", "-m", "x", "--page-size", "1", "--tp-size=2", "--x", "--enable-metrics", "--port", "1"])
    assert asked == {"page_size": "1", "tp_size": "2", "x": "True", "enable_metrics": "True", "port": "1"}
    told = {"page_size": 64, "tp_size": 2, "enable_metrics": True, "port": 8}
    (sign,) = not_as_asked(asked, told)
    assert "page_size: asked for 1, in force is 64" in sign.what


METRICS = """# TYPE sglang:cuda_graph_passes_total counter
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",model_name="m"} 41.0
sglang:cuda_graph_passes_total{mode="prefill_none",model_name="m"} 7.0
"""


@pytest.mark.parametrize(
    ("info", "metrics", "replays"),
    [
        ({}, "", None),
        ({}, METRICS, 41),
        ({"internal_states": [{"verify": {"graph_replays": 5}}, {"verify": {"graph_replays": 2}}]}, "", 7),
        ({"internal_states": [{"verify": {}}, None]}, "nonsense 1.0", None),
    ],
)
def test_graph_replays_are_counted(info: dict[str, Any], metrics: str, replays: int | None) -> None:
    assert graph_replays(info, metrics) == replays


@pytest.mark.parametrize(
    ("off", "replayed", "ids"),
    [(False, 0, ["no-graph-replay"]), (False, 9, []), (True, 0, []), (True, 3, ["graph-replay"]), (False, None, [])],
)
def test_whether_graphs_were_replayed(off: bool, replayed: int | None, ids: list[str]) -> None:
    assert [sign.id for sign in graphs({"disable_cuda_graph": off}, replayed)] == ids


def test_leads_without_anything_to_go_by() -> None:
    states = {lead.id: lead.state for lead in leads(Seen({}, answers=3))}
    assert states["chat-template"] == states["detokeniser"] == states["dtype"] == "not looked at"


@pytest.mark.parametrize(("chat", "raw", "state"), [(True, False, "found"), (False, False, "excluded")])
def test_the_chat_path_against_the_raw_one(chat: bool, raw: bool, state: str) -> None:
    assert leads(Seen({}, answers=1, chat_garbled=chat, raw_garbled=raw))[0].state == state


def test_answers_that_were_cut() -> None:
    assert leads(Seen({}, answers=4, cut=2))[-1].state == "found"
