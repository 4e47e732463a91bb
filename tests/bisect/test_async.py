"""Results that come late, twice, not at all, or as errors: the verdict is right, and nothing counts twice."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diag.bisect import run
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.ours import RETRIES_A_RUN
from diag.bisect.refine import RefinedSearch
from diag.bisect.run import Result
from diag.bisect.trial import Outcome, Trial
from tests.bisect.simulated_host import two_level
from tests.bisect.virtual import Conditions, Nodes, Unheard, unwritten

SPACE = two_level(6)
UNEVEN = Conditions(spread=1.5, nodes_spread=1.0, stragglers=0.3, straggle=50.0)
NEVER = 1e9
INNER = BayesianSearch(SPACE, deterministic=True)


@dataclass
class Wild(Nodes):
    """twice: whether each result is told again, at once and with the next one. mute: slots whose trials, but for the
    first `answers`, are never over; with a limit, lost then. given, collected: trials of each slot."""

    twice: bool = False
    mute: frozenset[str] = frozenset()
    answers: int = 0
    limit: float = NEVER
    given: Counter[str] = field(default_factory=Counter)
    collected: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    _told: tuple[str, ...] = ()

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None:
        assert slot not in self._jobs, "one trial at a time on a slot"
        self.given[slot] += 1
        super().submit(slot, number, step, host)
        if slot in self.mute and self.given[slot] > self.answers:
            self._jobs[slot] = replace(self._jobs[slot], lost=True)
            self._ends = [(self.now + self.limit if name == slot else end, name) for end, name in self._ends]
            heapq.heapify(self._ends)

    def poll(self) -> Sequence[str]:
        over = tuple(super().poll())
        assert self.now < NEVER, "it waits for what never comes"
        again, self._told = tuple(slot for slot in self._told if slot not in self._jobs), over
        return (*again, *over, *over) if self.twice else over

    def collect(self, slot: str) -> Trial:
        self.collected[slot] += 1
        return super().collect(slot)

    def cancel(self) -> None:
        self.cancelled += 1
        super().cancel()


def searched(nodes: Wild, seed: int, most: int = 200) -> Result:
    INNER.model.seed, INNER.max_trials = seed, most
    search = RefinedSearch(INNER, SPACE)
    return run.run(search, nodes, unwritten(), Unheard(), good=SPACE.good, start={})


def hidden(seed: int) -> Hypothesis:
    chance = random.Random(seed)
    members = tuple(SPACE.factors[i] for i in sorted(chance.sample(range(6), chance.choice((1, 2, 3)))))
    kind = {1: "single", 2: "pair", 3: "triple"}[len(members)]
    return Hypothesis(kind, members)  # type: ignore[arg-type]


def wild(seed: int, hosts: int, conditions: Conditions, **how: Any) -> tuple[Wild, Hypothesis]:
    fault, slots = hidden(seed), tuple(f"n{i}" for i in range(hosts))
    return Wild(SPACE, slots, lambda v: fault.active(v) is True, conditions, random.Random(seed), **how), fault


def right(result: Result, nodes: Wild, fault: Hypothesis) -> None:
    """The verdict, and that each trial is there once: what was collected, and nothing else."""
    assert result.verdict.culprit == fault, result.verdict
    assert [t.number for t in result.trials] == list(range(1, len(result.trials) + 1))
    assert Counter(t.host for t in result.trials) == nodes.collected
    assert all(nodes.given[slot] - nodes.collected[slot] in (0, 1) for slot in nodes.slots)
    assert nodes.cancelled == (nodes.given != nodes.collected)
    ours = sum(t.outcome is Outcome.INFRA for t in result.trials)
    assert ours == nodes.lost
    known = [dict(t.config) for t in result.trials if t.outcome is not Outcome.INFRA]
    assert all(known.count(config) == 1 for config in known if config != SPACE.good), "where one trial is a proof"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.booleans())
def test_in_whatever_order_results_come_and_however_often(seed: int, hosts: int, twice: bool) -> None:
    nodes, fault = wild(seed, hosts, UNEVEN, twice=twice)
    right(searched(nodes, seed), nodes, fault)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 9))
def test_hosts_that_never_answer_are_not_waited_for(seed: int, hosts: int) -> None:
    nodes, fault = wild(seed, hosts, UNEVEN, mute=frozenset(f"n{i}" for i in range(hosts // 3)))
    result = searched(nodes, seed)
    right(result, nodes, fault)
    assert nodes.cancelled == 1
    assert not {t.host for t in result.trials} & nodes.mute


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 9))
def test_what_ends_at_its_limit_is_made_again_elsewhere(seed: int, hosts: int) -> None:
    """The host has passed its control and says nothing more; a culprit that is shown without it waits for nothing."""
    mute = frozenset(f"n{i}" for i in range(hosts // 3))
    nodes, fault = wild(seed, hosts, UNEVEN, mute=mute, answers=1, limit=10_000)
    right(searched(nodes, seed), nodes, fault)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 9))
def test_trials_that_are_lost_are_no_evidence_and_made_again(seed: int, hosts: int) -> None:
    nodes, fault = wild(seed, hosts, Conditions(spread=0.5, lost=0.1))
    result = searched(nodes, seed)
    right(result, nodes, fault)
    lost = {t.number for t in result.trials if t.outcome is Outcome.INFRA}
    assert not lost & {*result.verdict.sufficient, *result.verdict.necessary}
    assert len(result.left_out) <= max(0, len(lost) - RETRIES_A_RUN) + len(lost) // 3


def test_the_controls_of_many_hosts_are_no_trials_of_the_search() -> None:
    """Forty hosts would spend the plan's thirty-two trials before the failing end was tried once."""
    nodes, fault = wild(7, 40, Conditions())
    right(searched(nodes, 7, most=32), nodes, fault)
