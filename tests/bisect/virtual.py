"""Nodes on a virtual clock behind the executor's five words: trials take their time, wait in a queue, are lost; nothing
runs. What plans and shells for them is the real thing (`diag.bisect.run`)."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from diag.bisect.decision import Next
from diag.bisect.space import Config, Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import LinkLost
from diag.journal import Journal


@dataclass(frozen=True)
class Conditions:
    """minutes: of a trial, start and questions. spread, nodes_spread: sigma of the logarithm of a trial's minutes, and
    of each node's own factor. queue_minutes: mean of what each trial waits before it starts. stragglers: share of
    trials that take `straggle` times as long. lost: share that end without an answer (node failed, preempted),
    somewhere in the middle."""

    minutes: float = 1.0
    spread: float = 0.0
    nodes_spread: float = 0.0
    queue_minutes: float = 0.0
    stragglers: float = 0.0
    straggle: float = 3.0
    lost: float = 0.0


EVEN = Conditions()
"""Every trial takes one minute and none is lost: minutes are rounds."""


@dataclass(frozen=True)
class _Job:
    step: Next
    number: int
    chain: int
    lost: bool
    host: str


@dataclass
class Nodes:
    """An `Executor`; with `places` one that chooses the node of each trial, as a queueing system does. fails: whether a
    trial of this configuration is seen to fail. now, busy: minutes on the clock, and of all nodes together at work.
    chain: trials of the longest chain so far, each chosen when the one before was known."""

    space: Space
    slots: tuple[str, ...]
    fails: Callable[[Config], bool]
    conditions: Conditions
    chance: random.Random
    now: float = 0.0
    busy: float = 0.0
    chain: int = 0
    lost: int = 0
    places: bool = False
    _ends: list[tuple[float, str]] = field(default_factory=list)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _starts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pace = {slot: math.exp(self.chance.gauss(0, self.conditions.nodes_spread)) for slot in self.slots}

    def adopted(self) -> Mapping[str, Next]:
        return {}

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None:
        now, chance = self.conditions, self.chance
        took = now.minutes * self._pace[slot] * math.exp(chance.gauss(0, now.spread))
        if chance.random() < now.stragglers:
            took *= now.straggle
        lost = chance.random() < now.lost
        if lost:
            took *= chance.random()
        self._starts[slot] = self.now + (chance.expovariate(1 / now.queue_minutes) if now.queue_minutes else 0.0)
        self._jobs[slot] = _Job(step, number, self.chain + 1, lost, host or slot)
        heapq.heappush(self._ends, (self._starts[slot] + took, slot))

    def poll(self) -> Sequence[str]:
        """What ends next, and all that ends at that same moment."""
        self.now = self._ends[0][0]
        over = []
        while self._ends and self._ends[0][0] == self.now:
            over.append(heapq.heappop(self._ends)[1])
        self.chain = max(self.chain, *(self._jobs[slot].chain for slot in over if not self._jobs[slot].lost), 0)
        return over

    def collect(self, slot: str) -> Trial:
        job = self._jobs.pop(slot)
        self.busy += self.now - self._starts.pop(slot)
        if job.lost:
            self.lost += 1
            raise LinkLost(f"{slot} is gone.", next="Again.")
        effective = self.space.effective(job.step.config, {})
        outcome = Outcome.FAIL if self.fails(effective) else Outcome.PASS
        return Trial(job.number, job.step.purpose, job.step.config, effective, outcome, host=job.host)

    def cancel(self) -> None:
        self.busy += sum(max(0.0, self.now - began) for began in self._starts.values())
        self._jobs.clear()
        self._starts.clear()
        self._ends.clear()

    def close(self) -> None: ...


class Unheard:
    """A listener that nobody listens to."""

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None: ...

    def waits_for(self, what: str) -> None: ...

    def trial_done(self, trial: Trial) -> None: ...

    def host_leaves(self, host: str, why: str) -> None: ...

    def outlook(self, leader: str, share: float, rest: int) -> None: ...


class _Unwritten:
    run_id, path = "virtual", Path("virtual")

    def write(self, kind: str, **entry: Any) -> None: ...


def unwritten() -> Journal:
    """A journal on no disk: a simulation has nothing to lose."""
    return cast(Journal, _Unwritten())
