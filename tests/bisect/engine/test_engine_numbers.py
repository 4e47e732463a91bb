"""Which rule about a number: named with few trials, and only when it is the only one left."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from simulated_host import SimulatedHost, factor, settle, space

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next
from diag.bisect.engine import numbers
from diag.bisect.expr import parse
from diag.bisect.refine import RefinedSearch
from diag.bisect.trial import Outcome

OVER = space(factor("budget", 7, 16), factor("topk", 1, 4), factor("block_size", 8, 8))
REPORTS = {"captured": 12}


def rule_of(fault: str) -> tuple[str, int]:
    """(the rule found, trials of the sweep)."""
    when = parse(fault)
    host = SimulatedHost(OVER, lambda v: when.holds(v), reports=lambda c: dict(REPORTS))
    for config in (OVER.good, OVER.bad):
        host.run(Next(config, ""))
    while isinstance(step := numbers.sweep(OVER, host.trials, "budget"), numbers.Probe):
        host.run(Next(step.config, step.purpose))
        assert len(host.trials) < 20
    assert step.rule is not None
    return step.rule.when.text, len(host.trials) - 2


@pytest.mark.parametrize(
    "fault",
    [
        "budget + 1 != block_size",
        "budget > 11",
        "budget > 8",
        "budget == 16",
        "budget % 4 == 0",
        "budget > captured",
        "budget > 14",
        "budget != 7",
    ],
)
def test_the_rule_is_found(fault: str) -> None:
    """Said in any form that no value in reach tells apart from the hidden one."""
    found, spent = rule_of(fault)
    hidden, said = parse(fault), parse(found)
    for budget in range(1, 33):
        values = {"budget": budget, "topk": 4, "block_size": 8, **REPORTS}
        assert said.holds(values) == hidden.holds(values), f"{found} is not {fault} at {budget}"
    assert spent <= 7


def test_what_no_form_describes_is_not_named() -> None:
    host = SimulatedHost(OVER, lambda v: v["budget"] in (9, 12, 16, 13, 20, 31))
    for budget in (7, 16, 9, 12, 10, 13, 20, 21, 8, 31, 30):
        host.run(Next({**OVER.bad, "budget": budget}, ""))
    step = numbers.sweep(OVER, host.trials, "budget")
    assert isinstance(step, numbers.Finding)
    assert step.rule is None


def test_flags_and_words_have_no_rules() -> None:
    over = space(factor("graph", False, True), factor("backend", "a", "b"))
    assert numbers.rules(over, [], "graph") == numbers.rules(over, [], "backend") == []


@pytest.mark.parametrize("exact", [True, False])
def test_the_story_without_its_rule_in_the_plan_ends_with_the_equality(exact: bool) -> None:
    """The plan lists no derived factor; the search accuses the budget, the sweep says which rule. Where one trial is a
    proof: 8 starts in all."""
    over = space(factor("budget", 7, 16), factor("topk", 1, 4), factor("block_size", 8, 8))
    inner = BayesianSearch(over, deterministic=True if exact else None)
    host = SimulatedHost(over, lambda v: v["budget"] + 1 != v["block_size"])  # type: ignore[operator]
    search = RefinedSearch(inner, over)
    verdict = settle(host, search)
    assert verdict.culprit is not None
    said = parse(verdict.culprit.name)
    assert all(said.holds({"budget": b, "block_size": 8}) == (b != 7) for b in range(1, 33))
    assert "block_size" in verdict.culprit.name
    assert len(host.trials) <= (8 if exact else 14)
    assert RefinedSearch(inner, over).next(host.trials) == verdict
    assert search.expected_trials(host.trials) >= len(host.trials)


def test_a_flag_is_left_as_it_is() -> None:
    over = space(factor("graph", False, True), factor("topk", 1, 4))
    host = SimulatedHost(over, lambda v: v["graph"] is True)
    verdict = settle(host, RefinedSearch(BayesianSearch(over, deterministic=True), over))
    assert verdict.culprit is not None
    assert verdict.culprit.kind == "single"


def test_a_number_may_be_kept_to_its_levels() -> None:
    """Unlisted values are tried only where the factor allows it."""
    budget = dataclasses.replace(factor("budget", 7, 16, 12), sweep=False)
    size = dataclasses.replace(factor("block_size", 8, 8), sweep=False)
    over = space(budget, factor("topk", 0, 1), size)
    host = SimulatedHost(over, lambda v: v["budget"] == 16)
    settle(host, RefinedSearch(BayesianSearch(over, deterministic=True), over))
    assert {t.config["budget"] for t in host.trials} <= {7, 12, 16}
    assert {t.config["block_size"] for t in host.trials} == {8}


def test_a_value_that_does_not_start_is_not_tried_again() -> None:
    over = space(factor("budget", 7, 16), factor("topk", 0, 1), factor("block_size", 8, 8))
    host = SimulatedHost(
        over,
        lambda v: v["budget"] + 1 != v["block_size"],  # type: ignore[operator]
        starts=lambda c: c["budget"] in (7, 16),
    )
    verdict = settle(host, RefinedSearch(BayesianSearch(over, deterministic=True), over))
    assert verdict.culprit is not None
    refused = [tuple(t.config.items()) for t in host.trials if t.outcome is Outcome.SKIP]
    assert len(refused) == len(set(refused)) > 0
