"""What rule over numbers separates good from bad? "16 is bad" is rarely the rule.

Given an accused number, candidate rules are generated from the trials and the plan's other numbers:

    budget > 12                 a threshold, at every place the trials leave open
    budget + 1 != block_size    a relation with another number, off by one either way or not
    budget > block_size         beyond another number (a captured size, say)
    budget % 8 != 0             divisibility, also by another number
    budget == 16                just this value

and `sweep` proposes the value whose trial tells most of them apart, until one holds `STOP`. Rules that agree on every
value that could be tried are one; it is said in its simplest form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diag.bisect.engine.gain import entropy
from diag.bisect.engine.rows import Floats
from diag.bisect.expr import Expression, Value, parse
from diag.bisect.space import Factor, Space, differences
from diag.bisect.trial import Outcome, Trial

STOP = 0.95
SEPARABLE_BITS = 0.02
DIVISORS = (2, 3, 4, 5, 8, 10, 16, 32, 64, 128, 256)
MAX_THRESHOLDS = 64
MAX_VALUES = 512
WEIGHT = {"relation": 0.4, "threshold": 0.25, "beyond": 0.15, "divisible": 0.1, "exact": 0.1}


@dataclass(frozen=True)
class Rule:
    when: Expression
    form: str

    def holds(self, values: Mapping[str, Value]) -> bool | None:
        return self.when.tells(values)


@dataclass(frozen=True)
class Probe:
    """Try this configuration; its number may be one that the plan does not list."""

    config: Mapping[str, Value]
    purpose: str


@dataclass(frozen=True)
class Finding:
    """rule: what separates good from bad, with its probability among the rules; support: (trial number, garbled) of
    the trials that decide it; rivals: rules that are left, with theirs. rule None: none of them fits."""

    rule: Rule | None
    probability: float
    support: tuple[tuple[int, bool], ...] = ()
    rivals: tuple[tuple[Rule, float], ...] = ()


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rules(space: Space, trials: Sequence[Trial], name: str) -> list[tuple[Rule, float]]:
    """Candidate rules about factor `name` with prior weights that sum to 1, simplest of each form first. Only such as
    tell the two ends apart: a relation that holds at the good end and not at the failing one is few in its form."""
    factor = space.factor(name)
    good, bad = factor.good, factor.bad
    if not isinstance(good, int) or not isinstance(bad, int) or isinstance(good, bool) or isinstance(bad, bool):
        return []
    if abs(bad - good) < 2:  # a switch written as 0 and 1
        return []
    reports = _constant_reports(space, trials)
    ends = [space.effective(end, reports) for end in (space.good, space.bad)]
    grouped: dict[str, dict[str, Rule]] = {form: {} for form in WEIGHT}
    for form, text in _texts(space, trials, name, good, bad):
        rule = Rule(parse(text), form)
        if rule.holds(ends[0]) is not True and rule.holds(ends[1]) is not False:
            grouped[form].setdefault(text, rule)
    total = sum(WEIGHT[form] for form, of_form in grouped.items() if of_form)
    return [
        (rule, WEIGHT[form] / total / len(of_form)) for form, of_form in grouped.items() for rule in of_form.values()
    ]


def _texts(space: Space, trials: Sequence[Trial], name: str, good: int, bad: int) -> Iterator[tuple[str, str]]:
    for other in _others(space, trials, name):
        for left in (name, f"{name} + 1", f"{name} - 1"):
            yield "relation", f"{left} != {other}"
            yield "relation", f"{left} == {other}"
        for sign in (">", ">=", "<", "<="):
            yield "beyond", f"{name} {sign} {other}"
        yield "beyond", f"{name} + 1 > {other}"
        yield "divisible", f"{name} % {other} != 0"
        yield "divisible", f"{name} % {other} == 0"
    for derived in space.derived:
        if name in derived.when.names:
            yield "relation", derived.when.text
    low, high = sorted((good, bad))
    places = np.unique(np.linspace(low, high - 1, min(MAX_THRESHOLDS, high - low)).round().astype(int))
    for place in places:
        yield "threshold", f"{name} > {place}" if bad > good else f"{name} <= {place}"
    for divisor in DIVISORS:
        if (good % divisor == 0) != (bad % divisor == 0):
            yield "divisible", f"{name} % {divisor} {'!=' if bad % divisor else '=='} 0"
    yield "exact", f"{name} == {bad}"
    yield "exact", f"{name} != {good}"


def _others(space: Space, trials: Sequence[Trial], name: str) -> list[str]:
    """Other numbers: factors, and what servers report."""
    seen = {n for f in space.factors for n in [f.name] if is_number(f.good)}
    seen |= {n for t in trials for n, v in t.effective.items() if is_number(v)}
    return sorted(seen - {name})


def sweep(
    space: Space,
    trials: Sequence[Trial],
    name: str,
    *,
    show: float = 0.999,
    alarms: float = 0.001,
    low: int | None = None,
    high: int | None = None,
    tried: Sequence[Trial] = (),
) -> Probe | Finding:
    """The next value to try, or the rule. show, alarms: how often an active, an idle boot is garbled (from the search
    that accused the factor). low, high: what may be asked for; by default from 1 to the larger
    end. tried: also what gave no answer, which is not proposed again."""
    evidence = [t for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL) and is_number(t.effective.get(name))]
    candidates = rules(space, evidence, name)
    if not candidates or not evidence:
        return Finding(None, 0.0)
    told = _truth([r for r, _ in candidates], [t.effective for t in evidence])
    failed = np.array([t.outcome is Outcome.FAIL for t in evidence])
    chance = np.where(failed[:, None], show * told + alarms * (1 - told), (1 - show) * told + (1 - alarms) * (1 - told))
    log = np.log(np.maximum(chance, 1e-12)).sum(axis=0) + np.log([w for _, w in candidates])
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    options = list(_options(space, evidence, name, low, high))
    there = _truth([r for r, _ in candidates], [values for _, values in options])
    # Among what fits nothing fits well: then no rule of these forms is the rule.
    best = int(weight.argmax())
    if (np.abs(told[:, best] - failed) > 0.5).sum() > (1 - show + alarms) * len(failed) + 1:
        return Finding(None, 0.0)
    alike = (there == there[:, [best]]).all(axis=0) & (told == told[:, [best]]).all(axis=0)
    sure = float(weight[alike].sum())
    fresh = np.array(
        [not _known(config, [*trials, *tried]) or (show < 0.99 and _known(config, evidence)) for config, _ in options]
    )
    gain = _bits(there, weight, show, alarms) * fresh
    if sure < STOP and gain.max() > SEPARABLE_BITS:
        # Among equals: few changes, and values near what is known to run.
        near = np.array([_away(space, config, name) for config, _ in options])
        good = np.flatnonzero(gain >= gain.max() - 1e-9)
        config, values = options[int(good[near[good].argmin()])]
        return Probe(
            config, _purpose([r for r, _ in candidates], weight, _truth([r for r, _ in candidates], [values])[0])
        )
    rivals = tuple((candidates[i][0], float(weight[i])) for i in np.argsort(-weight)[:6] if not alike[i])
    return Finding(candidates[best][0], sure, tuple((t.number, bool(f)) for t, f in zip(evidence, failed)), rivals)


def _truth(over: Sequence[Rule], values: Sequence[Mapping[str, Value]]) -> Floats:
    """(configurations, rules) 1, 0, or a half where it cannot be told."""
    word: dict[bool | None, float] = {True: 1.0, False: 0.0, None: 0.5}
    return np.array([[word[rule.holds(v)] for rule in over] for v in values]).reshape(len(values), len(over))


def _bits(there: Floats, weight: Floats, show: float, alarms: float) -> Floats:
    p = there @ weight * (show - alarms) + alarms
    noise = [float(entropy(np.array([q, 1 - q]))) for q in (show, alarms)]
    bits: Floats = entropy(np.stack([p, 1 - p], axis=-1)) - (there @ weight * (noise[0] - noise[1]) + noise[1])
    return bits


def _away(space: Space, config: Mapping[str, Value], name: str) -> float:
    value, factor = config[name], space.factor(name)
    ends = [abs(end - value) for end in (factor.good, factor.bad) if isinstance(end, int) and isinstance(value, int)]
    return len(differences(config, space.bad)) + min(ends, default=0) / (1 + max(ends, default=0))


def _known(config: Mapping[str, Value], trials: Sequence[Trial]) -> bool:
    return any(not differences(config, t.config) for t in trials)


def _options(
    space: Space, evidence: Sequence[Trial], name: str, low: int | None, high: int | None
) -> Iterator[tuple[dict[str, Value], dict[str, Value]]]:
    """(configuration, its effective values): the failing one with another number, and the other numbers' levels."""
    reports = _constant_reports(space, evidence)
    for changed in _changes(space, evidence, name, low, high):
        config = {**space.bad, **changed}
        if space.violated(config) is None:
            yield config, space.effective(config, reports)


