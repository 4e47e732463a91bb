"""What the search of diag reaches on simulated faults, beside its rivals on the same cases: tables.

    python benchmarks/bisection.py [--cases 20] [--seed 1] [--only NAME ...] [--rivals SITE_PACKAGES]

`--cases 400` for the whole measurement. (Not named bisect.py: that would hide the standard library's module from every
script beside it.)

Rates are unknown to the search. As in docs/measured.md, one failure at the failing and one pass at the good end are
free to all; `search` counts the trials until the leader holds .985 (`quick`: .95), `in all` everything: both ends,
gate, confirmation from both ends and hold-outs. Rivals that are packages run in their own code: install git-bayesect,
rimbisect, mlbisect and picire somewhere and name its site-packages.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads cost more than they give

import numpy as np
from rivals import classic, packages

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.engine import commits
from diag.bisect.expr import Value, parse
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Derived, Factor, Space
from diag.bisect.trial import Outcome, Trial
from diag.verdict.compare import TextVerdict

Fault = Callable[[Mapping[str, Value]], bool | None]
HEALTHY = TextVerdict("p", "alone", "identical", "", None, "")
GARBLED = TextVerdict("p", "alone", "garbled", "", None, "")
CAP = 200


def two_level(count: int) -> Space:
    return Space(tuple(Factor(f"f{i}", f"--f{i}", "flag", 0, 1, (0, 1)) for i in range(count)))


@dataclass
class World:
    """A hidden fault, shown with probability 1 - flake; alarms: garbled although healthy. requests > 1: a boot that
    shows it garbles `share` of them, and alarms are of requests."""

    space: Space
    fails: Fault
    flake: float
    alarms: float
    chance: random.Random
    requests: int = 1
    share: float = 0.4
    trials: list[Trial] = field(default_factory=list)

    def boot(self, step: Next) -> Trial:
        values = self.space.effective(step.config, {})
        shows = bool(self.fails(values)) and self.chance.random() >= self.flake
        texts: tuple[TextVerdict, ...] = ()
        if self.requests > 1:
            rate = self.share if shows else self.alarms
            texts = tuple(GARBLED if self.chance.random() < rate else HEALTHY for _ in range(self.requests))
            failed = any(t is GARBLED for t in texts)
        else:
            failed = shows or (not self.fails(values) and self.chance.random() < self.alarms)
        outcome = Outcome.FAIL if failed else Outcome.PASS
        trial = Trial(len(self.trials) + 1, step.purpose, step.config, values, outcome, texts)
        self.trials.append(trial)
        return trial

    def both_ends(self) -> None:
        """One pass of the good and one failure of the failing end, for nothing."""
        flake, alarms = self.flake, self.alarms
        self.flake = self.alarms = 0.0
        for end in (self.space.good, self.space.bad):
            self.boot(Next(end, ""))
        self.flake, self.alarms = flake, alarms

    def settle(self, search: BayesianSearch) -> Verdict:
        while isinstance(step := search.next(self.trials), Next):
            self.boot(step)
        return step


def drawn(space: Space, kind: str, chance: random.Random) -> Hypothesis:
    size = {"single": 1, "pair": 2, "either": 2, "triple": 3}[kind]
    which = sorted(chance.sample(range(len(space.factors)), size))
    return Hypothesis(kind, tuple(space.factors[i] for i in which))  # type: ignore[arg-type]


def names(verdict: Verdict, hidden: Hypothesis) -> bool:
    return verdict.culprit is not None and hidden in (verdict.culprit, *verdict.inseparable)


Row = tuple[str, str, str, int]
"""(case, target, reached, cases)"""


@dataclass(frozen=True)
class Options:
    cases: int
    seed: int
    rivals: bool = False


def ours(
    space: Space,
    kind: str,
    flake: float,
    alarms: float,
    options: Options,
    *,
    confirm: bool,
    requests: int = 1,
    **how: object,
) -> tuple[float, float, float]:
    """(share right, mean trials, share that names something else)."""
    right, wrong, spent = 0, 0, 0
    search = BayesianSearch(space, confirm=confirm, max_trials=CAP, **how)  # type: ignore[arg-type]
    for case in range(options.cases):
        chance = random.Random(options.seed * 100_003 + case)
        hidden = drawn(space, kind, chance)
        search.model.seed = case
        world = World(space, hidden.active, flake, alarms, chance, requests)
        if not confirm:
            world.both_ends()
        verdict = world.settle(search)
        right += names(verdict, hidden)
        wrong += verdict.culprit is not None and not names(verdict, hidden)
        spent += len(world.trials) - (0 if confirm else 2)
    return right / options.cases, spent / options.cases, wrong / options.cases


def both(
    case: str, target: str, space: Space, kind: str, flake: float, alarms: float, o: Options, **how: object
) -> Row:
    right, mean, _ = ours(space, kind, flake, alarms, o, confirm=False, **how)  # type: ignore[arg-type]
    sure, whole, wrong = ours(space, kind, flake, alarms, o, confirm=True, **how)  # type: ignore[arg-type]
    told = f"search {right:.1%} in {mean:.1f}; in all {sure:.1%} right, {wrong:.1%} wrong, in {whole:.1f}"
    return (case, target, told, o.cases)


def constant(o: Options) -> Iterator[Row]:
    space = two_level(12)
    for kind, among in (("single", 12), ("pair", math.comb(12, 2))):
        target = f"100 % in <= {math.ceil(math.log2(among)) + 2}"
        yield both(f"constant {kind}, k = 12, declared", target, space, kind, 0, 0, o, deterministic=True)
    for kind in ("single", "pair"):
        yield both(f"constant {kind}, k = 12, not declared", "-", space, kind, 0, 0, o)


def flaky(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for kind, target in (("single", ">= 99 % in <= 14 (11)"), ("pair", ">= 99 % in <= 36 (28)")):
        yield both(f"flaky {kind}, 30 %, 2 %", target, space, kind, 0.3, 0.02, o)
        yield from rivals(kind, 0.3, 0.02, o) if o.rivals else ()


def rivals(kind: str, flake: float, alarms: float, o: Options) -> Iterator[Row]:
    entrants: list[tuple[str, packages.Find | None]] = []
    for name, find in classic.ALL:
        for times in (3, 5):
            entrants.append((f"{name} x{times}", lambda a, k, f=find, r=times: f(classic.repeated(a, r), k)))  # type: ignore[misc]
    entrants += [(f"picire x{r}", packages.picire(r)) for r in (3, 5)]
    entrants += [(f"rimbisect x{r}", packages.rimbisect(r)) for r in (3, 5)]
    entrants += [(f"mlbisect {budget}", packages.mlbisect(budget)) for budget in (60, 300)]
    space = two_level(10)
    for name, find in entrants:
        if find is None:
            yield (f"  {name}", "", "not installed", 0)
            continue
        count = o.cases if "mlbisect" not in name else min(o.cases, 60)
        right = wrong = spent = 0
        for case in range(count):
            chance = random.Random(o.seed * 100_003 + case)
            hidden = drawn(space, kind, chance)
            wanted = frozenset(space.factors.index(m) for m in hidden.members)  # type: ignore[arg-type]
            asked = 0

            def ask(subset: frozenset[int], w: frozenset[int] = wanted, c: random.Random = chance) -> bool:
                nonlocal asked
                asked += 1
                return c.random() < (1 - flake if w <= subset else alarms)

            found = find(ask, 10)
            right += found == wanted
            wrong += found is not None and found != wanted
            spent += asked
        yield (f"  {name}", "", f"{right / count:.1%} right, {wrong / count:.1%} wrong, in {spent / count:.1f}", count)


def counts(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for kind, target in (("single", ">= 99 % in <= 11"), ("pair", ">= 99 % in <= 28 (22)")):
        yield both(f"counts of 32, p_boot .7, {kind}", target, space, kind, 0.3, 0.002, o, requests=32)


def constraints(o: Options) -> Iterator[Row]:
    for kind, flake in itertools.product(("single", "pair"), (0.0, 0.3)):
        right = wrong = spent = 0
        for case in range(o.cases):
            chance = random.Random(o.seed * 100_003 + case)
            space = two_level(10)
            arrows = [tuple(chance.sample(range(10), 2)) for _ in range(3)]

            def valid(config: Mapping[str, Value], rules: Sequence[tuple[int, ...]] = arrows) -> bool:
                return all(config[f"f{b}"] == 1 or config[f"f{a}"] == 0 for a, b in rules)

            hidden = drawn(space, kind, chance)
            world = World(space, hidden.active, flake, 0.0, chance)
            verdict = world.settle(BayesianSearch(space, valid=valid, max_trials=CAP, seed=case))
            right += names(verdict, hidden)
            wrong += verdict.culprit is not None and not names(verdict, hidden)
            spent += len(world.trials)
        told = f"{right / o.cases:.1%} right, {wrong / o.cases:.1%} wrong, in all {spent / o.cases:.1f}"
        yield (f"three implications, {kind}, {flake:.0%}", ">= 97 %", told, o.cases)


def derived(o: Options) -> Iterator[Row]:
    factors = (
        Factor("budget", "--b", "flag", 7, 16, (7, 15, 16)),
        Factor("block_size", "--n", "flag", 8, 8, (8, 16, 17)),
        *two_level(6).factors,
    )
    rule = Derived("mismatch", parse("budget + 1 != block_size"))
    space = Space(factors, (rule,))
    hidden = Hypothesis("derived", (rule,))
    for flake, (confirm, quick) in itertools.product((0.0, 0.3), ((False, True), (False, False), (True, False))):
        right = spent = 0
        search = BayesianSearch(space, max_trials=CAP, confirm=confirm, quick=quick)
        for case in range(o.cases):
            search.model.seed = case
            world = World(space, hidden.active, flake, 0.0, random.Random(o.seed * 100_003 + case))
            if not confirm:
                world.both_ends()
            right += names(world.settle(search), hidden)
            spent += len(world.trials)
        told = f"{right / o.cases:.1%} in {spent / o.cases - (0 if confirm else 2):.1f}"
        case_name = f"derived cause, {flake:.0%}, {'in all' if confirm else 'search'}, {'.95' if quick else '.985'}"
        yield (case_name, "100 % in <= 7" if not confirm else "-", told, o.cases)


def nothing(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for flake in (0.0, 0.3, 0.5):
        accused = 0
        told: dict[str, int] = {}
        search = BayesianSearch(space, max_trials=CAP)
        for case in range(o.cases):
            search.model.seed = case
            world = World(space, lambda v: True, flake, 0.0, random.Random(o.seed * 100_003 + case))
            verdict = world.settle(search)
            accused += verdict.culprit is not None
            told[verdict.kind] = told.get(verdict.kind, 0) + 1
        yield (
            f"nothing to blame, {flake:.0%}",
            "<= 3 % (1 %) accuse",
            f"{accused / o.cases:.1%} ({_kinds(told)})",
            o.cases,
        )


def _kinds(told: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(told.items()))


OUTSIDE: Sequence[tuple[str, Fault]] = (
    ("a xor b xor c", lambda v: (v["f0"] + v["f1"] + v["f2"]) % 2 == 1),  # type: ignore[operator]
    ("(a xor b) or c", lambda v: v["f0"] != v["f1"] or v["f2"] == 1),
    ("xor of five", lambda v: sum(v[f"f{i}"] for i in range(5)) % 2 == 1),  # type: ignore[misc]
    ("a and (b or c)", lambda v: v["f0"] == 1 and (v["f1"] == 1 or v["f2"] == 1)),
)


def outside(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for (name, fault), (flake, declared) in itertools.product(OUTSIDE, ((0.0, True), (0.3, None))):
        wrong = spent = 0
        told: dict[str, int] = {}
        count = max(1, o.cases // 2)
        search = BayesianSearch(space, max_trials=60, deterministic=declared)
        for case in range(count):
            search.model.seed = case
            world = World(space, fault, flake, 0.02 if flake else 0.0, random.Random(o.seed * 100_003 + case))
            verdict = world.settle(search)
            wrong += verdict.culprit is not None
            told[verdict.kind] = told.get(verdict.kind, 0) + 1
            spent += len(world.trials)
        reached = f"{wrong / count:.1%} in {spent / count:.1f} ({_kinds(told)})"
        yield (f"outside: {name}, {flake:.0%}", "<= 10 % (5 %) wrong", reached, count)


def cost(o: Options) -> Iterator[Row]:
    plain = two_level(10).factors
    space = Space(tuple(replace(f, apply="request" if i < 4 else "restart") for i, f in enumerate(plain)))
    cases, all_of = max(1, o.cases // 2), {"blind": 0.0, "aware": 0.0}

    def blind(config: Mapping[str, Value], running: Mapping[str, Value] | None) -> float:
        return 1.0

    for kind, flake in itertools.product(("single", "pair"), (0.0, 0.3)):
        spent, right = {}, {}
        for name, price in (("blind", blind), ("aware", None)):
            search = BayesianSearch(space, minutes=price, confirm=False, max_trials=CAP)
            total, hits = 0.0, 0
            for case in range(cases):
                chance = random.Random(o.seed * 100_003 + case)
                hidden = drawn(space, kind, chance)
                search.model.seed = case
                world = World(space, hidden.active, flake, 0.0, chance)
                world.both_ends()
                hits += names(world.settle(search), hidden)
                configs = [t.config for t in world.trials[1:]]
                total += sum(space.minutes(config, before) for before, config in itertools.pairwise(configs))
            spent[name], right[name] = total / cases, hits / cases
            all_of[name] += spent[name] / 4
        ratio = spent["blind"] / spent["aware"]
        told = f"{ratio:.1f} x ({spent['blind']:.0f} -> {spent['aware']:.0f} min, {right['aware']:.1%} right)"
        yield (f"restart 5 min, request .5, {kind}, {flake:.0%}", "", told, cases)
    told = f"{all_of['blind'] / all_of['aware']:.1f} x ({all_of['blind']:.0f} -> {all_of['aware']:.0f} min)"
    yield ("restart 5 min, request .5, the four together", ">= 2.5 x", told, 4 * cases)


def hosts(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for count, confirm, quick in ((1, False, False), (8, False, True), (8, False, False), (8, True, False)):
        rounds = right = spent = 0
        search = BayesianSearch(space, confirm=confirm, quick=quick, max_trials=CAP)
        for case in range(o.cases):
            chance = random.Random(o.seed * 100_003 + case)
            hidden = drawn(space, "pair", chance)
            search.model.seed = case
            world = World(space, hidden.active, 0.3, 0.0, chance)
            world.both_ends()
            while not isinstance(steps := search.next_batch(world.trials, [], count), Verdict):
                rounds += 1
                for step in steps:
                    world.boot(step)
            right += names(steps, hidden)
            spent += len(world.trials) - 2
        told = f"{rounds / o.cases:.1f} rounds, {spent / o.cases:.1f} trials, {right / o.cases:.1%} right"
        target = "<= 4 rounds" if count == 8 and not confirm else "-"
        yield (
            f"{count} hosts, pair, 30 %, {'in all' if confirm else 'search'}, {'.95' if quick else '.985'}",
            target,
            told,
            o.cases,
        )


def history(o: Options) -> Iterator[Row]:
    bayesect = packages.git_bayesect()
    for size, flake, alarms, target in ((128, 0.3, 0.02, ">= 99 % in <= 26"), (1024, 0.3, 0.02, "-")):
        cases = o.cases if size == 128 else max(1, o.cases // 4)
        ancestors = commits.linear(size)
        tally: dict[str, list[int]] = {}

        def count(name: str, hit: bool, spent: int, into: dict[str, list[int]] = tally) -> None:
            into.setdefault(name, []).append(spent if hit else -spent - 1)

        for case in range(cases):
            first_bad = random.Random(o.seed * 100_003 + case).randrange(1, size)
            prior = np.ones(size)
            prior[0] = 0

            def asker(
                salt: int, bad: int = first_bad, c: int = case, rates: tuple[float, float] = (1 - flake, alarms)
            ) -> Callable[[int], bool]:
                chance = random.Random((o.seed * 100_003 + c) * 31 + salt)
                return lambda commit: chance.random() < rates[0 if commit >= bad else 1]

            for name, stop in (("ours .99", 0.99), ("ours .95", 0.95)):
                ask, trials = asker(0), [(0, 0, 1), (size - 1, 1, 1)]
                while True:
                    step = commits.decide(ancestors, trials, prior=prior, stop=stop, seed=case)
                    if step.index is None or len(trials) > 400:
                        break
                    trials.append((step.index, int(ask(step.index)), 1))
                count(name, step.culprit == first_bad, len(trials) - 2)
            for times in (1, 3, 8):
                spent, ask = 0, asker(1)

                def again(commit: int, a: Callable[[int], bool] = ask, r: int = times) -> bool:
                    nonlocal spent
                    for _ in range(r):
                        spent += 1
                        if a(commit):
                            return True
                    return False

                found = classic.git_bisect(again, size)
                count(f"git bisect x{times}", found == first_bad, spent)
            if bayesect is not None:
                found, spent = bayesect(asker(2), size, 0.95)
                count("git-bayesect .95", found == first_bad, spent)
        for name, results in tally.items():
            right = sum(v >= 0 for v in results) / cases
            mean = sum(v if v >= 0 else -v - 1 for v in results) / cases
            label = f"{size} commits, 30 %, 2 %: {name}" if name.startswith("ours") else f"  {name}"
            yield (label, target if name == "ours .99" else "", f"{right:.1%} in {mean:.1f}", cases)
        if bayesect is None:
            yield ("  git-bayesect", "", "not installed", 0)


def calibration(o: Options) -> Iterator[Row]:
    space = two_level(10)
    for quick, stated in ((True, 0.95), (False, 0.985)):
        sure, right, claims = 0.0, 0, 0
        search = BayesianSearch(space, quick=quick, confirm=False, max_trials=CAP)
        for case in range(o.cases):
            chance = random.Random(o.seed * 100_003 + case)
            kind = chance.choices(["single", "pair", "either", "always", "never"], [55, 30, 5, 5, 5])[0]
            flake, alarms = chance.choice((0.0, 0.1, 0.3, 0.5)), chance.choice((0.0, 0.02))
            if kind in ("always", "never"):
                hidden = Hypothesis(kind)  # type: ignore[arg-type]
            else:
                hidden = drawn(space, kind, chance)
            search.model.seed = case
            verdict = World(space, hidden.active, flake, alarms, chance).settle(search)
            if verdict.culprit is not None:
                claims += 1
                sure += verdict.confidence
                right += names(verdict, hidden)
        told = f"stated {sure / max(1, claims):.1%}, right {right / max(1, claims):.1%} of {claims} claims"
        yield (f"calibration, mixed world, stop {stated}", "within 2 points", told, o.cases)


def speed(o: Options) -> Iterator[Row]:
    for count, target in ((12, "<= 5 ms"), (24, "<= 50 ms")):
        space = two_level(count)
        for requests in (1, 32):
            chance = random.Random(o.seed)
            hidden = drawn(space, "pair", chance)
            world = World(space, hidden.active, 0.3, 0.002 if requests > 1 else 0.02, chance, requests)
            search, spent = BayesianSearch(space, max_trials=CAP, confirm=False), []
            while True:
                began = time.process_time()
                step = search.next(world.trials)
                spent.append((time.process_time() - began) * 1000)
                if not isinstance(step, Next) or len(world.trials) > 60:
                    break
                world.boot(step)
            told = f"CPU: median {sorted(spent)[len(spent) // 2]:.1f} ms, most {max(spent[3:] or spent):.1f}"
            yield (f"one step, k = {count}, {'counts' if requests > 1 else 'bits'}", target, told, len(spent))


TABLES: Sequence[Callable[[Options], Iterator[Row]]] = (
    constant, flaky, counts, constraints, derived, nothing, outside, cost, hosts, history, calibration, speed,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=12, help="cases a cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[t.__name__ for t in TABLES], default=[])
    parser.add_argument("--rivals", type=Path, help="site-packages with the rivals")
    given = parser.parse_args()
    if given.rivals is not None:
        sys.path.append(str(given.rivals))
    print("| case | target | reached | cases |\n|---|---|---|---|", flush=True)
    for table in TABLES:
        if not given.only or table.__name__ in given.only:
            for row in table(Options(given.cases, given.seed, given.rivals is not None)):
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
