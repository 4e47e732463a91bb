"""What a run will probably take, before it is begun: its first trials, how many in all, and how long.

On several slots a run is a chain of rounds: both ends come first, one after the other, and what then is left to find
out is shared, though what is chosen before its neighbours' results are known tells a little less (SHARED, MORE: as
benchmarks/scale.py measures it). In a cluster each trial is a job, which waits in the queue before it starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.bisect import resume
from diag.bisect.decision import Next, Search
from diag.bisect.plan import Plan
from diag.bisect.space import Config, Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import DiagError
from diag.records.probes import SUFFIX

RUNS_READ = 20
SHARED = 0.95
"""N slots do as much in a round as N to this power trials one after the other."""
MORE = 0.15
"""Share of further trials where they are chosen together."""
ENDS = 2
LEAST_ROUNDS = 3
QUEUED = "queue_s"
"""Where a trial's details say how many seconds it waited in a queue; `total_s` is without them."""


@dataclass(frozen=True)
class Cluster:
    """Where each trial is a job. slots: jobs at once; gpus: of one trial; queue_minutes: what a job waits before it
    starts, None: as in earlier trials of this plan."""

    slots: int
    gpus: int = 1
    queue_minutes: float | None = None


@dataclass(frozen=True)
class Forecast:
    """first: what would be tried if the good end passes and the failing one fails. trials: in all, controls of further
    hosts included. minutes: from begin to end, None where nobody knows; minutes_from: where they come from, in words.
    rounds: trials of the longest chain, each of which waits for the one before. jobs, gpu_hours: of a cluster."""

    first: tuple[Next, ...]
    trials: int
    minutes: float | None
    minutes_from: str
    rounds: int
    jobs: int | None = None
    gpu_hours: float | None = None


def forecast(
    search: Search, plan: Plan, hosts: Sequence[str], root: Path | None = None, *, on: Cluster | None = None
) -> Forecast:
    """root: where the runs are, if not in the state folder. on: a cluster, whose nodes nobody names beforehand;
    without, each of `hosts` is a slot."""
    alone, slots = search.expected_trials(()), on.slots if on is not None else max(1, len(hosts))
    trials, rounds = shared(alone, slots)
    each, source = _minutes_a_trial(plan, hosts, root)
    first = first_trials(search, plan.space)
    if on is None:
        minutes = None if each is None else each * rounds
        return Forecast(first, trials, minutes, source, rounds)
    waits, waits_from = _queue_minutes(plan, on, hosts, root)
    jobs = trials - (slots - 1)  # nodes that nobody chose have no control
    return Forecast(
        first,
        jobs,
        None if each is None else (each + waits) * rounds,
        f"{source}, {waits_from}",
        rounds,
        jobs=jobs,
        gpu_hours=None if each is None else each * jobs * on.gpus / 60,
    )


def shared(alone: int, slots: int) -> tuple[int, int]:
    """(trials in all, rounds) of what takes `alone` trials one after the other. Each further slot has a control."""
    if slots == 1 or alone <= ENDS:
        return alone + slots - 1, alone
    trials = alone + math.ceil(MORE * alone) + slots - 1
    return trials, min(alone, max(LEAST_ROUNDS, ENDS + math.ceil((alone - ENDS) / slots**SHARED)))


def queued(space: Space, queue_minutes: float) -> Callable[[Config, Config | None], float]:
    """What a trial costs where a new server waits in a queue first: one that goes with the request does not."""

    def minutes(config: Config, running: Config | None) -> float:
        waits = queue_minutes if space.restarts(config, running) else 0.0
        return space.minutes(config, running) + waits

    return minutes


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
    spent = [trial.total_s for trial in _earlier(plan, hosts, root)]
    if spent:
        many = f"{len(spent)} earlier trial{'s' if len(spent) != 1 else ''}"
        return sum(spent) / len(spent) / 60, f"{many} of this plan"
    if plan.spec.start_minutes is not None or plan.spec.request_minutes is not None:
        return plan.space.minutes(plan.space.good, None), "the plan's costs"
    return None, "no earlier run of this plan, and it does not say what a start costs (start_minutes)"


def _queue_minutes(plan: Plan, on: Cluster, hosts: Sequence[str], root: Path | None) -> tuple[float, str]:
    """Told beats measured: who tells it looks at the queue as it is today."""
    if on.queue_minutes is not None:
        return on.queue_minutes, f"each job waits {on.queue_minutes:g} min in the queue"
    waited = [float(trial.details[QUEUED]) for trial in _earlier(plan, hosts, root) if QUEUED in trial.details]
    if not waited:
        return 0.0, "without the queue's wait, which nobody knows"
    mean = sum(waited) / len(waited) / 60
    return mean, f"each job waits {mean:.1f} min in the queue, as {len(waited)} did before"


def _earlier(plan: Plan, hosts: Sequence[str], root: Path | None) -> list[Trial]:
    """Trials of this plan on one of these hosts, newest run first."""
    found = []
    folders = [one for one in resume.list_folders(root) if not one.name.endswith(SUFFIX)]  # probes are none
    for folder in folders[::-1][:RUNS_READ]:
        try:
            run = resume.load(folder.name, root)
        except DiagError:
            continue
        if run.start.get("plan") == plan.text and run.start.get("trial") == plan.trial:
            counted = (t for t in run.trials if t.outcome is not Outcome.INFRA and t.total_s > 0)
            found += [t for t in counted if not hosts or t.host in ("", *hosts)]
    return found
