"""A host that shows a hidden fault every time, without a server: what a search is tried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from diag.bisect.bayes.pools import UNLIKELY
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Search, Verdict
from diag.bisect.engine import starts
from diag.bisect.engine.rows import Codes, codes_of
from diag.bisect.expr import Value, parse
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Config, Derived, Factor, Space, same
from diag.bisect.trial import Outcome, Trial

Predicate = Callable[[Mapping[str, Value]], bool]


def factor(name: str, good: Value = 0, bad: Value = 1, *more: Value, title: str = "") -> Factor:
    levels: list[Value] = []
    for level in (good, bad, *more):
        if not any(same(level, known) for known in levels):
            levels.append(level)
    return Factor(name, f"--{name}", "flag", good, bad, tuple(levels), title)


def space(*factors: Factor, **derived: str) -> Space:
    return Space(factors, tuple(Derived(name, parse(when)) for name, when in derived.items()))


def two_level(count: int) -> Space:
    return space(*(factor(f"f{i}") for i in range(count)))


@dataclass
class SimulatedHost:
    """fails: over effective values. starts: over what was asked. reports: what /server_info says for what was asked.
    disturb: changes an outcome by trial number, for hosts that do not show the same thing twice. signature: how it
    fails, over effective values."""

    space: Space
    fails: Predicate
    starts: Predicate = lambda config: True
    reports: Callable[[Config], dict[str, Value]] = lambda config: {}
    disturb: Callable[[int, Outcome], Outcome] = lambda number, outcome: outcome
    signature: Callable[[Mapping[str, Value]], str] = lambda values: ""
    trials: list[Trial] = field(default_factory=list)

    def run(self, step: Next, host: str = "") -> Trial:
        number = len(self.trials) + 1
        effective = self.space.effective(step.config, {})
        if not self.starts(step.config):
            outcome = Outcome.SKIP
        else:
            effective = self.space.effective(step.config, self.reports(step.config))
            outcome = Outcome.FAIL if self.fails(effective) else Outcome.PASS
        outcome = self.disturb(number, outcome)
        signature = self.signature(effective) if outcome is Outcome.FAIL else ""
        trial = Trial(number, step.purpose, step.config, effective, outcome, host=host, signature=signature)
        self.trials.append(trial)
        return trial


def make_search(over: Space, max_trials: int = 10_000) -> Search:
    """The search under test: these tests hold for whatever decides."""
    return BayesianSearch(over, deterministic=True, max_trials=max_trials)


def settle(host: SimulatedHost, search: Search | None = None, limit: int = 300) -> Verdict:
    """Run to a verdict; a search that goes on for more than `limit` trials is a failure."""
    decide = search or make_search(host.space)
    while isinstance(step := decide.next(host.trials), Next):
        assert len(host.trials) < limit, f"no verdict after {limit} trials; next would be {step}"
        host.run(step)
    return step


def truth(hypothesis: Hypothesis) -> Predicate:
    return lambda values: hypothesis.active(values) is True


def agrees(a: Hypothesis, b: Hypothesis, host: SimulatedHost) -> bool:
    """Whether no configuration that starts tells the two apart, but for those that two others like them spoke
    against."""
    for config in host.space.configs():
        if host.starts(config):
            values = host.space.effective(config, host.reports(config))
            if a.active(values) is not b.active(values) and not given_up(config, host):
                return False
    return True


def given_up(config: Config, host: SimulatedHost) -> bool:
    """Whether what did not start makes this one look as if it would not either."""
    codes: dict[bool, list[Codes]] = {True: [], False: []}
    for t in host.trials:
        codes[t.outcome is Outcome.SKIP].append(codes_of(host.space.factors, t.config))
    if not codes[True]:
        return False
    started, refused = (np.array(codes[side]) for side in (False, True))
    chance = starts.probability(codes_of(host.space.factors, config)[None, :], started, refused)
    return bool(chance[0] <= UNLIKELY)
