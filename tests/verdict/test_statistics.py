"""Rates with intervals, and how many clean requests exclude one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.verdict.statistics import excluded_rate, rate, requests_for_clean


@pytest.mark.parametrize(
    ("garbled", "tried", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (2, 512, 0.00047, 0.01404), (0, 0, 0.0, 1.0)],
)
def test_the_interval_is_exact(garbled: int, tried: int, low: float, high: float) -> None:
    found = rate(garbled, tried)
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_more_garbled_than_tried_is_no_rate() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        rate(3, 2)


@pytest.mark.parametrize(("share", "requests"), [(0.5, 5), (1 / 12, 35), (0.19, 15), (1.0, 1), (0.0, None), (0.95, 1)])
def test_requests_that_exclude_a_rate(share: float, requests: int | None) -> None:
    assert requests_for_clean(share) == requests


@given(st.floats(0.001, 0.9))
def test_the_number_of_requests_is_enough_and_one_less_is_not(share: float) -> None:
    wanted = requests_for_clean(share)
    assert wanted is not None
    assert (1 - share) ** wanted <= 0.05 * (1 + 1e-6)
    assert wanted == 1 or (1 - share) ** (wanted - 1) > 0.05 * (1 - 1e-6)
    assert excluded_rate(wanted) <= share * (1 + 1e-6)
