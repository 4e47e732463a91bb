"""What decides: trials so far in, the next configuration or a verdict out. Pure: no I/O, no clock.

`Search` is the protocol; diag.bisect.bayesian has the search itself, `BothEnds` only asks whether the failing
configuration still fails. What naming a culprit claims is here too, and which trials show it:

    sufficient   the good configuration with the culprit and nothing else must fail (of "a or b": with each alone)
    necessary    the failing configuration without the culprit must pass (of "a and b": without each of them)

so that every innocent factor has a trial that clears it, and every guilty one a trial that convicts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from diag.bisect.expr import Value
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Config, Space, differences, same
from diag.bisect.trial import Outcome, Trial

VerdictKind = Literal["culprit", "not_reproduced", "environmental", "narrowed", "unexplained", "clean", "fails"]
"""clean, fails: the answers of `BothEnds`, which only asks whether the failing configuration still fails."""


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
    forbidden: for some of the inseparable ones, the constraint that forbids what would tell them apart. other_failures:
    trials that failed in another way than the failing end does, with their signature; they count for nothing.
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
    forbidden: Mapping[str, str] = field(default_factory=dict)
    other_failures: tuple[tuple[int, str], ...] = ()

    @property
    def runners_up(self) -> tuple[tuple[Hypothesis, float], ...]:
        """Others with their probability, likeliest first; what nothing tells from the culprit is not among them."""
        return tuple((h, w) for h, w in self.alive if h is not self.culprit and h not in self.inseparable)


class Search(Protocol):
    """What decides. `run` knows no more than this."""

    def next(self, trials: Sequence[Trial]) -> Next | Verdict: ...

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        """What `hosts` free hosts should try now, while `pending` configurations are still tried elsewhere: at most one
        each, none where it is better to wait for what is pending. A culprit as soon as it is shown, whatever is
        pending: one at a time it would have been named as well. Another verdict only when nothing is pending."""
        ...

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        """How many trials the whole run is likely to take, those done included."""
        ...


@runtime_checkable
class Leads(Protocol):
    """A search that says, for those who wait and for the report, what it holds likely so far."""

    def standing(self, trials: Sequence[Trial], most: int = 1) -> tuple[tuple[Hypothesis, float], ...]:
        """The likeliest `most` with their share of what is possible; none while nothing can be said."""
        ...


class BothEnds:
    """Does the failing configuration (still) fail? Two trials: the good one for its texts, then the failing one."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        # By configuration and not by place: each of several hosts begins with the good one.
        good = [t for t in trials if same_config(t.config, self.space.good)]
        bad = [t for t in trials if same_config(t.config, self.space.bad)]
        if not good:
            return Next(self.space.good, "the good configuration: its texts are what the other is compared with")
        if good[0].outcome is not Outcome.PASS:
            return Verdict("environmental", "the good configuration is not healthy itself")
        if not bad:
            return Next(self.space.bad, "the failing configuration: does it still fail?")
        if bad[0].outcome is Outcome.PASS:
            return Verdict("clean", "the failing configuration is healthy")
        if bad[0].outcome is not Outcome.FAIL:
            return Verdict("unexplained", f"the failing configuration gave no answers: {bad[0].reason}")
        return Verdict("fails", f"the failing configuration fails: {bad[0].reason}")

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


def spent(trials: Sequence[Trial]) -> int:
    """Trials as `max_trials` counts them: the control of each further host is not the search's."""
    return len(trials) - max(0, len({t.host for t in trials}) - 1)


def signature_of(space: Space, trials: Sequence[Trial]) -> str:
    """How the failing configuration fails: the signature of its first failure, "" while there is none."""
    return next((t.signature for t in trials if t.outcome is Outcome.FAIL and same_config(t.config, space.bad)), "")


def fails_otherwise(trial: Trial, signature: str) -> bool:
    """Whether it failed in another way than the failing configuration does: that says nothing about the fault."""
    return trial.outcome is Outcome.FAIL and "" not in (signature, trial.signature) and trial.signature != signature


def evidence_of(space: Space, trials: Sequence[Trial]) -> list[Trial]:
    """What says something about the fault: it passed, or failed as the failing configuration does."""
    wanted = signature_of(space, trials)
    return [t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL) and not fails_otherwise(t, wanted)]


def contradicts(hypothesis: Hypothesis, trial: Trial) -> bool:
    active = hypothesis.active(trial.effective)
    return active is not None and active is not (trial.outcome is Outcome.FAIL)


def explains(hypothesis: Hypothesis, evidence: Sequence[Trial]) -> bool:
    """Whether it foretells every failure. One whose values nobody could read is contradicted by nothing, and explains
    nothing."""
    return all(hypothesis.active(t.effective) is True for t in evidence if t.outcome is Outcome.FAIL)


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


def same_config(a: Mapping[str, Value], b: Mapping[str, Value]) -> bool:
    if a is b:
        return True
    if len(a) == len(b) and a != b:  # most of them, and soon seen; 1 and True are equal, but not the same
        return False
    return all(same(a[name], b[name]) for name in a)
