"""What could be to blame: what there is, what each foretells, how much it weighs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_host import factor, space, two_level

from diag.bisect.expr import Value
from diag.bisect.hypotheses import Hypothesis, enumerate_all
from diag.bisect.space import Derived, Factor

A, B, C = (factor(name) for name in "abc")


@given(st.integers(1, 7), st.booleans(), st.integers(0, 2))
@settings(deadline=None)
def test_weights_sum_to_one_and_all_are_positive(count: int, innocent: bool, rules: int) -> None:
    factors = [factor(f"f{i}") for i in range(count)] + ([factor("spare", 1, 1, 2)] if innocent else [])
    over = space(*factors, **{f"r{i}": f"f0 + {i} == 1" for i in range(rules)})
    weighted = enumerate_all(over)
    assert math.isclose(sum(weight for _, weight in weighted), 1.0)
    assert all(weight > 0 for _, weight in weighted)
    names = [h.name for h, _ in weighted]
    assert len(set(names)) == len(names)
    assert not any("spare" in name for name in names)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_every_one_two_and_three_of_them(count: int) -> None:
    kinds = [h.kind for h, _ in enumerate_all(two_level(count))]
    assert kinds.count("single") == count
    assert kinds.count("pair") == kinds.count("either") == math.comb(count, 2)
    assert kinds.count("triple") == math.comb(count, 3)
    assert kinds.count("always") == kinds.count("never") == 1


def test_a_single_weighs_more_than_a_pair_and_a_pair_more_than_a_triple() -> None:
    weight = {h.kind: w for h, w in enumerate_all(two_level(6))}
    assert weight["single"] > weight["pair"] > weight["triple"]
    assert weight["pair"] > weight["either"]


ON, OFF, UNKNOWN = 1, 0, None


def values(**known: int | None) -> dict[str, Value]:
    return {name: value for name, value in known.items() if value is not None}


@pytest.mark.parametrize(
    ("a", "b", "both", "either"),
    [
        (ON, ON, True, True),
        (ON, OFF, False, True),
        (OFF, ON, False, True),
        (OFF, OFF, False, False),
        (ON, UNKNOWN, None, True),
        (UNKNOWN, ON, None, True),
        (OFF, UNKNOWN, False, None),
        (UNKNOWN, OFF, False, None),
        (UNKNOWN, UNKNOWN, None, None),
    ],
)
def test_three_valued_logic(a: int | None, b: int | None, both: bool | None, either: bool | None) -> None:
    known = values(a=a, b=b)
    assert Hypothesis("pair", (A, B)).active(known) is both
    assert Hypothesis("either", (A, B)).active(known) is either
    assert Hypothesis("triple", (A, B, C)).active({**known, "c": 1}) is both
    assert Hypothesis("triple", (A, B, C)).active({**known, "c": 0}) is False


def test_one_factor_one_rule_and_the_two_ends_of_the_scale() -> None:
    rule = space(A, B, rule="a + b == 2").derived[0]
    assert Hypothesis("single", (A,)).active({"a": 1}) is True
    assert Hypothesis("single", (A,)).active({"a": 2}) is False
    assert Hypothesis("single", (A,)).active({}) is None
    assert Hypothesis("derived", (rule,)).active({"a": 1, "b": 1}) is True
    assert Hypothesis("derived", (rule,)).active({"a": 1}) is None
    assert Hypothesis("always").active({}) is True
    assert Hypothesis("never").active({}) is False


def test_names_and_titles_a_person_can_read() -> None:
    budget = factor("budget", 7, 16, title="tree budget")
    graph = factor("graph", False, True, title="CUDA graph")
    rule = Derived("mismatch", space(budget, m="budget + 1 != 8").derived[0].when, "does not fit")
    named: list[tuple[Hypothesis, str, str]] = [
        (Hypothesis("single", (budget,)), "budget=16", "tree budget (budget=16)"),
        (Hypothesis("pair", (budget, graph)), "budget=16 and graph=on", "tree budget with CUDA graph"),
        (Hypothesis("either", (budget, graph)), "budget=16 or graph=on", "tree budget or CUDA graph"),
        (Hypothesis("derived", (rule,)), "budget + 1 != 8", "does not fit (budget + 1 != 8)"),
        (Hypothesis("single", (A,)), "a=1", "a=1"),
    ]
    for hypothesis, name, title in named:
        assert hypothesis.name == name
        assert hypothesis.title.startswith(title)
    assert Hypothesis("pair", (budget, graph)).factors == ("budget", "graph")
    assert Hypothesis("derived", (rule,)).factors == ("budget",)


def test_on_is_not_one() -> None:
    one = Factor("x", "--x", "flag", 0, 1, (0, 1))
    assert Hypothesis("single", (one,)).active({"x": True}) is False


@pytest.mark.parametrize(
    ("levels", "named"),
    [
        ((8, 17), ["budget + 1 != block_size"]),
        ((8, 16), []),  # at no level do they fit again: nothing would tell it from the budget
    ],
)
def test_two_numbers_that_fit_at_the_good_end_are_a_relation(levels: tuple[int, int], named: list[str]) -> None:
    over = space(factor("budget", 7, 16), factor("block_size", 8, 8, *levels), factor("small", 0, 1))
    assert [h.name for h, _ in enumerate_all(over) if h.kind == "relation"] == named


def test_a_relation_that_the_plan_names_is_not_there_twice() -> None:
    over = space(factor("budget", 7, 16), factor("block_size", 8, 8, 17), mismatch="budget + 1 != block_size")
    assert [h.kind for h, _ in enumerate_all(over) if h.name == "budget + 1 != block_size"] == ["derived"]
