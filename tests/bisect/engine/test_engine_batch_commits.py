"""Several hosts at once, and commits as rows."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from simulated_host import SimulatedHost, two_level

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import BothEnds, Search, Verdict
from diag.bisect.engine import commits
from diag.bisect.refine import RefinedSearch
from diag.bisect.space import Space
from diag.bisect.trial import Outcome


def rounds(hosts: int, flake: float, deterministic: bool | None, seed: int = 1) -> tuple[int, Verdict]:
    chance = random.Random(seed)
    over = two_level(6)
    host = SimulatedHost(
        over,
        lambda v: v["f1"] == 1 and v["f4"] == 1,
        disturb=lambda n, o: Outcome.PASS if o is Outcome.FAIL and chance.random() < flake else o,
    )
    search, count = BayesianSearch(over, deterministic=deterministic), 0
    while not isinstance(steps := search.next_batch(host.trials, [], hosts), Verdict):
        assert 1 <= len(steps) <= hosts
        count += 1
        assert count < 100
        for step in steps:
            host.run(step)
    return count, steps


@pytest.mark.parametrize(("flake", "deterministic"), [(0.0, True), (0.3, None)])
def test_eight_hosts_need_few_rounds(flake: float, deterministic: bool | None) -> None:
    alone, one = rounds(1, flake, deterministic)
    together, eight = rounds(8, flake, deterministic)
    for verdict in (one, eight):
        assert verdict.culprit is not None
        assert verdict.culprit.name == "f1=1 and f4=1"
    assert together <= max(3, alone // 3)


def test_what_is_pending_is_reckoned_with() -> None:
    over = two_level(6)
    host = SimulatedHost(over, lambda v: v["f1"] == 1)
    search = BayesianSearch(over, deterministic=True)
    while len(host.trials) < 2:
        steps = search.next_batch(host.trials, [], 1)
        assert not isinstance(steps, Verdict)
        host.run(steps[0])
    first = search.next_batch(host.trials, [], 1)
    assert not isinstance(first, Verdict)
    second = search.next_batch(host.trials, [first[0].config], 1)
    assert not isinstance(second, Verdict)
    assert second[0].config != first[0].config


@pytest.mark.parametrize("search", [BothEnds, lambda over: RefinedSearch(BayesianSearch(over), over), BayesianSearch])
def test_every_search_can_be_asked_for_several(search: Callable[[Space], Search]) -> None:
    """None while it waits, at most one for each free host, a culprit at once, and else a verdict when nothing is
    pending."""
    over = two_level(3)
    host = SimulatedHost(over, lambda v: v["f1"] == 1)
    decide = search(over)
    while not isinstance(steps := decide.next_batch(host.trials, [], 2), Verdict):
        assert 1 <= len(steps) <= 2
        assert decide.next_batch(host.trials, [], 0) == []
        for step in steps:
            host.run(step)
    late = decide.next_batch(host.trials, [over.bad], 1)
    assert late == (steps if steps.kind == "culprit" else [])


def bisect(
    ancestors: np.ndarray, first_bad: int, flake: float, alarms: float, certain: float, seed: int
) -> tuple[int, int]:
    chance, last = random.Random(seed), len(ancestors) - 1
    trials = [(0, 0, 1), (last, 1, 1)]
    while (step := commits.decide(ancestors, trials, certain=certain, seed=seed)).index is not None:
        rate = 1 - flake if ancestors[step.index, first_bad] else alarms
        trials.append((step.index, int(chance.random() < rate), 1))
        assert len(trials) < 300
    return step.culprit, len(trials) - 2


@pytest.mark.parametrize("first_bad", [1, 60, 127])
def test_a_constant_fault_takes_the_logarithm(first_bad: int) -> None:
    culprit, spent = bisect(commits.linear(128), first_bad, 0.0, 0.0, 1.0, 0)
    assert culprit == first_bad
    assert spent <= 9


@pytest.mark.parametrize("count", [128, 1024])
def test_a_flaky_fault_is_found(count: int) -> None:
    culprit, spent = bisect(commits.linear(count), 77, 0.3, 0.02, 0.0, 3)
    assert culprit == 77
    assert spent < 90


def test_a_merge_is_rows_like_any_other() -> None:
    """0 - 1 - 2 ---- 5 - 6, and 1 - 3 - 4 - 5: commit 3 broke it."""
    parents = {0: [], 1: [0], 2: [1], 3: [1], 4: [3], 5: [2, 4], 6: [5]}
    ancestors = np.eye(7, dtype=bool)
    for commit, above in parents.items():
        for parent in above:
            ancestors[commit] |= ancestors[parent]
    culprit, spent = bisect(ancestors, 3, 0.0, 0.0, 1.0, 0)
    assert (culprit, spent <= 5) == (3, True)


def test_priors_are_capped_and_zero_is_zero() -> None:
    prior = np.array([0.0, 1e6, 1, 1, 1])
    step = commits.decide(commits.linear(5), [], prior=prior)
    assert step.weight[0] == 0
    assert step.weight[1] / step.weight[2] == pytest.approx(20)
    skipped = commits.decide(commits.linear(5), [], chance=np.array([0.0, 1, 0, 1, 1]))
    assert skipped.index in (1, 3, 4)
    assert not skipped.settled
