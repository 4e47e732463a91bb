"""Planning past the machine: the real search and the real shell on 1 to 512 simulated nodes. Tables beside targets.

    python benchmarks/scale.py [--nodes 1 2 4 ... 512] [--runs 4] [--seed 1] [--scenario NAME ...] [--factors 10]

What is simulated is the nodes alone (tests/bisect/virtual.py): a clock that jumps, trials that take their time, wait
in a queue, straggle and are lost. What plans is `BayesianSearch` with pending trials inside `RefinedSearch`, and what
gives out and takes in is `diag.bisect.run.run`, as they are shipped.

    round     trials of the longest chain, each of which was chosen when the one before was known
    wall      hours from begin to verdict; GPU-hours: of all trials, lost ones and those cancelled at the end included
    even      every trial takes as long as every other, none waits or is lost: wall time in trials is rounds

`fleet`: hosts that are ours alone, with a control on each. `queue`: a cluster, where each trial is a job that waits
half an hour in the mean before it starts, on a node that nobody chose, without a control.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads cost more than they give
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diag.bisect import run
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.expr import Value
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.refine import RefinedSearch
from diag.bisect.run import Result
from diag.bisect.space import Config, Factor, Space
from diag.bisect.trial import Outcome, Trial
from tests.bisect.virtual import EVEN, Conditions, Nodes, Unheard, unwritten

FLEET = Conditions(minutes=6, spread=0.15, nodes_spread=0.15, stragglers=0.03, lost=0.02)
QUEUE = Conditions(minutes=6, spread=0.15, nodes_spread=0.15, stragglers=0.03, lost=0.02, queue_minutes=30)
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PAYS = 0.9
"""Twice the nodes pay while they take at most so much of the wall time."""
MANY = 64
"""With more nodes than that a run costs more than it teaches: fewer of them."""
GPUS = 8


@dataclass(frozen=True)
class Scenario:
    kind: str
    flake: float
    alarms: float = 0.0

    @property
    def deterministic(self) -> bool | None:
        return None if self.flake else True


SCENARIOS: Mapping[str, Scenario] = {
    "single": Scenario("single", 0),
    "pair": Scenario("pair", 0),
    "triple": Scenario("triple", 0),
    "flaky-pair": Scenario("pair", 0.3, 0.002),
}


@dataclass
class Timed:
    """A search that notes what each plan of a batch took, in milliseconds of the processor: (pending, wanted, ms)."""

    inner: RefinedSearch
    steps: list[tuple[int, int, float]] = field(default_factory=list)

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        return self.inner.next(trials)

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        began = time.process_time()
        try:
            return self.inner.next_batch(trials, pending, hosts)
        finally:
            self.steps.append((len(pending), hosts, (time.process_time() - began) * 1000))

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        return self.inner.expected_trials(trials)

    def standing(self, trials: Sequence[Trial], most: int = 1) -> tuple[tuple[Hypothesis, float], ...]:
        return self.inner.standing(trials, most)


@dataclass(frozen=True)
class Ran:
    nodes: Nodes
    result: Result
    hidden: Hypothesis
    steps: Sequence[tuple[int, int, float]]

    @property
    def right(self) -> bool:
        verdict = self.result.verdict
        return verdict.culprit is not None and self.hidden in (verdict.culprit, *verdict.inseparable)

    @property
    def wrong(self) -> bool:
        return self.result.verdict.culprit is not None and not self.right


def two_level(count: int) -> Space:
    return Space(tuple(Factor(f"f{i}", f"--f{i}", "flag", 0, 1, (0, 1)) for i in range(count)))


def simulate(
    space: Space,
    scenario: Scenario,
    nodes: int,
    conditions: Conditions,
    seed: int,
    *,
    confirm: bool = True,
    ends_known: bool = False,
    quick: bool = False,
) -> Ran:
    """One bisection. quick: the search stops at .95, not at .985. confirm: False names the leader without trying its
    claims; ends_known: each node has had its
    control, and the failing end has failed, before it begins: the search alone."""
    chance = random.Random(seed)
    size = {"single": 1, "pair": 2, "triple": 3}[scenario.kind]
    which = sorted(chance.sample(range(len(space.factors)), size))
    hidden = Hypothesis(scenario.kind, tuple(space.factors[i] for i in which))  # type: ignore[arg-type]

    def fails(values: Mapping[str, Value]) -> bool:
        return chance.random() >= scenario.flake if hidden.active(values) else chance.random() < scenario.alarms

    how = {"deterministic": scenario.deterministic, "confirm": confirm, "quick": quick}
    inner = BayesianSearch(space, seed=seed, max_trials=400, **how)  # type: ignore[arg-type]
    search = Timed(RefinedSearch(inner, space, max_trials=400))
    slots = tuple(f"node{i}" for i in range(nodes))
    there = Nodes(space, slots, fails, conditions, chance, places=conditions.queue_minutes > 0)
    done = known(space, slots) if ends_known else []
    result = run.run(search, there, unwritten(), Unheard(), good=space.good, start={}, done=done)
    return Ran(there, result, hidden, search.steps)


def known(space: Space, slots: Sequence[str]) -> list[Trial]:
    """A control of each, and the failing end once."""
    ends = [(slot, space.good, Outcome.PASS) for slot in slots] + [(slots[0], space.bad, Outcome.FAIL)]
    return [Trial(i, "", config, config, outcome, host=slot) for i, (slot, config, outcome) in enumerate(ends, 1)]


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


@dataclass(frozen=True)
class Line:
    nodes: int
    rounds: float
    trials: float
    lost: float
    gpu_hours: float
    wall_h: float
    runs: int
    right: int
    wrong: int

    def told(self, alone: Line) -> str:
        cells = (
            str(self.nodes), f"{self.rounds:.1f}", f"{self.trials:.1f}", f"{self.lost:.1f}", f"{self.gpu_hours:.0f}",
            f"{self.wall_h:.2f}", f"{alone.wall_h / self.wall_h:.1f} x", f"{self.gpu_hours / alone.gpu_hours:.1f} x",
            f"{self.right}/{self.runs}", str(self.wrong),
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| nodes | rounds | trials | lost | GPU-hours | wall, h | quicker | GPU-hours, by one node's | right | wrong |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def line(nodes: int, ran: Sequence[Ran]) -> Line:
    return Line(
        nodes,
        mean([r.nodes.chain for r in ran]),
        mean([len(r.result.trials) for r in ran]),
        mean([r.nodes.lost for r in ran]),
        mean([r.nodes.busy * GPUS / 60 for r in ran]),
        mean([r.nodes.now / 60 for r in ran]),
        len(ran),
        sum(r.right for r in ran),
        sum(r.wrong for r in ran),
    )


def grown(space: Space, scenario: Scenario, conditions: Conditions, given: argparse.Namespace) -> Iterator[Line]:
    for nodes in given.nodes:
        runs = given.runs if nodes <= MANY else max(1, given.runs * MANY // nodes)
        yield line(nodes, [simulate(space, scenario, nodes, conditions, given.seed * 1009 + i) for i in range(runs)])


def stops_paying(lines: Sequence[Line]) -> str:
    """In words: the last number of nodes whose double is still worth it."""
    for few, many in itertools.pairwise(lines):
        if many.wall_h > few.wall_h * PAYS:
            saves, costs = 1 - many.wall_h / few.wall_h, many.gpu_hours / few.gpu_hours - 1
            return (
                f"More than {few.nodes} nodes do not pay: {many.nodes} save {saves:.0%} of the wall time "
                f"and cost {costs:.0%} more GPU-hours."
            )
    return f"Up to {lines[-1].nodes} nodes each doubling pays."


def tables(given: argparse.Namespace) -> None:
    space = two_level(given.factors)
    for name in given.scenario:
        for where, conditions in (("fleet", FLEET), ("queue", QUEUE)):
            print(f"\n{name}, {where}, {given.factors} factors, {GPUS} GPUs a node\n\n{HEAD}", flush=True)
            lines: list[Line] = []
            for one in grown(space, SCENARIOS[name], conditions, given):
                lines.append(one)
                print(one.told(lines[0]), flush=True)
            print(f"\n{stops_paying(lines)}", flush=True)


Row = tuple[str, str, str]


def even_rounds(given: argparse.Namespace) -> Iterator[Row]:
    """8 hosts, pair at 30 %."""
    space, flaky = two_level(given.factors), SCENARIOS["flaky-pair"]
    for what, target, confirm, ends_known, quick in (
        ("search alone to .95", "<= 4 rounds", False, True, True),
        ("search alone to .985", "<= 4 rounds", False, True, False),
        ("search and confirmation", "-", True, True, False),
        ("in all, with controls and the failing end", "-", True, False, False),
    ):
        ran = [
            simulate(space, flaky, 8, EVEN, given.seed * 1009 + i, confirm=confirm, ends_known=ends_known, quick=quick)
            for i in range(given.runs * 20)
        ]
        right = sum(r.right for r in ran) / len(ran)
        rounds = mean([r.nodes.chain for r in ran])
        yield (f"8 hosts, pair, 30 %, even: {what}", target, f"{rounds:.1f} rounds, {right:.0%} right of {len(ran)}")


def steps(given: argparse.Namespace) -> Iterator[Row]:
    """64 hosts: what planning takes, in one run as it comes, and where all hosts ask at once."""
    for factors in (given.factors, 12):
        for name in ("pair", "flaky-pair"):
            space = two_level(factors)
            for how, conditions in (("uneven", FLEET), ("all at once", EVEN)):
                ms = [ms for i in range(2) for *_, ms in simulate(space, SCENARIOS[name], 64, conditions, i).steps]
                yield (f"64 hosts, {name}, {factors} factors, {how}: engine step", "<= 100 ms", spread(ms))
            yield (f"  the same: 63 pending, 64 wanted, {factors} factors", "<= 100 ms", spread(full(space, name)))


def full(space: Space, name: str) -> list[float]:
    """A step with 63 pending and 64 hosts wanted, before each trial of a run one after the other."""
    search = BayesianSearch(space, deterministic=SCENARIOS[name].deterministic, max_trials=400)
    chance = random.Random(1)
    hidden = Hypothesis("pair", space.factors[:2])
    trials = known(space, [f"node{i}" for i in range(64)])
    found = []
    while len(found) < 12 and not isinstance(batch := search.next_batch(trials, [], 63), Verdict):
        pending = [batch[i % len(batch)].config for i in range(63)]
        began = time.process_time()
        search.next_batch(trials, pending, 64)
        found.append((time.process_time() - began) * 1000)
        failed = hidden.active(batch[0].config) is True and chance.random() >= SCENARIOS[name].flake
        config = batch[0].config
        trials.append(
            Trial(len(trials) + 1, "", config, config, Outcome.FAIL if failed else Outcome.PASS, host="node0")
        )
    return found


def spread(ms: Sequence[float]) -> str:
    ordered = sorted(ms)
    at: Callable[[float], float] = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return f"p50 {at(0.5):.0f}, p95 {at(0.95):.0f}, most {ordered[-1]:.0f} ms of {len(ordered)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--runs", type=int, default=4, help=f"with at most {MANY} nodes; fewer with more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--factors", type=int, default=10)
    parser.add_argument("--scenario", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--only", choices=["targets", "tables"])
    given = parser.parse_args()
    if given.only != "tables":
        print("| measure | target | reached |\n|---|---|---|", flush=True)
        for table in (even_rounds, steps):
            for row in table(given):
                print(f"| {' | '.join(row)} |", flush=True)
    if given.only != "targets":
        tables(given)


if __name__ == "__main__":
    main()
