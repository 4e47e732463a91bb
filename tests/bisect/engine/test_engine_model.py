"""The model behind the numbers: grids against closed forms, rows against the hypotheses they come from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln

from diag.bisect.engine import beyond, gain, rates, rows, starts, stopping
from diag.bisect.engine.posterior import posterior, unexplained
from diag.bisect.expr import parse
from diag.bisect.hypotheses import enumerate_all
from diag.bisect.space import Derived, Factor, Space


def over(count: int, *derived: str) -> Space:
    factors = tuple(Factor(f"f{i}", f"--f{i}", "flag", 0, 1, (0, 1)) for i in range(count))
    return Space(factors, tuple(Derived(f"d{i}", parse(text)) for i, text in enumerate(derived)))


@pytest.mark.parametrize(("failed", "passed"), [(0, 0), (1, 0), (0, 1), (5, 2), (1, 9), (13, 13)])
def test_one_request_a_boot_is_the_closed_form(failed: int, passed: int) -> None:
    """log marginal = betaln(a+f, b+p) - betaln(a, b), for active and for idle boots."""
    x = np.array([1.0] * failed + [0.0] * passed)
    ones = np.ones_like(x)
    for state, (a, b) in ((2, rates.ACTIVE), (0, rates.IDLE)):
        active = np.full((len(x), 1), state, dtype=np.int8)
        got = posterior(active, x, ones, np.zeros(1), rates.bits(0.0)).log_evidence[0]
        # Eight nodes for false alarms: exact to 15 trials, close beyond.
        assert got == pytest.approx(betaln(a + failed, b + passed) - betaln(a, b), abs=1e-6 if len(x) < 16 else 0.02)


@given(st.floats(0.3, 5), st.floats(0.3, 5), st.integers(2, 12))
def test_nodes_integrate_polynomials_exactly(a: float, b: float, count: int) -> None:
    nodes, weight = rates.beta_nodes(a, b, count)
    for power in range(2 * count):
        moment = np.exp(betaln(a + power, b) - betaln(a, b))
        assert (weight * nodes**power).sum() == pytest.approx(moment, rel=1e-6, abs=1e-9)


def test_a_boot_decides_not_the_request() -> None:
    """Eight boots of the same configuration, half of them wholly clean: two-level evidence says active, whatever the
    share of requests; independent requests would say it cannot be."""
    n = np.full(8, 32.0)
    x = np.array([20.0, 0, 22, 0, 0, 19, 21, 0])
    active = np.array([[2, 0]] * 8, dtype=np.int8)
    post = posterior(active, x, n, np.log([0.5, 0.5]), rates.counts(0.0))
    assert post.weight[0] > 0.9999
    theta = post.theta[0]
    assert theta @ rates.counts(0.0).boot == pytest.approx(0.5, abs=0.15)
    share = rates.counts(0.0).garbled
    assert share is not None
    assert theta @ share == pytest.approx(20.5 / 32, abs=0.06)


@pytest.mark.parametrize("n", [1, 2, 8, 32, 100])
@pytest.mark.parametrize("certain", [0.0, 0.6, 1.0])
def test_predictions_are_probabilities(n: int, certain: float) -> None:
    grid = rates.bits(certain) if n == 1 else rates.counts(certain)
    post = posterior(np.zeros((0, 3), dtype=np.int8), np.zeros(0), np.zeros(0), np.zeros(3), grid)
    for part in gain.predictions(post.theta, grid, n):
        assert part.min() >= 0
        assert part.sum(axis=1) == pytest.approx(1, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["f0 == f1", "f0 + 1 > 1", "seen > 0"]), max_size=2, unique=True),
)
def test_rows_say_what_their_hypotheses_say(count: int, rules: list[str]) -> None:
    space = over(count, *rules)
    hypotheses = [h for h, _ in enumerate_all(space)]
    table = rows.table(hypotheses)
    candidates = rows.everything(space.factors)
    for fixed in ({}, {"f0": 1}, {"seen": 3}):
        known: dict[str, int] = dict(fixed)
        active = table.active(candidates.columns(table.members, known))
        configs = [{**candidates.config(i), **known} for i in range(len(candidates.codes))]
        assert (table.active(table.columns(configs)) == active).all()
        words = {None: rows.UNKNOWN, False: rows.FALSE, True: rows.TRUE}
        for config, row in zip(configs, active):
            assert [words[h.active(config)] for h in hypotheses] == list(row)
    assert [candidates.config(i) for i in range(len(candidates.codes))] == list(space.configs())


def test_information_is_what_the_definition_says() -> None:
    """Against the entropy of the posterior after each possible result, averaged."""
    space = over(3)
    prior = enumerate_all(space)
    table = rows.table([h for h, _ in prior])
    candidates = rows.everything(space.factors)
    active = table.active(candidates.columns(table.members, {}))
    log_prior = np.log([w for _, w in prior])
    grid = rates.bits(0.3)
    seen, x = active[[0, 7, 7]], np.array([0.0, 1.0, 1.0])
    post = posterior(seen, x, np.ones(3), log_prior, grid)
    hot, cold = gain.predictions(post.theta, grid, 1)
    bits = gain.information(active.astype(np.float32) / 2, post.weight, hot, cold)
    for i in range(len(active)):
        p_fail = float(np.where(active[i] == 2, hot[:, 1], cold[:, 1]) @ post.weight)
        left = 0.0
        for result, p in ((1.0, p_fail), (0.0, 1 - p_fail)):
            after = posterior(np.vstack([seen, active[i]]), np.append(x, result), np.ones(4), log_prior, grid)
            left += p * after.entropy_bits
        assert bits[i] == pytest.approx(post.entropy_bits - left, abs=1e-4)


def test_what_cannot_be_told_teaches_little() -> None:
    active = np.array([[2, 1, 0]] * 3, dtype=np.int8)
    post = posterior(active, np.ones(3), np.ones(3), np.zeros(3), rates.bits(0.6))
    assert post.weight[0] > post.weight[1] > post.weight[2]


def test_unexplained_costs_a_bit_a_configuration_and_nothing_for_repeats() -> None:
    sharp = rates.bits(1.0)
    once = unexplained([0, 1, 2], np.array([1.0, 0, 1]), np.ones(3), sharp)
    assert once == pytest.approx(3 * np.log(0.5), abs=0.02)
    again = unexplained([0, 1, 2, 2], np.array([1.0, 0, 1, 1]), np.ones(4), sharp)
    assert again == pytest.approx(once, abs=0.02)


def test_a_level_that_kept_a_server_from_starting_is_avoided() -> None:
    candidates = rows.everything(over(3).factors).codes
    started = np.array([[0, 0, 0], [1, 1, 0]], dtype=np.int8)
    refused = np.array([[0, 0, 1]], dtype=np.int8)
    chance = starts.probability(candidates, started, refused)
    assert (chance[candidates[:, 2] == 1] < 0.2).all()
    assert (chance[candidates[:, 2] == 0] == 1).all()
    assert (starts.probability(candidates, started, started[:0]) == 1).all()


def test_a_pair_is_blamed_where_each_level_started_with_others() -> None:
    candidates = rows.everything(over(2).factors).codes
    started = np.array([[0, 0], [0, 1], [1, 0]], dtype=np.int8)
    chance = starts.probability(candidates, started, np.array([[1, 1]], dtype=np.int8))
    assert list(chance > 0.5) == [True, True, True, False]


def test_rules_beyond_are_what_they_are_called() -> None:
    facts = np.array(list(itertools.product((0, 2), repeat=3)), dtype=np.int8)
    names = ["a", "b", "c"]
    over_three = beyond.rules(3)
    truth = beyond.columns(over_three, facts)
    for rule, column in zip(over_three, truth.T):
        text = beyond.told(rule, names)
        for (a, b, c), value in zip(facts > 0, column):
            if text.startswith("two of"):
                assert value == (int(a) + int(b) + int(c) >= 2)
            else:
                python = text.replace(" xor ", " ^ ").replace(" and ", " & ").replace(" or ", " | ")
                assert value == eval(python, {"a": bool(a), "b": bool(b), "c": bool(c)})
    assert len({beyond.told(rule, names) for rule in over_three}) == len(over_three) == 12


# The exact operating points are the specification.


@pytest.mark.parametrize(("rate", "misses"), [(1.0, 0.0), (0.7, 0.000729), (0.5, 0.015625), (0.3, 0.117649)])
def test_a_fault_that_shows_seldom_is_missed_by_the_gate(rate: float, misses: float) -> None:
    assert stopping.gate_misses(rate) == pytest.approx(misses)


@pytest.mark.parametrize(("rate", "let_through"), [(1.0, 0.0), (0.9, 0.0901), (0.7, 0.2117), (0.5, 0.2682)])
def test_a_world_in_which_everything_fails_is_mostly_stopped_at_the_gate(rate: float, let_through: float) -> None:
    """The rest is for the row "every configuration fails", and for the hold-outs."""
    assert stopping.gate_lets_through(rate) == pytest.approx(let_through, abs=5e-4)


def test_gate_lets_through_is_the_sum_over_all_courses() -> None:
    """By brute force over every course of six boots of the failing configuration."""
    rate = 0.6
    total = 0.0
    for course in itertools.product((0, 1), repeat=6):
        if any(course):
            first = course.index(1) + 1
            p = np.prod([rate if c else 1 - rate for c in course])
            total += p * (1 - rate) ** stopping.good_passes(1, first)
    assert stopping.gate_lets_through(rate) == pytest.approx(total)


@pytest.mark.parametrize(("rate", "least", "most"), [(1.0, 0.016, 0.0003), (0.7, 0.0754, 0.0057), (0.5, 0.178, 0.032)])
def test_hold_outs_leave_a_rule_outside_little(rate: float, least: float, most: float) -> None:
    """One that calls half of them active, drawn by lot; they are chosen better than that where the rule is known."""
    assert stopping.hold_outs_miss(rate, 0.0, stopping.HOLD_OUTS) == pytest.approx(least, abs=5e-4)
    assert stopping.hold_outs_miss(rate, 0.0, stopping.HOLD_OUT_CAP) == pytest.approx(most, abs=5e-4)


def test_a_right_leader_survives_its_checks() -> None:
    assert stopping.hold_outs_cry(0.02, 7) < 0.003
    assert max(stopping.right_leader_refused(0.02, idle) for idle in range(2, 80)) < 0.008
    assert stopping.sufficiency_false(0.02, 1) == pytest.approx(0.02)
    assert stopping.necessity_false(0.7, stopping.passes_needed(0.7)) <= stopping.MISS
    assert stopping.passes_needed(0.97) == 1


def test_drift_is_seen_and_seldom_cried() -> None:
    assert stopping.drifted([True] * 6 + [False] * 6)
    assert not stopping.drifted([True, False] * 6)
    assert not stopping.drifted([])
    assert not stopping.drifted([True] * 20)
    # Every course of ten boots at rate .7, weighted: the exact rate of false alarms.
    cried = sum(
        0.7 ** sum(course) * 0.3 ** (10 - sum(course))
        for course in itertools.product((0, 1), repeat=10)
        if stopping.drifted([bool(v) for v in course])
    )
    assert cried < stopping.DRIFT
