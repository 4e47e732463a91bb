"""The shell around the search: asks it for the next configuration, has a bench try it, writes down, goes on.

A bench is whatever can try a configuration: `bench.ServerBench` starts a server for it, `command.CommandBench` runs
any command. Nothing here knows which.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from diag.bisect.decision import Next, Search, Verdict
from diag.bisect.journal import Journal
from diag.bisect.trial import Trial


class Listener(Protocol):
    """Told what happens while it happens; shows it to whoever waits."""

    def trial_starts(self, number: int, expected: int, step: Next) -> None: ...

    def waits_for(self, what: str) -> None: ...

    def trial_done(self, trial: Trial) -> None: ...


class Bench(Protocol):
    """Tries one configuration and says what was seen. What it started is gone when it returns, or raises."""

    def trial(self, number: int, step: Next) -> Trial: ...


@dataclass(frozen=True)
class Result:
    run_id: str
    verdict: Verdict
    trials: tuple[Trial, ...]
    elapsed_s: float
    journal: str


def run(
    search: Search,
    bench: Bench,
    journal: Journal,
    listener: Listener,
    *,
    start: Mapping[str, Any],
    done: Sequence[Trial] = (),
) -> Result:
    """Run to a verdict. Whatever ends it early, nothing that a bench started stays behind.

    start: what the journal's first line says besides the run's id: host, plan, rules.
    done: trials of an earlier session of this run, which are not tried again.
    """
    began = time.monotonic()
    trials = list(done)
    journal.write("resumed" if trials else "start", run_id=journal.run_id, trials=len(trials), **start)
    try:
        while isinstance(step := search.next(trials), Next):
            number = len(trials) + 1
            listener.trial_starts(number, max(number, search.expected_trials(trials)), step)
            trial = bench.trial(number, step)
            trials.append(trial)
            journal.write("trial", **trial.to_json())
            listener.trial_done(trial)
    except KeyboardInterrupt:
        journal.write("interrupted", trials=len(trials))
        raise
    result = Result(journal.run_id, step, tuple(trials), time.monotonic() - began, str(journal.path))
    journal.write("verdict", verdict=step.kind, culprit=step.culprit.name if step.culprit is not None else None)
    return result


def spoiled(result: Result, why: str) -> Result:
    """The same trials without a conclusion: what they were run on did not stay what it was."""
    rejected, alive = result.verdict.rejected, result.verdict.alive
    return replace(result, verdict=Verdict("unexplained", why, rejected=rejected, alive=alive))
