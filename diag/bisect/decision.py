"""The search: trials so far in, the next configuration or a verdict out. Pure: no I/O, no clock, no chance.

This one is for faults that show every time. A hypothesis lives while it predicts every trial; the next trial is
the one that splits the living ones best (most expected information under the prior weights), and among equals the
one that differs least from the failing configuration. When the living ones can no longer be told apart by any
configuration, the leader is confirmed from both ends before it is named:

    sufficient   the good configuration with the culprit and nothing else must fail (of "a or b": with each alone)
    necessary    the failing configuration without the culprit must pass (of "a and b": without each of them)

so that every innocent factor has a trial that clears it, and every guilty one a trial that convicts it. A trial
that contradicts an earlier one with the same effective values ends the search as `unexplained`: such a fault needs
a search that reckons with flakes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from diag.bisect.expr import Value
from diag.bisect.hypotheses import Hypothesis, enumerate_all
from diag.bisect.space import Config, Space, differences, same
from diag.bisect.trial import Outcome, Trial

VerdictKind = Literal["culprit", "not_reproduced", "environmental", "narrowed", "unexplained", "clean", "fails"]
"""clean, fails: the answers of `BothEnds`, which only asks whether the failing configuration still fails."""

MAX_CONFIGS = 1 << 14


@dataclass(frozen=True)
class Next:
    """Try this. purpose: why, for the person who waits."""

    config: Mapping[str, Value]
    purpose: str


@dataclass(frozen=True)
class Rejected:
    """A hypothesis and the first trial that contradicts it."""

    hypothesis: Hypothesis
    trial: int
    why: str


@dataclass(frozen=True)
class Rate:
    """garbled of tried boots, with the 95 % interval of the rate."""

    garbled: int
    tried: int
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """active, idle: boots with and without the culprit. share: of the requests in a garbled boot, how many garble."""

    active: Rate
    idle: Rate
    share: float | None = None


@dataclass(frozen=True)
class Verdict:
    """culprit: the hypothesis named; inseparable: others that no configuration tells apart from it; untested: those
    that rest on a value which the server did not report.

    sufficient, necessary: numbers of the trials that show it. confidence: share of prior weight among what is
    left, 1.0 when nothing else is; for a fault that may flake, the probability that it is the culprit.
    rates: how often it shows. held_out: trials of configurations that took no part in finding the culprit and went
    as it foretold. beyond: for `unexplained`, a rule outside the plan's hypotheses that would fit.
    """

    kind: VerdictKind
    why: str
    culprit: Hypothesis | None = None
    confidence: float = 0.0
    inseparable: tuple[Hypothesis, ...] = ()
    untested: tuple[Hypothesis, ...] = ()
    sufficient: tuple[int, ...] = ()
    necessary: tuple[int, ...] = ()
    cleared: Mapping[str, int] | None = None
    rejected: tuple[Rejected, ...] = ()
    alive: tuple[tuple[Hypothesis, float], ...] = ()
    rates: Rates | None = None
    held_out: tuple[int, ...] = ()
    beyond: str = ""

    @property
    def runners_up(self) -> tuple[tuple[Hypothesis, float], ...]:
        """Others with their probability, likeliest first; what nothing tells from the culprit is not among them."""
        return tuple((h, w) for h, w in self.alive if h is not self.culprit and h not in self.inseparable)


class Search(Protocol):
    """What decides. `run` knows no more than this."""

    def next(self, trials: Sequence[Trial]) -> Next | Verdict: ...

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        """What `hosts` free hosts should try now, while `pending` configurations are still tried elsewhere: at most one
        each, none where it is better to wait for what is pending. A verdict only when nothing is pending any more."""
        ...

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        """How many trials the whole run is likely to take, those done included."""
        ...


@dataclass(frozen=True)
class _Candidate:
    """A configuration with its computable effective values, and what each living hypothesis predicts for it."""

    config: Mapping[str, Value]
    values: Mapping[str, Value]


class DeterministicSearch:
    def __init__(self, space: Space, *, max_trials: int = 32) -> None:
        self.space = space
        self.max_trials = max_trials
        self._prior = enumerate_all(space)
        configs = list(space.configs())
        if len(configs) > MAX_CONFIGS:
            raise ValueError(f"{len(configs)} configurations are more than this search takes ({MAX_CONFIGS})")
        self._candidates = [_Candidate(c, space.effective(c, {})) for c in configs]

    # protocol

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        evidence = [t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL)]
        opening = self._opening(trials, evidence)
        if opening is not None:
            return opening
        if (clash := contradiction(evidence)) is not None:
            return self._end("unexplained", evidence, f"trials {clash[0]} and {clash[1]} are alike and differ")
        alive = self._alive(evidence)
        leader = next((h for h, _ in alive if explains(h, evidence)), None)
        if leader is None:
            return self._end("unexplained", evidence, "no single factor, pair or rule predicts what was seen")
        untried = self._untried(trials)
        step = self._best_split(alive, untried) or self._confirm(leader, evidence, untried)
        if step is None:
            return self._name(leader, alive, evidence, untried)
        if len(trials) >= self.max_trials:
            return self._end("narrowed", evidence, f"{self.max_trials} trials are spent")
        return step

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        return one_at_a_time(self, trials, pending, hosts)

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        evidence = [t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL)]
        alive = self._alive(evidence)
        total = sum(weight for _, weight in alive)
        entropy = -sum(w / total * math.log2(w / total) for _, w in alive if w > 0) if total > 0 else 0.0
        gate = sum(not _has(evidence, end) for end in (self.space.good, self.space.bad))
        # A well chosen trial settles up to one bit, and is often one of the two confirmations besides.
        return len(trials) + gate + math.ceil(entropy)

    # the steps

    def _opening(self, trials: Sequence[Trial], evidence: Sequence[Trial]) -> Next | Verdict | None:
        """Both ends first: without a good text there is nothing to compare with, without a failure nothing to find."""
        space = self.space
        good, bad = _at(evidence, space.good), _at(evidence, space.bad)
        if not good:
            if len(_at(trials, space.good)) >= 2:
                return self._end("environmental", evidence, "the good configuration gave no answers, twice")
            return Next(space.good, "the good configuration: its texts are what others are compared with")
        if good[0].outcome is Outcome.FAIL:
            return self._end("environmental", evidence, "the good configuration is not healthy itself")
        if not bad:
            if len(_at(trials, space.bad)) >= 2:
                return self._end("not_reproduced", evidence, "the failing configuration gave no answers, twice")
            return Next(space.bad, "the failing configuration: does it fail here at all?")
        if all(t.outcome is Outcome.PASS for t in bad):
            if len(bad) < 2:
                return Next(space.bad, "it did not fail: once more, in a new process")
            return self._end("not_reproduced", evidence, "the failing configuration gave healthy output twice")
        return None

    def _alive(self, evidence: Sequence[Trial]) -> list[tuple[Hypothesis, float]]:
        """Hypotheses that predict every trial, heaviest first."""
        alive = [(h, w) for h, w in self._prior if not any(contradicts(h, t) for t in evidence)]
        return sorted(alive, key=lambda hw: -hw[1])

    def _untried(self, trials: Sequence[Trial]) -> list[_Candidate]:
        """Not tried, and not the same in effect as what was tried or did not start."""
        return [c for c in self._candidates if not any(same_config(c.config, t.config) for t in trials)]

    def _best_split(self, alive: list[tuple[Hypothesis, float]], untried: Sequence[_Candidate]) -> Next | None:
        best: tuple[float, float, _Candidate] | None = None
        for candidate in untried:
            gain = _information(alive, candidate.values)
            distance = len(differences(candidate.config, self.space.bad))
            # 0.005 bits: below that a trial would only separate what prior weights hold to be nothing.
            if gain > 0.005 and (best is None or (round(gain, 9), -distance) > (round(best[0], 9), best[1])):
                best = (gain, -distance, candidate)
        if best is None:
            return None
        sides: dict[bool, list[str]] = {True: [], False: []}
        for hypothesis, _ in alive:
            if (active := hypothesis.active(best[2].values)) is not None:
                sides[active].append(hypothesis.name)
        return Next(best[2].config, f"clean rules out {_few(sides[True])}; garbled rules out {_few(sides[False])}")

    def _confirm(self, leader: Hypothesis, evidence: Sequence[Trial], untried: Sequence[_Candidate]) -> Next | None:
        """The first claim that no trial shows yet, tried with nothing changed but what it speaks of."""
        for claim in claims(leader, self.space):
            if any(claim.shown_by(t) for t in evidence):
                continue
            options = [c for c in untried if leader.active(c.values) is claim.fails and claim.covers(c.config)]
            if options:
                nearest = min(options, key=lambda c: len(differences(c.config, claim.base)))
                return Next(nearest.config, claim.purpose)
        return None

    def _name(
        self,
        leader: Hypothesis,
        alive: list[tuple[Hypothesis, float]],
        evidence: Sequence[Trial],
        untried: Sequence[_Candidate],
    ) -> Verdict:
        # What rests on a value that the server never told is neither a rival nor ruled out.
        untested = [h for h, _ in alive if h is not leader and not explains(h, evidence)]
        rivals = [(h, w) for h, w in alive if h not in untested]
        total = sum(weight for _, weight in rivals)
        others = [h for h, _ in rivals if h is not leader]
        same_everywhere = [h for h in others if _inseparable(leader, h, untried)]
        return Verdict(
            kind="culprit",
            why="predicts every trial" if others else "predicts every trial, and nothing else does",
            culprit=leader,
            confidence=sum(w for h, w in rivals if h is leader or h in same_everywhere) / total,
            inseparable=tuple(same_everywhere),
            untested=tuple(untested),
            sufficient=sufficient(leader, self.space, evidence),
            necessary=necessary(leader, self.space, evidence),
            cleared=cleared(leader, self.space, evidence),
            rejected=self._rejected(evidence),
            alive=tuple(alive),
        )

    def _rejected(self, evidence: Sequence[Trial]) -> tuple[Rejected, ...]:
        rejected = []
        for hypothesis, _ in self._prior:
            against = next((t for t in evidence if contradicts(hypothesis, t)), None)
            if against is not None:
                verb = "failed without it" if against.outcome is Outcome.FAIL else "passed with it"
                rejected.append(Rejected(hypothesis, against.number, verb))
        return tuple(rejected)

    def _end(self, kind: VerdictKind, evidence: Sequence[Trial], why: str) -> Verdict:
        return Verdict(kind, why, rejected=self._rejected(evidence), alive=tuple(self._alive(evidence)))


class BothEnds:
    """Does the failing configuration (still) fail? Two trials: the good one for its texts, then the failing one."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        if not trials:
            return Next(self.space.good, "the good configuration: its texts are what the other is compared with")
        if trials[0].outcome is not Outcome.PASS:
            return Verdict("environmental", "the good configuration is not healthy itself")
        if len(trials) == 1:
            return Next(self.space.bad, "the failing configuration: does it still fail?")
        if trials[1].outcome is Outcome.PASS:
            return Verdict("clean", "the failing configuration is healthy")
        if trials[1].outcome is not Outcome.FAIL:
            return Verdict("unexplained", f"the failing configuration gave no answers: {trials[1].reason}")
        return Verdict("fails", f"the failing configuration fails: {trials[1].reason}")

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        return one_at_a_time(self, trials, pending, hosts)

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        return 2


