"""The search against simulated hosts: whatever is hidden in the space is found; what is not is not invented."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_host import SimulatedHost, agrees, factor, make_search, settle, space, truth, two_level

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import BothEnds, Next, Search, Verdict
from diag.bisect.hypotheses import Hypothesis, enumerate_all
from diag.bisect.space import Space, differences
from diag.bisect.trial import Outcome

RULES = (
    "f0 + 1 != 1",
    "f0 == f1",
    "f0 != f1",
    "f0 + f1 >= 2",
    "f0 + f1 + f2 == 3",
    "f0 * 2 + 1 > f1",
    "f1 == 1 and not f0 == 0",
    "f2 > 0 or f3 > 0",
)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """1 to 5 factors, at most one of them with a third level or without suspicion, and perhaps a derived rule."""
    count = draw(st.integers(1, 5))
    odd = draw(st.sampled_from(["none", "third level", "not suspect"]))
    factors = []
    for i in range(count):
        last = i == count - 1 and count > 1
        if last and odd == "third level":
            factors.append(factor(f"f{i}", 0, 1, 2))
        elif last and odd == "not suspect":
            factors.append(factor(f"f{i}", 0, 0, 1))
        else:
            factors.append(factor(f"f{i}"))
    usable = [rule for rule in RULES if all(f"f{i}" not in rule for i in range(count, 5))]
    rule = draw(st.none() | st.sampled_from(usable))
    return space(*factors, **({"rule": rule} if rule is not None else {}))


def check_named(verdict: Verdict, hidden: Hypothesis, host: SimulatedHost) -> None:
    """What is hidden is named, alone or beside others that no configuration that starts tells from it."""
    assert verdict.culprit is not None
    assert hidden in (verdict.culprit, *verdict.inseparable)
    assert all(agrees(verdict.culprit, other, host) for other in verdict.inseparable)


def check_confirmed(verdict: Verdict, host: SimulatedHost) -> None:
    """Everything that naming it claims was tried, wherever a configuration that starts could show it."""
    leader = verdict.culprit
    assert leader is not None
    over, by_number = host.space, {t.number: t for t in host.trials}
    together, each = [set(leader.factors)], [{name} for name in leader.factors]
    claims = [(over.good, True, names, verdict.sufficient) for names in (each if leader.kind == "either" else together)]
    claims += [
        (over.bad, False, names, verdict.necessary)
        for names in (each if leader.kind in ("pair", "triple") else together)
    ]
    for base, active, names, numbers in claims:
        possible = any(
            host.starts(config)
            and set(differences(config, base)) <= names
            and leader.active(over.effective(config, host.reports(config))) is active
            for config in over.configs()
        )
        shown = [n for n in numbers if set(differences(by_number[n].config, base)) <= names]
        assert bool(shown) is possible
    assert all(by_number[n].outcome is Outcome.FAIL for n in verdict.sufficient)
    assert all(by_number[n].outcome is Outcome.PASS for n in verdict.necessary)


def check_honest(verdict: Verdict, hidden: Hypothesis, host: SimulatedHost) -> None:
    over = host.space
    if hidden.active(over.effective(over.good, {})):
        assert verdict.kind == "environmental"
        assert len(host.trials) == 1
    elif not hidden.active(over.effective(over.bad, {})):
        assert verdict.kind == "not_reproduced"
        assert [t.config for t in host.trials] == [over.good, over.bad, over.bad]
    else:
        assert verdict.kind == "culprit"
        check_named(verdict, hidden, host)
        check_confirmed(verdict, host)
        seen = [tuple(t.config.items()) for t in host.trials]
        assert len(seen) == len(set(seen)), "a configuration was tried twice"
    for rejected in verdict.rejected:
        trial = host.trials[rejected.trial - 1]
        assert rejected.hypothesis.active(trial.effective) is (trial.outcome is not Outcome.FAIL)
    assert hidden not in [r.hypothesis for r in verdict.rejected]


@given(spaces(), st.data())
@settings(max_examples=120, deadline=None)
def test_whatever_is_hidden_in_the_space_is_named(over: Space, data: st.DataObject) -> None:
    hidden = data.draw(st.sampled_from([h for h, _ in enumerate_all(over)]), label="hidden")
    host = SimulatedHost(over, truth(hidden))
    check_honest(settle(host), hidden, host)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_hypothesis_of_a_plain_space(count: int) -> None:
    over = two_level(count)
    for hidden, _ in enumerate_all(over):
        host = SimulatedHost(over, truth(hidden))
        check_honest(settle(host), hidden, host)


@given(spaces(), st.data())
@settings(max_examples=120, deadline=None)
def test_what_does_not_start_is_never_evidence(over: Space, data: st.DataObject) -> None:
    """Configurations other than the ends may not start: nothing is concluded from that, and nobody wrongly accused."""
    middle = [tuple(c.items()) for c in over.configs() if c not in (over.good, over.bad)]
    broken = set(data.draw(st.lists(st.sampled_from(middle), max_size=len(middle)) if middle else st.just([])))
    hidden = data.draw(st.sampled_from([h for h, _ in enumerate_all(over)]), label="hidden")
    host = SimulatedHost(over, truth(hidden), starts=lambda config: tuple(config.items()) not in broken)
    verdict = settle(host)
    skipped = {t.number for t in host.trials if t.outcome is Outcome.SKIP}
    cited = {*verdict.sufficient, *verdict.necessary, *(verdict.cleared or {}).values()}
    assert not skipped & (cited | {r.trial for r in verdict.rejected})
    check_honest(verdict, hidden, host)


def test_a_good_configuration_that_fails_ends_it_at_once() -> None:
    host = SimulatedHost(two_level(3), lambda values: True)
    verdict = settle(host)
    assert (verdict.kind, verdict.culprit, len(host.trials)) == ("environmental", None, 1)


def test_a_failing_configuration_that_passes_is_tried_once_more_only() -> None:
    host = SimulatedHost(two_level(3), lambda values: False)
    verdict = settle(host)
    assert (verdict.kind, verdict.culprit, len(host.trials)) == ("not_reproduced", None, 3)


def test_a_failure_at_the_second_try_is_not_believed_by_a_search_for_constant_faults() -> None:
    over = two_level(3)
    host = SimulatedHost(over, lambda values: True, disturb=lambda n, o: Outcome.FAIL if n == 3 else Outcome.PASS)
    verdict = settle(host)
    assert (verdict.kind, verdict.culprit) == ("unexplained", None)
    assert "2 and 3" in verdict.why


def holding_out(over: Space) -> Search:
    """Half of all configurations agree with one factor there: it takes hold-outs, which only this search has."""
    return BayesianSearch(over, deterministic=True)


@pytest.mark.parametrize("innocents", [0, 2])
@pytest.mark.parametrize(
    ("count", "fault"),
    [
        pytest.param(3, lambda f0, f1, f2: f0 and (f1 or f2), id="a and (b or c)"),
        pytest.param(3, lambda f0, f1, f2: (f0 and f1) or f2, id="(a and b) or c"),
        pytest.param(3, lambda f0, f1, f2: f0 + f1 + f2 >= 2, id="two of three"),
        pytest.param(3, lambda f0, f1, f2: f0 or f1 or f2, id="any of three"),
        pytest.param(4, lambda f0, f1, f2, f3: f0 and f1 and f2 and f3, id="four together"),
    ],
)
def test_what_no_hypothesis_describes_is_unexplained(count: int, fault: Callable[..., object], innocents: int) -> None:
    over = two_level(count + innocents)
    host = SimulatedHost(over, lambda v: bool(fault(*(v[f"f{i}"] for i in range(count)))))
    verdict = settle(host)
    assert (verdict.kind, verdict.culprit) == ("unexplained", None)


@pytest.mark.parametrize("innocents", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("count", "fault"),
    [
        pytest.param(3, lambda f0, f1, f2: f0 != f1 or f2, id="(a xor b) or c"),
        pytest.param(3, lambda f0, f1, f2: (f0 + f1 + f2) % 2, id="a xor b xor c"),
    ],
)
def test_parity_is_unexplained_by_a_search_with_hold_outs(
    count: int, fault: Callable[..., object], innocents: int
) -> None:
    over = two_level(count + innocents)
    host = SimulatedHost(over, lambda v: bool(fault(*(v[f"f{i}"] for i in range(count)))))
    verdict = settle(host, holding_out(over))
    assert (verdict.kind, verdict.culprit) == ("unexplained", None)


def test_xor_of_two_does_not_show_between_the_ends() -> None:
    host = SimulatedHost(two_level(2), lambda v: v["f0"] != v["f1"])
    assert settle(host).kind == "not_reproduced"


def test_a_rule_that_no_trial_could_tell_is_not_accused() -> None:
    """A read-back that the server never gave is contradicted by nothing, and explains nothing either."""
    over = space(*(factor(f"f{i}") for i in range(3)), padding="padded_rows > 0")
    host = SimulatedHost(over, lambda v: v["f0"] + v["f1"] + v["f2"] >= 2)
    verdict = settle(host)
    assert (verdict.kind, verdict.culprit) == ("unexplained", None)


def test_a_rule_that_only_a_running_server_can_tell_is_listed_beside_the_factor_it_follows() -> None:
    over = space(factor("f0"), factor("f1"), padding="padded_rows > 0")
    host = SimulatedHost(over, lambda v: v["padded_rows"] > 0, reports=lambda c: {"padded_rows": 9 if c["f0"] else 0})
    verdict = settle(host)
    assert verdict.culprit is not None
    assert {h.name for h in (verdict.culprit, *verdict.inseparable)} == {"f0=1", "padded_rows > 0"}


def test_a_knob_that_is_connected_to_nothing_is_not_accused() -> None:
    """The server reports f1 as 0 whatever is asked for."""
    host = SimulatedHost(two_level(3), lambda v: v["f2"] == 1, reports=lambda c: {"f1": 0})
    verdict = settle(host)
    assert verdict.culprit is not None
    assert verdict.culprit.name == "f2=1"
    alive = {h.name for h, _ in verdict.alive}
    assert "f1=1" not in alive
    assert {h.name for h in verdict.inseparable} == alive - {"f2=1"}


def test_evidence_is_about_what_was_in_force_not_about_what_was_asked() -> None:
    """Asking for f0=1 gives 0 and the other way round: the fault is where 1 was really in force."""
    over = two_level(2)
    host = SimulatedHost(over, lambda v: v["f0"] == 1, reports=lambda c: {"f0": 1 - int(c["f0"])})
    assert settle(host).kind == "environmental"


@pytest.mark.parametrize("end", ["good", "bad"])
def test_an_end_that_never_gives_an_answer_does_not_go_on_for_ever(end: str) -> None:
    """Its server starts and dies while it is asked: skipped, again and again."""
    over = two_level(2)
    silent = over.good if end == "good" else over.bad
    host = SimulatedHost(over, lambda v: v["f0"] == 1, starts=lambda config: config != silent)
    verdict = settle(host, limit=5)
    assert verdict.culprit is None
    assert verdict.kind != "culprit"


def test_the_budget_is_kept_and_said() -> None:
    host = SimulatedHost(two_level(5), lambda v: v["f0"] == 1 and v["f3"] == 1)
    verdict = settle(host, make_search(host.space, max_trials=4))
    assert (verdict.kind, verdict.culprit, len(host.trials)) == ("narrowed", None, 4)
    assert "f0=1 and f3=1" in [h.name for h, _ in verdict.alive]


def test_a_budget_that_just_suffices_is_enough() -> None:
    unlimited = SimulatedHost(two_level(3), lambda v: v["f1"] == 1)
    assert settle(unlimited).kind == "culprit"
    host = SimulatedHost(two_level(3), lambda v: v["f1"] == 1)
    verdict = settle(host, make_search(host.space, max_trials=len(unlimited.trials)))
    assert verdict.kind == "culprit"


@pytest.mark.parametrize(("kind", "allowed"), [("single", 10), ("pair", 10)])
def test_few_trials_for_six_factors(kind: str, allowed: float) -> None:
    """The operating point as a mean: two for the ends, about log2 of the hypotheses, the confirmations,
    and a few hold-outs against rules over three factors."""
    over = two_level(6)
    spent = []
    for hidden, _ in enumerate_all(over):
        if hidden.kind == kind:
            host = SimulatedHost(over, truth(hidden))
            verdict = settle(host)
            assert verdict.culprit == hidden
            spent.append(len(host.trials))
    assert sum(spent) / len(spent) <= allowed


def test_the_answer_depends_on_nothing_but_the_trials() -> None:
    over = two_level(4)
    host = SimulatedHost(over, lambda v: v["f1"] == 1 and v["f2"] == 1)
    verdict = settle(host)
    for upto in range(len(host.trials)):
        step = make_search(over).next(host.trials[:upto])
        assert isinstance(step, Next)
        assert step.config == host.trials[upto].config
    assert make_search(over).next(host.trials) == verdict


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [
        (Outcome.PASS, Outcome.PASS, "clean"),
        (Outcome.PASS, Outcome.FAIL, "fails"),
        (Outcome.PASS, Outcome.SKIP, "unexplained"),
        (Outcome.FAIL, Outcome.FAIL, "environmental"),
        (Outcome.SKIP, Outcome.FAIL, "environmental"),
    ],
)
def test_only_asking_whether_it_still_fails(good: Outcome, bad: Outcome, kind: str) -> None:
    host = SimulatedHost(two_level(2), lambda v: False, disturb=lambda n, o: good if n == 1 else bad)
    verdict = settle(host, BothEnds(host.space), limit=2)
    assert (verdict.kind, verdict.culprit) == (kind, None)
    assert [t.config for t in host.trials] == [host.space.good, host.space.bad][: len(host.trials)]


def test_the_expected_number_of_trials_is_never_less_than_those_done() -> None:
    over = two_level(4)
    search = make_search(over)
    host = SimulatedHost(over, lambda v: v["f1"] == 1 and v["f2"] == 1)
    assert search.expected_trials([]) >= 3
    settle(host, search)
    for upto in range(len(host.trials) + 1):
        assert search.expected_trials(host.trials[:upto]) >= upto
