"""What a run will take, before it is begun: from its own earlier trials, from the plan's costs, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.bisect import plan as plans
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.forecast import QUEUED, Cluster, Forecast, first_trials, forecast, queued, shared
from diag.bisect.plan import Plan
from diag.bisect.space import Factor, Space
from diag.bisect.trial import Outcome, Trial
from diag.journal import Journal

FACTORS = "factors:\n" + "".join(f"  {name}: {{good: 0, bad: 1}}\n" for name in "abcd")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return planned(tmp_path, FACTORS)


def planned(folder: Path, text: str) -> Plan:
    path = folder / "mine.yaml"
    path.write_text(text)
    return plans.load(str(path), "./try.sh")


def ahead(plan: Plan, root: Path, *hosts: str) -> Forecast:
    return forecast(BayesianSearch(plan.space, deterministic=True), plan, hosts, root)


def ran(
    root: Path,
    plan: Plan,
    seconds: Sequence[float],
    host: str = "",
    outcome: Outcome = Outcome.PASS,
    queue_s: float | None = None,
) -> None:
    with Journal.create(root) as journal:
        start = {"host": host or None, "hosts": [host] if host else [], "fills": {}}
        journal.write("start", plan=plan.text, trial=plan.trial, plan_name="mine", **start)
        for number, total in enumerate(seconds, 1):
            good = plan.space.good
            details = {} if queue_s is None else {QUEUED: queue_s}
            trial = Trial(number, "", good, good, outcome, total_s=total, host=host, details=details)
            journal.write("trial", **trial.to_json())


def test_first_come_both_ends_and_then_what_tells_most_apart(plan: Plan) -> None:
    steps = first_trials(BayesianSearch(plan.space, deterministic=True), plan.space)
    assert [step.config for step in steps[:2]] == [plan.space.good, plan.space.bad]
    assert steps[2].config not in (plan.space.good, plan.space.bad)
    assert all(step.purpose for step in steps)


def test_without_anything_to_go_by_the_time_is_not_known(plan: Plan, tmp_path: Path) -> None:
    told = ahead(plan, tmp_path / "runs")
    assert told.minutes is None
    assert "start_minutes" in told.minutes_from
    assert told.trials >= 3


def test_the_plans_costs(tmp_path: Path) -> None:
    plan = planned(tmp_path, f"start_minutes: 10\nrequest_minutes: 2\n{FACTORS}")
    told = ahead(plan, tmp_path / "runs", "one")
    assert told.minutes == pytest.approx(12 * told.trials)
    assert told.minutes_from == "the plan's costs"


def test_earlier_trials_of_this_plan_are_better_than_its_word(tmp_path: Path) -> None:
    plan, root = planned(tmp_path, f"start_minutes: 10\n{FACTORS}"), tmp_path / "runs"
    ran(root, plan, [60, 120])
    ran(root, replace(plan, text="another"), [6000])
    ran(root, replace(plan, trial="./another.sh"), [6000])
    ran(root, plan, [6000], outcome=Outcome.INFRA)
    told = ahead(plan, root)
    assert told.minutes == pytest.approx(1.5 * told.trials)
    assert told.minutes_from == "2 earlier trials of this plan"


def test_of_the_hosts_that_are_asked_for_and_shared_among_them(plan: Plan, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    ran(root, plan, [60], "one")
    ran(root, plan, [6000], "three")
    alone, both = ahead(plan, root, "one"), ahead(plan, root, "one", "two")
    assert alone.minutes == pytest.approx(alone.trials)
    assert both.trials > alone.trials, "each further host has a control"
    assert both.rounds < alone.rounds == alone.trials
    assert both.minutes == pytest.approx(both.rounds)


def test_a_journal_that_cannot_be_read_is_passed_over(plan: Plan, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    ran(root, plan, [60])
    (root / "broken").mkdir()
    (root / "broken" / "journal.jsonl").write_text("nonsense\n")
    assert ahead(plan, root).minutes is not None


def in_cluster(plan: Plan, root: Path, on: Cluster) -> Forecast:
    return forecast(BayesianSearch(plan.space, deterministic=True), plan, (), root, on=on)


def test_a_cluster_has_jobs_that_wait_and_gpus_that_count(tmp_path: Path) -> None:
    plan = planned(tmp_path, f"start_minutes: 10\nrequest_minutes: 2\n{FACTORS}")
    told = in_cluster(plan, tmp_path / "runs", Cluster(slots=4, gpus=8, queue_minutes=30))
    assert told.minutes == pytest.approx((12 + 30) * told.rounds)
    assert told.gpu_hours == pytest.approx(12 * told.trials * 8 / 60), "what waits holds no GPU"
    assert told.jobs == told.trials < ahead(plan, tmp_path / "runs", *"abcd").trials, "its nodes have no controls"
    assert told.minutes_from == "the plan's costs, each job waits 30 min in the queue"


def test_the_queue_is_known_from_earlier_trials_or_not_at_all(plan: Plan, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    ran(root, plan, [60], "node1")
    assert "which nobody knows" in in_cluster(plan, root, Cluster(2)).minutes_from
    ran(root, plan, [60], "node2", queue_s=600)
    told = in_cluster(plan, root, Cluster(2))
    assert told.minutes == pytest.approx(11 * told.rounds)
    assert "each job waits 10.0 min in the queue, as 1 did before" in told.minutes_from


@pytest.mark.parametrize("alone", [2, 3, 11, 40, 200])
def test_more_slots_never_take_more_rounds_nor_fewer_trials(alone: int) -> None:
    told = [shared(alone, slots) for slots in (1, 2, 4, 8, 64, 512)]
    assert told[0] == (alone, alone)
    assert [rounds for _, rounds in told] == sorted((rounds for _, rounds in told), reverse=True)
    assert [trials for trials, _ in told] == sorted(trials for trials, _ in told)
    assert all(rounds >= min(alone, 3) for _, rounds in told)


def test_a_new_server_waits_in_the_queue_and_another_request_does_not() -> None:
    levels = (0, 1)
    space = Space((Factor("a", "--a", "flag", 0, 1, levels), Factor("r", "r", "flag", 0, 1, levels, apply="request")))
    minutes = queued(space, 30)
    asked, started = {**space.good, "r": 1}, {**space.good, "a": 1}
    assert minutes(asked, space.good) == space.minutes(asked, space.good)
    assert minutes(started, space.good) == space.minutes(started, space.good) + 30
    assert minutes(space.good, None) == space.minutes(space.good, None) + 30
