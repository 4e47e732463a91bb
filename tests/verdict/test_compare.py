"""Near-tie or garbled: exact operating points of the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.verdict.compare import (
    HEALTHY,
    MARGIN_NATS,
    Score,
    TextVerdict,
    first_divergence,
    judge_alone,
    judge_divergence,
)

TOKENS = st.lists(st.integers(0, 3), max_size=8)


@given(TOKENS, TOKENS)
@settings(deadline=None)
def test_the_first_divergence_is_where_the_common_beginning_ends(tokens: list[int], reference: list[int]) -> None:
    at = first_divergence(tokens, reference)
    if at is None:
        assert tokens == reference
    else:
        assert tokens[:at] == reference[:at]
        assert tokens[at : at + 1] != reference[at : at + 1]


def gaps(*values: float, rival: tuple[int, float] | None = None) -> list[Score]:
    return [Score(gap, rival[1] if rival is not None and rival[0] == at else None) for at, gap in enumerate(values)]


@pytest.mark.parametrize(
    ("at", "scores", "kind", "worst"),
    [
        (1, None, "garbled", None),
        (0, [], "garbled", None),
        (1, gaps(0, 0.125, 0, rival=(1, 0.1)), "near_tie", 1),
        (1, gaps(0, MARGIN_NATS, 0, rival=(1, MARGIN_NATS)), "near_tie", 1),
        (1, gaps(0, 0.1, 0.26, rival=(1, 0.0)), "garbled", 2),
        (1, gaps(0, 0, 0, rival=(1, 0.26)), "garbled", 0),
        (1, gaps(0, 0, 0), "garbled", 0),
        (3, gaps(0, 0, 0), "garbled", 0),
        (0, gaps(0, 38.7, 5.5, rival=(0, 0.0)), "garbled", 1),
        (0, gaps(0, 0.32, rival=(0, 0.0)), "garbled", 1),
    ],
    ids=[
        "not scored",
        "nothing emitted",
        "near-tie",
        "just within the margin",
        "a later token is not the model's",
        "the reference's token is not the model's here: a broken prefill likes its own tokens",
        "the reference's token is not among the best",
        "stops early: no token to compare at that place",
        "garbled as measured",
        "fluent but wrong as measured",
    ],
)
def test_a_divergence(at: int, scores: list[Score] | None, kind: str, worst: int | None) -> None:
    judged, why, where = judge_divergence(at, scores)
    assert (judged, where) == (kind, worst)
    assert why


def test_the_margin_lies_between_what_was_measured() -> None:
    assert 0.125 < MARGIN_NATS < 0.32


@pytest.mark.parametrize(
    ("scores", "expected", "kind"),
    [
        (gaps(0, 0.2), True, "plausible"),
        (gaps(0, 0.2), None, "plausible"),
        (gaps(0, 0.2), False, "wrong"),
        (gaps(0, 0.26), True, "garbled"),
        (None, True, "plausible"),
        (None, None, "plausible"),
        (None, False, "wrong"),
        ([], False, "wrong"),
    ],
)
def test_alone(scores: list[Score] | None, expected: bool | None, kind: str) -> None:
    judged, why, worst = judge_alone(scores, expected)
    assert judged == kind
    assert why
    assert (worst is None) == (not scores)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20), st.integers(0, 25), st.none() | st.floats(0, 50))
@settings(deadline=None)
def test_what_is_called_healthy_has_every_token_within_the_margin(
    values: list[float], at: int, rival: float | None
) -> None:
    scores = [Score(gap, rival if i == at else None) for i, gap in enumerate(values)]
    kind, _, worst = judge_divergence(at, scores)
    assert worst is not None
    assert scores[worst].gap_nats == max(values)
    if kind in HEALTHY:
        assert max(values) <= MARGIN_NATS
        assert rival is not None
        assert rival <= MARGIN_NATS
        assert at < len(values)


def test_json_says_whether_it_is_healthy() -> None:
    verdict = TextVerdict("poem", "alone", "near_tie", "a", "b", "why", diverges_at=3)
    assert verdict.to_json()["healthy"] is True
    assert TextVerdict("poem", "alone", "no_answer", "", None, "why").to_json()["healthy"] is False
