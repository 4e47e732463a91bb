"""The search over an axis, on places that are not there: random graphs with a hidden first bad place."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.bisect.decision import Next, Verdict
from diag.bisect.engine import stopping
from diag.bisect.over.axis import Axis, Place, row
from diag.bisect.over.search import FirstBadSearch
from diag.bisect.trial import Outcome, Trial

Fails = Callable[[int], bool]


def trial_of(axis: Axis, number: int, step: Next, outcome: Outcome, signature: str = "") -> Trial:
    return Trial(number, step.purpose, step.config, dict(step.config), outcome, signature=signature)


def settle(
    search: FirstBadSearch, fails: Fails, dead: Iterable[int] = (), limit: int = 400
) -> tuple[Verdict, list[Trial]]:
    axis, trials, skipped = search.axis, [], set(dead)
    while isinstance(step := search.next(trials), Next):
        assert len(trials) < limit, "no verdict"
        at = axis.index[str(step.config[axis.name])]
        outcome = Outcome.SKIP if at in skipped else Outcome.FAIL if fails(at) else Outcome.PASS
        trials.append(trial_of(axis, len(trials) + 1, step, outcome))
    return step, trials


@st.composite
def graphs(draw: st.DrawFn, most: int = 40) -> Axis:
    """The good end, then commits with one to three parents each; the last one contains all of them."""
    count = draw(st.integers(1, most))
    parents: list[tuple[int, ...]] = [()]
    for at in range(1, count + 1):
        before = st.integers(max(0, at - 6), at - 1)
        parents.append(tuple(dict.fromkeys(draw(st.lists(before, min_size=1, max_size=3)))))
    contained = {parent for above in parents for parent in above}
    tips = tuple(at for at in range(1, count + 1) if at not in contained)
    if len(tips) > 1:
        parents.append(tips)
    return Axis("commit", tuple(Place(f"c{at}", above) for at, above in enumerate(parents)))


@given(axis=graphs(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_first_bad_place_of_any_graph_is_named(axis: Axis, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, axis.bad))
    verdict, trials = settle(FirstBadSearch(axis), lambda at: bool(axis.contains[at, first_bad]))
    assert verdict.kind == "culprit"
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == f"c{first_bad}"
    assert verdict.confidence == pytest.approx(1)
    tried = [t.config["commit"] for t in trials]
    assert len(tried) == len(set(tried))
    # Confirmed: it failed itself, and each of its parents passed.
    failed = {t.config["commit"] for t in trials if t.outcome is Outcome.FAIL}
    passed = {t.config["commit"] for t in trials if t.outcome is Outcome.PASS}
    assert f"c{first_bad}" in failed
    assert {axis.places[p].id for p in axis.places[first_bad].parents} <= passed


@given(axis=graphs(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_does_not_start_is_never_guessed(axis: Axis, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, axis.bad))
    dead = data.draw(st.sets(st.integers(1, max(1, axis.bad - 1)))) - {axis.bad}
    verdict, _ = settle(FirstBadSearch(axis, max_trials=200), lambda at: bool(axis.contains[at, first_bad]), dead)
    if verdict.kind == "culprit":
        assert verdict.culprit is not None
        assert verdict.culprit.members[0].bad == f"c{first_bad}"
    else:
        assert verdict.kind == "narrowed"
        assert f"c{first_bad}" in {h.members[0].bad for h, _ in verdict.alive}
        assert len(verdict.alive) > 1


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100, 1000])
def test_a_row_takes_the_logarithm(count: int) -> None:
    axis = row("version", [f"v{at}" for at in range(count + 1)])
    for first_bad in {1, count, (count + 1) // 2}:
        verdict, trials = settle(FirstBadSearch(axis), lambda at, first_bad=first_bad: at >= first_bad)
        assert verdict.culprit is not None
        assert verdict.culprit.members[0].bad == f"v{first_bad}"
        assert len(trials) <= 2 + math.ceil(math.log2(count)) + 1


def test_the_predicate_of_a_version() -> None:
    axis = row("version", ["0.5.9", "0.5.10", "0.5.11", "0.5.12"])
    verdict, _ = settle(FirstBadSearch(axis), lambda at: at >= 2)
    assert verdict.culprit is not None
    assert verdict.culprit.predicate == "version >= 0.5.11"  # type: ignore[attr-defined]
    assert verdict.culprit.name == "version 0.5.11"
    assert verdict.culprit.active({"version": "0.5.12"}) is True
    assert verdict.culprit.active({"version": "0.5.10"}) is False


def merged() -> Axis:
    """0 - 1 - 2 - M - 7 with 1 - 3 - 4 - 5 - M: the mainline is 0 1 2 M 7."""
    parents = [(), (0,), (1,), (1,), (3,), (4,), (2, 5), (6,)]
    return Axis("commit", tuple(Place(f"c{at}", above) for at, above in enumerate(parents)))


def test_the_mainline_first_then_inside_the_merge() -> None:
    axis = merged()
    assert [at for at in range(8) if axis.mainline[at]] == [0, 1, 2, 6, 7]
    verdict, trials = settle(FirstBadSearch(axis), lambda at: bool(axis.contains[at, 4]))
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == "c4"
    order = [str(t.config["commit"]) for t in trials]
    inside = [order.index(c) for c in ("c3", "c4", "c5") if c in order]
    assert min(inside) > max(order.index(c) for c in order if c in ("c2", "c6"))


def test_a_merge_itself_may_be_the_first_bad() -> None:
    axis = merged()
    verdict, _ = settle(FirstBadSearch(axis), lambda at: at >= 6)
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == "c6"
    assert "all its parents are clean" in verdict.why


def test_equal_builds_are_one_trial() -> None:
    builds = ["a", "a", "b", "b", "b", "c", "c", "d"]
    axis = Axis("commit", tuple(Place(f"c{at}", (at - 1,) if at else (), b) for at, b in enumerate(builds)))
    for first_bad in (2, 5, 7):
        verdict, trials = settle(FirstBadSearch(axis), lambda at, first_bad=first_bad: at >= first_bad)
        assert verdict.culprit is not None
        assert verdict.culprit.members[0].bad == f"c{first_bad}"
        tried = [builds[axis.index[str(t.config["commit"])]] for t in trials]
        assert len(tried) == len(set(tried))


def test_a_culprit_that_is_one_build_with_its_parent_is_distrusted() -> None:
    """The user says that only some paths matter, and the fault came in by another: the parent itself fails."""
    builds = ["a", "b", "b", "c", "d"]
    places = tuple(Place(f"c{at}", (at - 1,) if at else (), b) for at, b in enumerate(builds))
    verdict, _ = settle(FirstBadSearch(Axis("commit", places, declared=True)), lambda at: at >= 2)
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == "c2"
    assert "Distrust" in verdict.why


def test_a_revert_that_broke_again_is_an_answer_all_the_same() -> None:
    """a b a c: the third is the good build again; the fault came twice, and the last time is found."""
    builds = ["a", "b", "a", "c"]
    axis = Axis("commit", tuple(Place(f"c{at}", (at - 1,) if at else (), b) for at, b in enumerate(builds)))
    verdict, trials = settle(FirstBadSearch(axis), lambda at: builds[at] != "a")
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad in ("c1", "c3")
    assert len(trials) <= 4


def test_ends_that_are_not_what_they_should_be() -> None:
    axis = row("version", ["1", "2", "3"])
    assert settle(FirstBadSearch(axis), lambda at: True)[0].kind == "environmental"
    assert settle(FirstBadSearch(axis), lambda at: False)[0].kind == "not_reproduced"
    assert len(settle(FirstBadSearch(axis, flaky=True), lambda at: False)[1]) == 7
    assert settle(FirstBadSearch(axis), lambda at: at > 0, dead={0})[0].kind == "environmental"
    assert settle(FirstBadSearch(axis), lambda at: at > 0, dead={2})[0].kind == "not_reproduced"


def test_a_merge_base_is_tried_before_it_is_believed() -> None:
    """good and base, then two commits that only contain the base."""
    axis = Axis("commit", (Place("good"), Place("base"), Place("c1", (1,)), Place("c2", (2,))), bases=2)
    verdict, trials = settle(FirstBadSearch(axis), lambda at: at == 3)
    assert [t.config["commit"] for t in trials][:3] == ["good", "c2", "base"]
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == "c2"
    verdict, trials = settle(FirstBadSearch(axis), lambda at: at in (1, 2, 3))
    assert verdict.kind == "environmental"
    assert "mended on the way to the good end" in verdict.why
    assert len(trials) == 3


def test_a_contradiction_is_met_with_chance_and_said() -> None:
    """Fails from 10 on, but one run of 12 in the middle passes."""
    axis = row("version", [str(at) for at in range(32)])
    lucky = {12}

    def fails(at: int) -> bool:
        if at in lucky:
            lucky.discard(at)
            return False
        return at >= 10

    search = FirstBadSearch(axis, max_trials=200)
    trials: list[Trial] = []
    # An earlier trial says that 12 is clean: the search must get away from believing it.
    for number, at in enumerate((0, 31, 12), 1):
        step = Next(axis.config(at), "")
        trials.append(trial_of(axis, number, step, Outcome.FAIL if fails(at) else Outcome.PASS))
    trials.append(trial_of(axis, 4, Next(axis.config(11), ""), Outcome.FAIL))
    while isinstance(step := search.next(trials), Next):
        at = axis.index[str(step.config["version"])]
        trials.append(trial_of(axis, len(trials) + 1, step, Outcome.FAIL if fails(at) else Outcome.PASS))
    assert step.culprit is not None
    assert step.culprit.members[0].bad == "10"
    assert "contradict" in step.why
    assert step.rates is not None


@pytest.mark.parametrize("seed", range(6))
def test_a_flaky_fault_is_found_with_its_rates(seed: int) -> None:
    chance = random.Random(seed)
    axis = row("version", [str(at) for at in range(65)])
    first_bad = chance.randrange(1, 65)
    verdict, trials = settle(
        FirstBadSearch(axis, flaky=True, seed=seed), lambda at: at >= first_bad and chance.random() < 0.7
    )
    assert verdict.culprit is not None
    assert verdict.culprit.members[0].bad == str(first_bad)
    assert verdict.confidence >= stopping.STOP
    assert len(trials) < 70
    right_before = [t for t in trials if t.config["version"] == str(first_bad - 1)]
    assert len(right_before) >= 2


def test_another_failure_hides_the_one_that_is_looked_for() -> None:
    axis = row("version", [str(at) for at in range(9)])
    search, trials = FirstBadSearch(axis), []
    while isinstance(step := search.next(trials), Next):
        at = axis.index[str(step.config["version"])]
        outcome = Outcome.FAIL if at >= 3 else Outcome.PASS
        signature = "" if outcome is Outcome.PASS else "answers HTTP 500" if at in (3, 4) else "garbled"
        trials.append(trial_of(axis, len(trials) + 1, step, outcome, signature))
    assert step.kind == "narrowed"
    assert {h.members[0].bad for h, _ in step.alive} == {"3", "4", "5"}


@pytest.mark.parametrize("flaky", [False, True])
def test_several_hosts_need_fewer_rounds(flaky: bool) -> None:
    axis = row("version", [str(at) for at in range(128)])
    search = FirstBadSearch(axis, flaky=flaky)
    trials: list[Trial] = []
    rounds = 0
    while not isinstance(steps := search.next_batch(trials, (), 4), Verdict):
        assert 1 <= len(steps) <= 4
        rounds += 1
        for step in steps:
            at = axis.index[str(step.config["version"])]
            trials.append(trial_of(axis, len(trials) + 1, step, Outcome.FAIL if at >= 77 else Outcome.PASS))
    assert steps.culprit is not None
    assert steps.culprit.members[0].bad == "77"
    assert rounds <= (5 if not flaky else 9)


@given(axis=graphs(), data=st.data(), hosts=st.integers(1, 4), flaky=st.booleans())
@settings(max_examples=40, deadline=None)
def test_hosts_that_end_in_any_order_come_to_the_same(axis: Axis, data: st.DataObject, hosts: int, flaky: bool) -> None:
    first_bad = data.draw(st.integers(1, axis.bad))
    chance = random.Random(data.draw(st.integers(0, 1 << 16)))
    search, trials, pending = FirstBadSearch(axis, flaky=flaky), [], []
    while not isinstance(
        steps := search.next_batch(trials, [s.config for s in pending], hosts - len(pending)), Verdict
    ):
        assert len(steps) <= hosts - len(pending)
        pending += steps
        assert pending, "it neither proposes anything nor decides"
        step = pending.pop(chance.randrange(len(pending)))
        failed = axis.contains[axis.index[str(step.config["commit"])], first_bad]
        trials.append(trial_of(axis, len(trials) + 1, step, Outcome.FAIL if failed else Outcome.PASS))
        assert len(trials) < 200
    assert pending == []
    assert steps.culprit is not None
    assert steps.culprit.members[0].bad == f"c{first_bad}"
    assert search.standing(trials)[0][0] == steps.culprit
    assert search.standing([]) == ()


def test_what_is_pending_is_not_tried_again_and_no_verdict_comes_before_it() -> None:
    axis = row("version", [str(at) for at in range(16)])
    search = FirstBadSearch(axis)
    first = search.next_batch([], (), 1)
    assert not isinstance(first, Verdict)
    second = search.next_batch([], [first[0].config], 1)
    assert not isinstance(second, Verdict)
    assert second[0].config == {"version": "15"}
    trials = [trial_of(axis, 1, first[0], Outcome.FAIL)]
    assert search.next_batch(trials, [second[0].config], 1) == []


def test_the_budget_ends_it_with_what_is_left() -> None:
    axis = row("version", [str(at) for at in range(64)])
    verdict, trials = settle(FirstBadSearch(axis, max_trials=4), lambda at: at >= 40)
    assert verdict.kind == "narrowed"
    assert len(trials) == 4
    assert "40" in {h.members[0].bad for h, _ in verdict.alive}
    assert len(verdict.alive) < 32


def test_what_comes_out_does_not_depend_on_where_it_was_cut_off() -> None:
    axis = row("version", [str(at) for at in range(40)])
    whole, trials = settle(FirstBadSearch(axis), lambda at: at >= 23)
    for cut in range(len(trials)):
        step = FirstBadSearch(axis).next(trials[:cut])
        assert isinstance(step, Next)
        assert step.config == trials[cut].config
    assert whole.culprit is not None


def test_expected_trials_are_near_what_it_takes() -> None:
    axis = row("version", [str(at) for at in range(100)])
    search = FirstBadSearch(axis)
    _, trials = settle(search, lambda at: at >= 23)
    assert abs(search.expected_trials([]) - len(trials)) <= 2
    assert search.expected_trials(trials) == len(trials)


@pytest.mark.parametrize("places", [(), (Place("a"),), (Place("a"), Place("b", (1,)))])
def test_what_is_no_axis_is_refused(places: tuple[Place, ...]) -> None:
    with pytest.raises(ValueError, match=r"end|parents"):
        Axis("commit", places)