def one_at_a_time(
    search: Search, trials: Sequence[Trial], pending: Sequence[Config], hosts: int
) -> list[Next] | Verdict:
    """`Search.next_batch` where each step rests on the one before."""
    if pending or hosts < 1:
        return []
    step = search.next(trials)
    return step if isinstance(step, Verdict) else [step]


def contradicts(hypothesis: Hypothesis, trial: Trial) -> bool:
    active = hypothesis.active(trial.effective)
    return active is not None and active is not (trial.outcome is Outcome.FAIL)


def explains(hypothesis: Hypothesis, evidence: Sequence[Trial]) -> bool:
    """Whether it foretells every failure. One whose values nobody could read is contradicted by nothing, and explains
    nothing."""
    return all(hypothesis.active(t.effective) is True for t in evidence if t.outcome is Outcome.FAIL)


def _inseparable(a: Hypothesis, b: Hypothesis, untried: Sequence[_Candidate]) -> bool:
    """Two hypotheses that agree with every trial: nothing that is left to try tells them apart. What did not start
    is not left, and a setting that has no effect tells nothing."""
    return all(b.active(c.values) in (a.active(c.values), None) for c in untried)


def _information(alive: Sequence[tuple[Hypothesis, float]], values: Mapping[str, Value]) -> float:
    """Expected bits from a trial there. Hypotheses that cannot say what they predict there learn nothing from it."""
    fails = sum(w for h, w in alive if h.active(values) is True)
    passes = sum(w for h, w in alive if h.active(values) is False)
    total = sum(w for _, w in alive)
    known = fails + passes
    if known == 0 or fails == 0 or passes == 0:
        return 0.0
    p = fails / known
    return known / total * -(p * math.log2(p) + (1 - p) * math.log2(1 - p))


