"""BayesianSearch against simulated hosts: constant faults, flaky ones, counts, and what is not in the space."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from simulated_host import SimulatedHost, factor, settle, space, truth, two_level

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.engine import stopping
from diag.bisect.expr import Value, parse
from diag.bisect.hypotheses import Hypothesis, enumerate_all
from diag.bisect.space import Constraint, Space
from diag.bisect.trial import Outcome, Trial
from diag.verdict.compare import TextVerdict


def flaky(
    over: Space, fails: Callable[[Mapping[str, Value]], bool], flake: float, alarms: float, seed: int
) -> SimulatedHost:
    chance = random.Random(seed)

    def disturb(number: int, outcome: Outcome) -> Outcome:
        if outcome is Outcome.SKIP:
            return outcome
        rate = 1 - flake if outcome is Outcome.FAIL else alarms
        return Outcome.FAIL if chance.random() < rate else Outcome.PASS

    return SimulatedHost(over, fails, disturb=disturb)


def text(healthy: bool) -> TextVerdict:
    return TextVerdict("p", "alone", "identical" if healthy else "garbled", "", None, "")


class CountingHost(SimulatedHost):
    """Boots of 16 requests; p_boot decides whether the fault shows at all, then 60 % of the requests garble."""

    chance = random.Random(5)
    p_boot = 0.7

    def run(self, step: Next) -> Trial:
        trial = super().run(step)
        shows = trial.outcome is Outcome.FAIL and self.chance.random() < self.p_boot
        texts = tuple(text(self.chance.random() >= (0.6 if shows else 0.005)) for _ in range(16))
        outcome = Outcome.FAIL if any(not t.healthy for t in texts) else Outcome.PASS
        self.trials[-1] = Trial(trial.number, trial.purpose, trial.config, trial.effective, outcome, texts)
        return self.trials[-1]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_constant_fault_of_a_plain_space_is_named(count: int) -> None:
    over = two_level(count)
    for hidden, _ in enumerate_all(over):
        host = SimulatedHost(over, truth(hidden))
        verdict = settle(host, BayesianSearch(over, deterministic=True))
        if hidden.kind == "always":
            assert (verdict.kind, len(host.trials)) == ("environmental", 1)
        elif hidden.kind == "never":
            assert (verdict.kind, len(host.trials)) == ("not_reproduced", 3)
        else:
            assert verdict.kind == "culprit", (hidden, verdict)
            assert hidden in (verdict.culprit, *verdict.inseparable)
            assert verdict.sufficient
            assert verdict.necessary


@pytest.mark.parametrize("deterministic", [True, None])
def test_the_tree_mask_story_ends_with_the_equality_in_eight_starts(deterministic: bool | None) -> None:
    over = space(
        factor("budget", 7, 16),
        factor("topk", 1, 4),
        factor("cuda_graph", False, True),
        factor("block_size", 8, 8, 17),
        mismatch="budget + 1 != block_size",
        padding="padded_rows > 0",
    )
    host = SimulatedHost(over, lambda v: v["budget"] + 1 != v["block_size"], reports=lambda c: {"padded_rows": 3})  # type: ignore[operator]
    verdict = settle(host, BayesianSearch(over, deterministic=deterministic))
    assert verdict.culprit is not None
    assert verdict.culprit.name == "budget + 1 != block_size"
    assert verdict.confidence > 0.95
    assert len(host.trials) <= (8 if deterministic else 20)


def settled(search: BayesianSearch, host: SimulatedHost) -> Verdict:
    return settle(host, search, limit=201)


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_flaky_faults_are_named(kind: str) -> None:
    over = two_level(6)
    faults = [h for h, _ in enumerate_all(over) if h.kind == kind]
    search = BayesianSearch(over)
    for seed, hidden in enumerate(faults[:6]):
        host = flaky(over, truth(hidden), 0.3, 0.02, seed)
        verdict = settled(search, host)
        assert verdict.culprit == hidden
        assert verdict.confidence >= stopping.STOP
        assert verdict.rates is not None
        rate = verdict.rates.active
        assert 0 < rate.low < rate.garbled / rate.tried < rate.high <= 1
        assert len(verdict.held_out) >= 3
        assert all(w < 0.01 for _, w in verdict.runners_up)


def test_counts_of_requests_are_evidence_about_boots() -> None:
    over = two_level(6)
    hidden = Hypothesis("pair", over.factors[1:3])
    host = CountingHost(over, truth(hidden))
    verdict = settled(BayesianSearch(over), host)
    assert verdict.culprit == hidden
    assert verdict.rates is not None
    assert verdict.rates.share == pytest.approx(0.6, abs=0.15)


def test_declared_constant_but_flaky_goes_on_as_flaky() -> None:
    over = two_level(4)
    hidden = Hypothesis("single", over.factors[1:2])
    names = set()
    for seed in range(6):
        verdict = settled(BayesianSearch(over, deterministic=True), flaky(over, truth(hidden), 0.3, 0, seed))
        names.add((verdict.kind, verdict.culprit.name if verdict.culprit else ""))
    assert ("culprit", "f1=1") in names
    assert names <= {("culprit", "f1=1"), ("unexplained", ""), ("not_reproduced", "")}


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_blamed_where_everything_fails_now_and_then(seed: int) -> None:
    over = two_level(5)
    verdict = settled(BayesianSearch(over), flaky(over, lambda v: True, 0.5, 0, seed))
    assert verdict.kind in ("environmental", "unexplained")


def test_what_does_not_fail_in_six_boots_is_not_reproduced() -> None:
    host = SimulatedHost(two_level(3), lambda values: False)
    verdict = settle(host, BayesianSearch(host.space))
    assert (verdict.kind, len(host.trials)) == ("not_reproduced", 7)
    assert "6 times" in verdict.why


def test_one_failure_that_never_comes_again_is_no_culprit() -> None:
    host = SimulatedHost(two_level(4), lambda v: False, disturb=lambda n, o: Outcome.FAIL if n == 2 else o)
    verdict = settled(BayesianSearch(host.space), host)
    assert verdict.kind == "not_reproduced"


def test_a_dead_knob_drops_out_without_a_start() -> None:
    over = two_level(4)
    host = SimulatedHost(over, lambda v: v["f2"] == 1, reports=lambda c: {"f1": 0})
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f2=1"
    after = host.trials[3:]
    assert {t.config["f1"] for t in after} <= {0, 1}
    effects = [tuple(t.effective.items()) for t in host.trials]
    assert len(effects) == len(set(effects)), "two command lines with one effect were both tried"


def test_what_does_not_start_is_no_evidence_and_not_tried_again() -> None:
    over = two_level(5)
    host = SimulatedHost(over, lambda v: v["f0"] == 1, starts=lambda c: not (c["f3"] == 0 and c["f4"] == 1))
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f0=1"
    skipped = [tuple(t.config.items()) for t in host.trials if t.outcome is Outcome.SKIP]
    assert len(skipped) == len(set(skipped)) <= 3


def test_constraints_are_kept() -> None:
    over = two_level(5)
    host = SimulatedHost(over, lambda v: v["f1"] == 1 and v["f4"] == 1)
    verdict = settle(
        host, BayesianSearch(over, deterministic=True, valid=lambda c: not (c["f0"] == 1 and c["f1"] == 0))
    )
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f1=1 and f4=1"
    assert not any(t.config["f0"] == 1 and t.config["f1"] == 0 for t in host.trials)


@pytest.mark.parametrize("deterministic", [True, None])
def test_what_a_constraint_forbids_is_never_tried(deterministic: bool | None) -> None:
    plain = two_level(5)
    over = Space(plain.factors, constraints=(Constraint("needs", parse("f0 == 0 or f1 == 1")),))
    for hidden in ("f0=1", "f1=1", "f0=1 and f4=1"):
        row = next(h for h, _ in enumerate_all(over) if h.name == hidden)
        host = SimulatedHost(over, truth(row))
        verdict = settle(host, BayesianSearch(over, deterministic=deterministic))
        assert verdict.culprit is not None
        assert hidden in [h.name for h in (verdict.culprit, *verdict.inseparable)]
        assert all(over.violated(t.config) is None for t in host.trials)


def test_the_answer_depends_on_nothing_but_the_trials() -> None:
    over = two_level(5)
    host = flaky(over, lambda v: v["f1"] == 1, 0.3, 0.02, 3)
    verdict = settled(BayesianSearch(over), host)
    for upto in range(len(host.trials)):
        step = BayesianSearch(over).next(host.trials[:upto])
        assert isinstance(step, Next)
        assert step.config == host.trials[upto].config
    again = BayesianSearch(over).next(host.trials)
    assert isinstance(again, Verdict)
    assert (again.kind, again.culprit, again.held_out) == (verdict.kind, verdict.culprit, verdict.held_out)


def test_the_budget_is_kept() -> None:
    over = two_level(6)
    host = flaky(over, lambda v: v["f1"] == 1 and v["f2"] == 1, 0.3, 0.02, 0)
    search = BayesianSearch(over, max_trials=10)
    verdict = settle(host, search)
    assert (verdict.kind, len(host.trials)) == ("narrowed", 10)
    assert verdict.alive
    for upto in range(11):
        assert search.expected_trials(host.trials[:upto]) >= upto


def test_twenty_four_factors_by_a_pool() -> None:
    over = two_level(24)
    host = SimulatedHost(over, lambda v: v["f3"] == 1 and v["f17"] == 1)
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f3=1 and f17=1"


def test_cheap_trials_are_preferred() -> None:
    """Factors 0 to 2 go with the request; the others need a restart."""
    over = two_level(6)

    def minutes(config: Mapping[str, Value], running: Mapping[str, Value] | None) -> float:
        same = running is not None and all(config[f"f{i}"] == running[f"f{i}"] for i in (3, 4, 5))
        return 0.5 if same else 5.5

    spent = {}
    for name, cost in (("blind", None), ("aware", minutes)):
        host = flaky(over, lambda v: v["f1"] == 1, 0.3, 0.0, 1)
        verdict = settled(BayesianSearch(over, minutes=cost), host)
        assert verdict.culprit is not None
        before = [None, *(t.config for t in host.trials)]
        spent[name] = sum(minutes(t.config, b) for t, b in zip(host.trials, before))
    assert spent["aware"] < spent["blind"]


def test_a_failure_of_another_kind_is_no_evidence() -> None:
    """f3 kills the server in its own way; the fault that is looked for is f1's."""
    over = two_level(4)
    host = SimulatedHost(
        over,
        lambda v: v["f1"] == 1 or v["f3"] == 1,
        signature=lambda v: "garbled" if v["f1"] == 1 else "died: CUDA error",
    )
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert "f1=1" in [h.name for h in (verdict.culprit, *verdict.inseparable)]
    others = [t.number for t in host.trials if t.signature.startswith("died")]
    assert [number for number, _ in verdict.other_failures] == others != []
    cited = {*verdict.sufficient, *verdict.necessary, *(verdict.cleared or {}).values()}
    assert not cited & set(others)


