"""How many server starts the search needs for constant faults: a table.

    python benchmarks/search.py [--factors 6 8 10 12] [--cases 12] [--seed 1]

Two-level factors; the hidden fault is one factor or a pair that only breaks things together, drawn with a seed. Counted
are all trials, both ends and the confirmations included. The yardstick of docs/measured.md, log2 of the number of
hypotheses of that kind plus two, leaves the ends out; `without ends` is to be held against it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Factor, Space
from diag.bisect.trial import Outcome, Trial


def two_level(count: int) -> Space:
    return Space(tuple(Factor(f"f{i}", f"--f{i}", "flag", 0, 1, (0, 1)) for i in range(count)))


def hidden_faults(space: Space, kind: str, cases: int, chance: random.Random) -> list[Hypothesis]:
    size = {"single": 1, "pair": 2}[kind]
    every = [Hypothesis(kind, members) for members in itertools.combinations(space.factors, size)]  # type: ignore[arg-type]
    return chance.sample(every, min(cases, len(every)))


def settle(search: BayesianSearch, hidden: Hypothesis) -> tuple[Verdict, int]:
    """The verdict about a host that shows the fault every time, and the number of trials it took."""
    trials: list[Trial] = []
    while isinstance(step := search.next(trials), Next):
        values = search.space.effective(step.config, {})
        outcome = Outcome.FAIL if hidden.active(values) else Outcome.PASS
        trials.append(Trial(len(trials) + 1, step.purpose, step.config, values, outcome))
    return step, len(trials)


def rows(factors: Sequence[int], cases: int, seed: int) -> Iterator[tuple[str, ...]]:
    yield ("k", "fault", "cases", "right", "mean trials", "most", "without ends", "ceil(log2 n) + 2", "ms a step")
    for count in factors:
        space = two_level(count)
        search = BayesianSearch(space, deterministic=True, max_trials=1000)
        for kind, among in (("single", count), ("pair", math.comb(count, 2))):
            faults = hidden_faults(space, kind, cases, random.Random(seed))
            began = time.perf_counter()
            ended = [settle(search, hidden) for hidden in faults]
            spent = [trials for _, trials in ended]
            step_ms = (time.perf_counter() - began) * 1000 / sum(n + 1 for n in spent)
            right = sum(verdict.culprit == hidden for (verdict, _), hidden in zip(ended, faults))
            mean = sum(spent) / len(spent)
            yield (
                str(count),
                kind,
                str(len(faults)),
                f"{right / len(faults):.0%}",
                f"{mean:.1f}",
                str(max(spent)),
                f"{mean - 2:.1f}",
                str(math.ceil(math.log2(among)) + 2),
                f"{step_ms:.1f}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--factors", type=int, nargs="+", default=[6, 8, 10, 12])
    parser.add_argument("--cases", type=int, default=12, help="hidden faults of each kind at most")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for row in rows(given.factors, given.cases, given.seed):
        print(
            "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, (3, 6, 5, 5, 11, 4, 12, 16, 9))) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
