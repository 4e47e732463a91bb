"""A trial as a line of the journal: what is written is read, and yesterday's lines are read too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.bisect.trial import Outcome, Trial, effect_of
from diag.verdict.compare import TextVerdict

TEXT = TextVerdict("poem", "alone", "garbled", "x", None, "why", token_ids=(1, 2))
TRIAL = Trial(3, "why", {"a": 1, "b": True}, {"a": 1, "b": True, "r": 7}, Outcome.FAIL, (TEXT,), "r", ("w",), 1.0, 2.0)


def line(trial: Trial) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(trial.to_json()))
    return read


def test_what_is_written_is_read() -> None:
    trial = replace(TRIAL, host="gpu1", signature="garbled", details={"argv": ["x"]})
    assert Trial.from_json({**line(trial), "kind": "trial", "schema": 1}) == trial


def test_yesterdays_lines_are_read() -> None:
    """Before hosts and signatures: none of the three keys is there."""
    old = {key: value for key, value in line(TRIAL).items() if key not in ("host", "signature", "effect")}
    read = Trial.from_json(old)
    assert (read.host, read.signature) == ("", "")
    assert read == TRIAL


@pytest.mark.parametrize("missing", ["number", "purpose", "config", "effective", "outcome", "texts", "warnings"])
def test_a_line_that_lacks_what_was_always_there_is_refused(missing: str) -> None:
    broken = {key: value for key, value in line(TRIAL).items() if key != missing}
    with pytest.raises(KeyError):
        Trial.from_json(broken)


def test_the_effect_is_that_of_the_factors_in_force() -> None:
    """Not of what was asked, and not of counters that the server reports besides."""
    ignored = replace(TRIAL, config={"a": 2, "b": True})
    assert ignored.effect == TRIAL.effect
    assert replace(TRIAL, effective={"a": 1, "b": True, "r": 8}).effect == TRIAL.effect
    assert replace(TRIAL, effective={"a": 1, "b": False}).effect != TRIAL.effect
    assert line(TRIAL)["effect"] == TRIAL.effect


LEVELS = st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "1", "on", "é", "\ud800"])


@given(st.dictionaries(st.sampled_from("abc"), LEVELS, min_size=1))
def test_an_effect_does_not_depend_on_order_and_tells_true_from_one(values: dict[str, Any]) -> None:
    assert effect_of(dict(reversed(list(values.items())))) == effect_of(values)
    for name, level in values.items():
        if level is True:
            assert effect_of({**values, name: 1}) != effect_of(values)
