"""The shell around the search: asks it what to try next, has an executor try it, writes down, goes on.

What an executor does to try a configuration (start a server on one of several hosts, run any command) is not known
here; see executor.py. With several hosts trials come back in any order and are numbered and written down as they
come. What fails on our side (ours.py) is written down, too, and tried again; the search never sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from diag.bisect import crew, ours
from diag.bisect.decision import Leads, Next, Search, Verdict
from diag.bisect.executor import Executor
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial
from diag.errors import DiagError, Interrupted, JobFailed
from diag.journal import Journal

STANDING = 8
"""Explanations whose share is written down after each trial."""


class Listener(Protocol):
    """Told what happens while it happens; shows it to whoever waits. `waits_for` is called from any thread."""

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None: ...

    def waits_for(self, what: str) -> None: ...

    def trial_done(self, trial: Trial) -> None: ...

    def host_leaves(self, host: str, why: str) -> None: ...

    def outlook(self, leader: str, share: float, rest: int) -> None:
        """What is likeliest so far, how much of what is possible it is, and how many trials are to come."""
        ...


@dataclass(frozen=True)
class Result:
    """left_out: host -> why no trial of it counts, or no more were made there."""

    run_id: str
    verdict: Verdict
    trials: tuple[Trial, ...]
    elapsed_s: float
    journal: str
    hosts: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def run(
    search: Search,
    executor: Executor,
    journal: Journal,
    listener: Listener,
    *,
    good: Config,
    start: Mapping[str, Any],
    done: Sequence[Trial] = (),
    left_out: Mapping[str, str] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    ends_early: Callable[[Sequence[Trial]], Verdict | None] = lambda trials: None,
) -> Result:
    """Run to a verdict. Whatever ends it early, nothing that was started stays behind.

    good: the configuration that each of several hosts is tried with first.
    start: what the journal's first line says besides the run's id: host, plan, rules.
    done: trials of an earlier session of this run, which are not tried again.
    left_out: hosts that could not be reached to begin with, and why.
    facts: what each host says of itself, for the report.
    ends_early: asked after each trial; a verdict of its own ends the run.
    """
    began = time.monotonic()
    journal.write("resumed" if done else "start", run_id=journal.run_id, trials=len(done), **start)
    for host, document in (facts or {}).items():
        journal.write("facts", host=host, document=document)
    budget = ours.Budget(len(executor.slots))
    shift = _Shift(search, executor, journal, listener, good, list(done), ends_early, budget=budget)
    try:
        for host, why in (left_out or {}).items():
            shift.leave(host, why)
        shift.waiting.update(executor.adopted())
        verdict = shift.work()
        if shift.waiting:  # what comes too late to be of use
            executor.cancel()
        else:
            executor.close()
    except KeyboardInterrupt:
        _interrupted(executor, journal, len(shift.trials))
        raise
    except BaseException:
        executor.cancel()
        raise
    result = Result(
        journal.run_id,
        verdict,
        tuple(shift.trials),
        time.monotonic() - began,
        str(journal.path),
        shift.hosts,
        {**shift.out, **crew.quarantined(shift.trials, shift.hosts, good)},
    )
    culprit = verdict.culprit.name if verdict.culprit is not None else None
    journal.write("verdict", verdict=verdict.kind, culprit=culprit)
    return result


def _interrupted(executor: Executor, journal: Journal, trials: int) -> None:
    """Raises Interrupted where the person does not wait for the servers to be stopped."""
    try:
        executor.cancel()
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted twice: what runs on {', '.join(executor.slots)} was not waited for.",
            next=f"Their supervisors stop it within a minute. Go on: diag bisect --resume {journal.run_id}",
        ) from None
    finally:
        journal.write("interrupted", trials=trials)


@dataclass
class _Shift:
    """waiting: what each slot is at. out: slots that are given nothing more, and why. controlling: slots that try the
    good configuration on a host that is in doubt; untrusted: such hosts where that could not be done, and why."""

    search: Search
    executor: Executor
    journal: Journal
    listener: Listener
    good: Config
    trials: list[Trial]
    ends_early: Callable[[Sequence[Trial]], Verdict | None]
    waiting: dict[str, Next] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    budget: ours.Budget = field(default_factory=ours.Budget)
    quarantined: set[str] = field(default_factory=set)
    controlling: dict[str, str] = field(default_factory=dict)
    untrusted: dict[str, str] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        return self.executor.slots

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where trials are made: the slots, or where an executor has placed them so far."""
        if not self.executor.places:
            return self.slots
        return tuple(dict.fromkeys(t.host for t in self.trials if t.outcome is not Outcome.INFRA))

    @property
    def evidence(self) -> list[Trial]:
        return [t for t in crew.evidence(self.trials, self.hosts, self.good) if t.host not in self.untrusted]

    def work(self) -> Verdict:
        while True:
            verdict = self._assign()
            if verdict is not None:
                return verdict
            for host in self.executor.poll():
                self._take(host)
            self._look_ahead()

    # giving out

    def _assign(self) -> Verdict | None:
        """Give every free host something to do; a verdict when there is nothing more to find out."""
        early = self.ends_early(self.evidence)
        if early is not None:
            return early
        if self.executor.places:
            return self._anywhere()
        if len(self.hosts) == 1:
            return self._one()
        self._controls()
        sound = [host for host in crew.sound(self.trials, self.hosts, self.good) if host not in self.out]
        if not sound:
            if self.waiting:
                return None
            return self._nobody()
        return self._batch([host for host in sound if host not in self.waiting], sound)

    def _anywhere(self) -> Verdict | None:
        """To every free slot; what the executor finds out about the hosts comes with the trials."""
        usable = [slot for slot in self.slots if slot not in self.out]
        doubted = self._doubted()
        self._control(doubted, crew.DOUBTED_AFTER)
        free = [slot for slot in usable if slot not in self.waiting]
        verdict = self._batch(free, usable)
        if verdict is None or not doubted:
            return verdict
        self._control(doubted, 1)  # before anything is said that rests on them
        return None

    def _doubted(self) -> Mapping[str, int]:
        """Hosts that show nothing but failures, and have no control yet: how many."""
        return crew.doubted(self.evidence, self.good)

    def _control(self, doubted: Mapping[str, int], least: int) -> None:
        for host, failures in doubted.items():
            slot = next((s for s in self.slots if s not in self.out and s not in self.waiting), None)
            if slot is not None and failures >= least and host not in self.controlling.values():
                self.controlling[slot] = host
                self._submit(slot, Next(self.good, f"control of {host}: nothing has passed there yet"), host)

    def _batch(self, free: Sequence[str], sound: Sequence[str]) -> Verdict | None:
        """free: slots to give something to; sound: those whose trials under way will count."""
        pending = [step.config for slot, step in self.waiting.items() if slot in sound]
        steps = self.search.next_batch(self.evidence, pending, len(free))
        if isinstance(steps, Verdict):
            return steps
        for slot, step in zip(free, steps):
            self._submit(slot, step)
        if not self.waiting:
            raise ValueError("the search neither proposes anything nor decides")
        return None

    def _one(self) -> Verdict | None:
        if self.waiting:
            return None
        step = self.search.next(self.evidence)
        if isinstance(step, Verdict):
            return step
        self._submit(self.hosts[0], step)
        return None

    def _controls(self) -> None:
        tried = crew.controls(self.trials, self.hosts, self.good)
        for host in self.hosts:
            if host not in self.out and host not in self.waiting and host not in tried:
                self._submit(host, Next(self.good, f"control of {host}: the good configuration, for its texts there"))

    def _nobody(self) -> Verdict:
        """No host's good configuration passes: the search says what that means."""
        step = self.search.next(self.evidence)
        if isinstance(step, Verdict):
            return step
        return Verdict("environmental", "the good configuration is healthy on none of the hosts")

    def _submit(self, slot: str, step: Next, host: str = "") -> None:
        """host: the only one that it may be made on, where the executor would choose one."""
        number = len(self.trials) + len(self.waiting) + 1
        self.waiting[slot] = step
        expected = self.search.expected_trials(self.evidence)
        self.listener.trial_starts(number, max(number, expected), step, slot)
        self.executor.submit(slot, number, step, host)

    def _look_ahead(self) -> None:
        if not isinstance(self.search, Leads):
            return
        evidence = self.evidence
        standing = self.search.standing(evidence, STANDING)
        if standing:
            leader, share = standing[0]
            rest = max(0, self.search.expected_trials(evidence) - len(evidence))
            told = [[one.name, round(weight, 4)] for one, weight in standing]
            self.journal.write("outlook", after=len(self.trials), standing=told, rest=rest)
            self.listener.outlook(leader.name, share, rest)

    # taking in

    def _take(self, host: str) -> None:
        step = self.waiting.pop(host, None)
        if step is None:  # told twice, and taken
            return
        try:
            trial = self.executor.collect(host)
        except DiagError as error:
            self._give_up(self.controlling.pop(host, None), error)
            if not self._goes_on(host, step, error):
                raise
            return
        self.controlling.pop(host, None)
        self.budget.worked(host)
        self._record(trial if self.executor.places else replace(trial, host=host))

    def _give_up(self, host: str | None, error: DiagError) -> None:
        """On a host whose control could not be made: what failed there does not count."""
        if host is not None:
            self.untrusted[host] = f"its control could not be made: {error.what}"
            self.leave(host, self.untrusted[host])

    def _record(self, trial: Trial) -> None:
        trial = replace(trial, number=len(self.trials) + 1)
        self.trials.append(trial)
        self.journal.write("trial", **trial.to_json())
        self.listener.trial_done(trial)
        for host, why in crew.quarantined(self.trials, self.hosts, self.good).items():
            if host not in self.quarantined:
                self.quarantined.add(host)
                self.leave(host, f"its good configuration does not pass: {why}")

    def _goes_on(self, host: str, step: Next, error: DiagError) -> bool:
        """Whether the run can: the same again, or without this host. What is written down is no evidence."""
        again = False
        if ours.is_ours(error):
            again = self.budget.allows(host, error)
            self._record(_no_evidence(step, host, error))
        elif self.executor.places or not (len(self.hosts) > 1 and step.config == self.good):
            return False
        if not again:
            self.leave(host, error.what)
        return set(self.slots) - set(self.out) != set()

    def leave(self, host: str, why: str) -> None:
        self.out[host] = why
        if len(self.slots) > 1:
            self.journal.write("host", host=host, out=why)
            self.listener.host_leaves(host, why)


def _no_evidence(step: Next, host: str, error: DiagError) -> Trial:
    return Trial(
        number=0,
        purpose=step.purpose,
        config=step.config,
        effective=dict(step.config),
        outcome=Outcome.INFRA,
        reason=error.what,
        details={"log": error.details, **(error.told if isinstance(error, JobFailed) else {})},
        host=host,
        signature=ours.signature(error),
    )


def spoiled(result: Result, why: str) -> Result:
    """The same trials without a conclusion: what they were run on did not stay what it was."""
    rejected, alive = result.verdict.rejected, result.verdict.alive
    return replace(result, verdict=Verdict("unexplained", why, rejected=rejected, alive=alive))