@dataclass(frozen=True)
class Claim:
    """`base`, changed in no factors but `names`, fails, or passes."""

    base: Mapping[str, Value]
    names: tuple[str, ...]
    fails: bool
    purpose: str

    def covers(self, config: Mapping[str, Value]) -> bool:
        return not set(differences(config, self.base)) - set(self.names)

    def shown_by(self, trial: Trial) -> bool:
        return (trial.outcome is Outcome.FAIL) is self.fails and self.covers(trial.config)


def claims(leader: Hypothesis, space: Space) -> Iterator[Claim]:
    """What naming it says: it suffices, and without it all is well. "a or b": each alone suffices. "a and b":
    without either of them all is well."""
    together, each = [leader.factors], [(name,) for name in leader.factors]
    for names in each if leader.kind == "either" else together:
        yield Claim(space.good, names, True, f"with {_these(leader, names)} alone: must fail")
    for names in each if leader.kind in ("pair", "triple") else together:
        yield Claim(space.bad, names, False, f"without {_these(leader, names)}: must pass")


def _these(leader: Hypothesis, names: tuple[str, ...]) -> str:
    return "the culprit" if names == leader.factors else names[0]


def sufficient(leader: Hypothesis, space: Space, evidence: Sequence[Trial]) -> tuple[int, ...]:
    """Trials that failed with the culprit, every innocent factor at its good level."""
    return tuple(
        t.number
        for t in evidence
        if t.outcome is Outcome.FAIL and not set(differences(t.config, space.good)) - set(leader.factors)
    )


