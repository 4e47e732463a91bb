"""What a run will probably take, before it is begun: its first trials, how many in all, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.bisect import resume
from diag.bisect.decision import Next, Search
from diag.bisect.plan import Plan
from diag.bisect.space import Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import DiagError
from diag.records.probes import SUFFIX

RUNS_READ = 20


@dataclass(frozen=True)
class Forecast:
    """first: what would be tried if the good end passes and the failing one fails. minutes: None where nobody knows;
    minutes_from: where they come from, in words."""

    first: tuple[Next, ...]
    trials: int
    minutes: float | None
    minutes_from: str


def forecast(search: Search, plan: Plan, hosts: Sequence[str], root: Path | None = None) -> Forecast:
    """root: where the runs are, if not in the state folder."""
    trials = search.expected_trials(()) + max(0, len(hosts) - 1)  # a control for each further host
    each, source = _minutes_a_trial(plan, hosts, root)
    minutes = None if each is None else each * trials / max(1, len(hosts))
    return Forecast(first_trials(search, plan.space), trials, minutes, source)


def first_trials(search: Search, space: Space, count: int = 3) -> tuple[Next, ...]:
    """Every trial imagined to fail where the failing end is asked for, and to pass else."""
    steps: list[Next] = []
    trials: list[Trial] = []
    while len(steps) < count and isinstance(step := search.next(trials), Next):
        outcome = Outcome.FAIL if step.config == space.bad else Outcome.PASS
        effective = space.effective(step.config, {})
        steps.append(step)
        trials.append(Trial(len(steps), step.purpose, step.config, effective, outcome))
    return tuple(steps)


def _minutes_a_trial(plan: Plan, hosts: Sequence[str], root: Path | None) -> tuple[float | None, str]:
    """Measured beats told, told beats nothing."""
    spent = [seconds for run in _earlier(plan, hosts, root) for seconds in run]
    if spent:
        many = f"{len(spent)} earlier trial{'s' if len(spent) != 1 else ''}"
        return sum(spent) / len(spent) / 60, f"{many} of this plan"
    if plan.spec.start_minutes is not None or plan.spec.request_minutes is not None:
        return plan.space.minutes(plan.space.good, None), "the plan's costs"
    return None, "no earlier run of this plan, and it does not say what a start costs (start_minutes)"


def _earlier(plan: Plan, hosts: Sequence[str], root: Path | None) -> list[list[float]]:
    """Seconds of each trial of this plan on one of these hosts, run by run, newest first."""
    found = []
    folders = [one for one in resume.list_folders(root) if not one.name.endswith(SUFFIX)]  # probes are none
    for folder in folders[::-1][:RUNS_READ]:
        try:
            run = resume.load(folder.name, root)
        except DiagError:
            continue
        if run.start.get("plan") == plan.text and run.start.get("trial") == plan.trial:
            counted = (t for t in run.trials if t.outcome is not Outcome.INFRA and t.total_s > 0)
            found.append([t.total_s for t in counted if not hosts or t.host in ("", *hosts)])
    return found
