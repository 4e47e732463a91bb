"""Trials for many hosts at once: as good as looking at everything, for far less."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.engine import batch
from diag.bisect.engine.gain import TIE
from diag.bisect.trial import Outcome, Trial
from tests.bisect.simulated_host import two_level


def world(seed: int, candidates: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(share, weight, hot, cold)."""
    random = np.random.default_rng(seed)
    share = random.integers(0, 2, (candidates, rows)).astype(np.float32)
    weight = random.dirichlet(np.ones(rows))
    return share, weight, random.uniform(0.4, 1, rows), random.uniform(0, 0.3, rows)


def bits(share: np.ndarray, weight: np.ndarray, hot: np.ndarray, cold: np.ndarray, picked: list[int]) -> float:
    """What the trials of these candidates tell together: outcome by outcome."""
    fails = [share[i] * hot + (1 - share[i]) * cold for i in picked]
    total = 0.0
    for outcome in itertools.product((True, False), repeat=len(picked)):
        like = np.prod([np.ones(len(weight)), *(p if f else 1 - p for p, f in zip(fails, outcome))], axis=0)
        seen = float(weight @ like)
        total += float((weight * like) @ np.log2(np.maximum(like, 1e-300))) - seen * np.log2(seen) if seen else 0.0
    return total


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 90), st.integers(2, 12), st.integers(0, 2), st.integers(1, 2))
def test_each_pick_is_as_good_as_any(seed: int, candidates: int, rows: int, pending: int, count: int) -> None:
    share, weight, hot, cold = world(seed, candidates, rows)
    random = np.random.default_rng(seed)
    before = random.integers(0, candidates, pending).tolist()
    picks = batch.joint(share, weight, hot, cold, share[before], count, np.ones(candidates), random)
    for pick in picks:
        gains = [bits(share, weight, hot, cold, [*before, i]) for i in range(candidates)]
        nothing = bits(share, weight, hot, cold, before)
        assert gains[pick] - nothing >= (max(gains) - nothing) * (1 - TIE) - 1e-4
        before.append(pick)


def test_of_more_outcomes_than_can_be_kept_some_stand_for_all() -> None:
    """Twelve trials have 4096; what another one adds is nearly what it adds over all of them."""
    share, weight, hot, cold = world(3, 12, 12)
    random = np.random.default_rng(0)
    branches = weight[None, :]
    for row in share[:11]:
        branches = batch._split(branches, row.astype(float), hot, cold, random)
    assert len(branches) <= batch.MAX_BRANCHES
    assert branches.sum() == pytest.approx(1)
    assert branches.sum(axis=0) == pytest.approx(weight, abs=0.05)
    known = bits(share, weight, hot, cold, list(range(11)))
    exact = bits(share, weight, hot, cold, list(range(12))) - known
    assert batch._Expected(branches, hot, cold).bits(share[11:])[0] == pytest.approx(exact, rel=0.25)


def test_what_adds_nothing_is_not_picked() -> None:
    share, weight = np.eye(4, dtype=np.float32), np.full(4, 0.25)
    sure = np.ones(4), np.zeros(4)
    random = np.random.default_rng(0)
    picks = batch.joint(share, weight, *sure, share[:0], 64, np.ones(4), random, 0.005)
    assert len(picks) == len(set(picks)) == 3, "the fourth follows from the others"
    assert batch.joint(share, weight, *sure, share, 64, np.ones(4), random, 0.005) == []


@pytest.mark.parametrize("deterministic", [True, None])
def test_sixty_four_hosts_have_something_to_do_and_never_the_same_proof_twice(deterministic: bool | None) -> None:
    over = two_level(10)
    search = BayesianSearch(over, deterministic=deterministic)
    passed = [Trial(i + 1, "", over.good, over.good, Outcome.PASS, host=f"n{i}") for i in range(64)]
    failed = Trial(65, "", over.bad, over.bad, Outcome.FAIL, host="n0")
    steps = search.next_batch([*passed, failed], [], 64)
    assert not isinstance(steps, Verdict)
    assert len(steps) >= 10
    configs = [step.config for step in steps]
    if deterministic:
        assert all(configs.count(config) == 1 for config in configs)
    more = search.next_batch([*passed, failed], configs, 64)
    assert not isinstance(more, Verdict)
    assert len(more) < len(steps), "less is left to ask while so much is under way"


def test_while_the_failing_end_runs_the_others_begin_to_search() -> None:
    over = two_level(10)
    search = BayesianSearch(over, deterministic=True)
    passed = [Trial(i + 1, "", over.good, over.good, Outcome.PASS, host=f"n{i}") for i in range(8)]
    steps = search.next_batch(passed, [], 8)
    assert not isinstance(steps, Verdict)
    assert steps[0].config == over.bad
    assert len(steps) == 8
    assert over.bad not in [step.config for step in steps[1:]]
    later = search.next_batch(passed, [step.config for step in steps], 1)
    assert isinstance(later, list)
    assert all(isinstance(step, Next) and step.config not in [s.config for s in steps] for step in later)