def necessary(leader: Hypothesis, space: Space, evidence: Sequence[Trial]) -> tuple[int, ...]:
    """Trials that passed without the culprit, every innocent factor at its failing level."""
    return tuple(
        t.number
        for t in evidence
        if t.outcome is Outcome.PASS and not set(differences(t.config, space.bad)) - set(leader.factors)
    )


def cleared(leader: Hypothesis, space: Space, evidence: Sequence[Trial]) -> dict[str, int]:
    """Innocent factor -> a trial that failed although the factor stood at its good level."""
    cleared = {}
    for factor in space.factors:
        if not factor.suspect or factor.name in leader.factors:
            continue
        for t in evidence:
            if t.outcome is Outcome.FAIL and same(t.config[factor.name], factor.good):
                cleared[factor.name] = t.number
                break
    return cleared


def contradiction(evidence: Sequence[Trial]) -> tuple[int, int] | None:
    for i, a in enumerate(evidence):
        for b in evidence[i + 1 :]:
            if same_config(a.config, b.config) and a.outcome is not b.outcome:
                return a.number, b.number
    return None


def same_config(a: Mapping[str, Value], b: Mapping[str, Value]) -> bool:
    return all(same(a[name], b[name]) for name in a)


def _at(evidence: Sequence[Trial], config: Mapping[str, Value]) -> list[Trial]:
    return [t for t in evidence if same_config(t.config, config)]


def _has(evidence: Sequence[Trial], config: Mapping[str, Value]) -> bool:
    return bool(_at(evidence, config))


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" if names else "nothing"