def test_a_constraint_that_keeps_hypotheses_inseparable_is_named() -> None:
    plain = two_level(3)
    over = Space(plain.factors, constraints=(Constraint("together", parse("f0 == f1")),))
    host = SimulatedHost(over, lambda v: v["f0"] == 1)
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert verdict.inseparable
    assert verdict.forbidden == {h.name: "together" for h in verdict.inseparable}


def test_lost_answers_are_asked_for_again() -> None:
    over = two_level(4)
    host = SimulatedHost(
        over, lambda v: v["f2"] == 1, disturb=lambda number, outcome: Outcome.INFRA if number in (1, 2, 5) else outcome
    )
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f2=1"
    answered = [t for t in host.trials if t.outcome is not Outcome.INFRA]
    assert {verdict.sufficient[0], verdict.necessary[0]} <= {t.number for t in answered}
    assert all(end in [t.config for t in answered] for end in (over.good, over.bad))


@pytest.mark.parametrize("wrong", [3, 4, 5, 6])
def test_one_wrong_trial_is_found_out(wrong: int) -> None:
    """Where one trial is a proof one of them lies: what contradicts is repeated, and the search goes on with chance."""
    over = two_level(5)
    flip = {Outcome.PASS: Outcome.FAIL, Outcome.FAIL: Outcome.PASS}
    host = SimulatedHost(
        over, lambda v: v["f1"] == 1, disturb=lambda number, outcome: flip[outcome] if number == wrong else outcome
    )
    verdict = settle(host, BayesianSearch(over, deterministic=True))
    assert verdict.culprit is None or verdict.culprit.name == "f1=1"