def _changes(
    space: Space, evidence: Sequence[Trial], name: str, low: int | None, high: int | None
) -> Iterator[dict[str, Value]]:
    factor = space.factor(name)
    yield from ({name: value} for value in _values(space, evidence, factor, low, high))
    # "16 is bad" and "16 does not fit 8" part where the other number follows.
    bad = factor.bad
    for follower in space.factors:
        if follower.name != name and is_number(follower.good) and isinstance(bad, int):
            follows = [bad, bad + 1, bad - 1] if follower.sweeps else []
            yield from ({follower.name: level} for level in dict.fromkeys([*follower.levels, *follows]))


def _values(space: Space, evidence: Sequence[Trial], factor: Factor, low: int | None, high: int | None) -> list[Value]:
    """Every whole number from 1 to the larger end, or, of many, those near what other numbers and the ends are."""
    if not factor.sweeps:
        return list(factor.levels)
    ends = [v for v in (factor.good, factor.bad) if isinstance(v, int)]
    first = low if low is not None else min(1, *ends)
    last = high if high is not None else max(ends)
    values = set(range(first, last + 1)) if last - first <= MAX_VALUES else set()
    for end in (*ends, first, last, sum(ends) // 2):
        values |= {end - 1, end, end + 1}
    for other in _others(space, evidence, factor.name):
        for t in evidence:
            at = t.effective.get(other)
            if isinstance(at, int):
                values |= {at - 1, at, at + 1}
    return sorted(v for v in values if first <= v <= last)


def _constant_reports(space: Space, evidence: Sequence[Trial]) -> dict[str, Value]:
    """What servers reported alike in every trial, beside the factors."""
    own = {f.name for f in space.factors} | {d.name for d in space.derived}
    names = {n for t in evidence for n in t.effective if n not in own}
    out: dict[str, Value] = {}
    for n in names:
        seen = {repr(t.effective.get(n)) for t in evidence}
        if len(seen) == 1:
            out[n] = evidence[0].effective[n]
    return out


def _purpose(over: Sequence[Rule], weight: Floats, there: Floats) -> str:
    sides: dict[float, list[str]] = {1.0: [], 0.0: []}
    for i in np.argsort(-weight, kind="stable"):
        if weight[i] > 1e-3 and float(there[i]) in sides:
            sides[float(there[i])].append(over[i].when.text)
    few = [s[0] + (f" and {len(s) - 1} more" if len(s) > 1 else "") if s else "nothing" for s in sides.values()]
    return f"clean rules out {few[0]}; garbled rules out {few[1]}"


def fewest(count: int) -> int:
    """Trials that at least are needed to tell `count` equal rules apart."""
    return math.ceil(math.log2(count)) if count > 1 else 0


__all__ = ["Finding", "Probe", "Rule", "fewest", "rules", "sweep"]
