"""The margin that a host's healthy runs give, and what a text is by the reference's scores."""

from __future__ import annotations

import pytest

from diag.verdict.compare import MARGIN_NATS, Score, ending
from diag.verdict.reference import LEAST_MARGIN_NATS, MANY_TOKENS, MOST_MARGIN_NATS, Margin, calibrate, measure


def runs(*gaps: float, tokens: int = 300) -> list[list[Score]]:
    return [[Score(gap) for gap in gaps], [Score(0.0)] * (tokens - len(gaps))]


def test_the_margin_is_twice_the_largest_healthy_gap() -> None:
    margin = calibrate(runs(0.0, 0.125, 0.06))
    assert (margin.nats, margin.calibrated, margin.largest_nats) == (0.25, True, 0.125)
    assert (margin.tokens, margin.texts) == (300, 2)


def test_many_tokens_make_it_narrower_down_to_a_floor() -> None:
    assert calibrate(runs(0.001, tokens=MANY_TOKENS)).nats == LEAST_MARGIN_NATS
    few = calibrate(runs(0.001))
    assert (few.nats, few.calibrated, few.largest_nats) == (MARGIN_NATS, True, 0.001)
    assert calibrate(runs(0.3)).nats == 0.6


def test_it_is_read_back() -> None:
    margin = calibrate(runs(0.2))
    assert Margin.from_json(margin.to_json()) == margin


@pytest.mark.parametrize(("healthy", "said"), [(runs(0.1, tokens=20), "20 tokens"), (runs(4.0), "4.00"), ([], "0 tok")])
def test_where_nothing_can_be_learned_the_constant_holds_and_it_says_why(healthy: list[list[Score]], said: str) -> None:
    margin = calibrate(healthy)
    assert (margin.nats, margin.calibrated) == (MARGIN_NATS, False)
    assert said in margin.why


def test_the_margin_never_accuses_what_it_was_measured_on() -> None:
    """0.5625 nats: one token of 640 answers of a healthy SGLang in bfloat16, decode with graphs against prefill. Twice
    that is above the widest margin, and the constant would accuse the very answer that it was measured on."""
    margin = calibrate(runs(0.25, 0.5625))
    assert (margin.nats, margin.calibrated) == (MOST_MARGIN_NATS, True)
    assert measure([Score(0.5625)], margin.nats).outside == 0  # type: ignore[union-attr]
    assert calibrate(runs(MOST_MARGIN_NATS)).nats == MOST_MARGIN_NATS
    assert calibrate(runs(MOST_MARGIN_NATS + 0.01)).calibrated is False


def test_a_text_in_numbers() -> None:
    scores = [Score(0.0, surprise_nats=0.5), Score(6.0, surprise_nats=7.5), Score(0.3), Score(0.1, surprise_nats=1.0)]
    measured = measure(scores, 0.25)
    assert measured is not None
    assert (measured.outside, measured.share_outside, measured.first_outside) == (2, 0.5, 1)
    assert (measured.worst_gap_nats, measured.worst_at) == (6.0, 1)
    assert measured.mean_gap_nats == pytest.approx(1.6)
    assert measured.mean_surprise_nats == pytest.approx(3.0)
    assert measure([]) is None


@pytest.mark.parametrize(
    ("answers", "token"),
    [
        ([([1, 2, 9], True), ([3, 9], True), ([4, 5], False)], 9),
        ([([1, 2, 9], True), ([3, 8], True)], None),
        ([([9, 2, 9], True)], None),
        ([([1, 2], False)], None),
        ([], None),
    ],
)
def test_the_token_that_ends_an_answer_is_told_only_where_it_is_sure(
    answers: list[tuple[list[int], bool]], token: int | None
) -> None:
    assert ending(answers) == token
