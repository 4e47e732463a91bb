"""After a number is accused: which rule? A search around a search, see diag.bisect.engine.numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from diag.bisect.decision import (
    Leads,
    Next,
    Rejected,
    Search,
    Verdict,
    contradicts,
    evidence_of,
    one_at_a_time,
    spent,
)
from diag.bisect.engine import numbers
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Config, Derived, Space
from diag.bisect.trial import Outcome, Trial

SWEEP = "which rule about"
"""How the purpose of the sweep's trials begins: that is what tells them from the trials of the search before."""


class RefinedSearch:
    """`inner` names a culprit; if that is one number at its failing level, a short sweep finds the rule behind it."""

    def __init__(self, inner: Search, space: Space, *, max_sweep: int = 6, max_trials: int = 1000) -> None:
        self.inner, self.space = inner, space
        self.max_sweep, self.max_trials = max_sweep, max_trials

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        before = self._before(trials)
        step = self.inner.next(before)
        name = _number(step) if isinstance(step, Verdict) else None
        return step if isinstance(step, Next) or name is None else self._swept(step, name, trials, len(before))

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        before = self._before(trials)
        if len(before) == len(trials):
            steps = self.inner.next_batch(trials, pending, hosts)
            if not isinstance(steps, Verdict):
                return steps
            step = self.next(trials)
            if isinstance(step, Verdict):
                return step
        return one_at_a_time(self, trials, pending, hosts)

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        before = self._before(trials)
        return self.inner.expected_trials(before) if len(before) == len(trials) else len(trials) + 1

    def standing(self, trials: Sequence[Trial], most: int = 1) -> tuple[tuple[Hypothesis, float], ...]:
        """As the search before the sweep sees it."""
        return self.inner.standing(self._before(trials), most) if isinstance(self.inner, Leads) else ()

    def _before(self, trials: Sequence[Trial]) -> list[Trial]:
        return list(itertools.takewhile(lambda t: not t.purpose.startswith(SWEEP), trials))

    def _swept(self, verdict: Verdict, name: str, trials: Sequence[Trial], before: int) -> Next | Verdict:
        show, alarms = _rates(verdict)
        evidence = evidence_of(self.space, trials)
        step = numbers.sweep(self.space, evidence, name, show=show, alarms=alarms, tried=trials)
        if isinstance(step, numbers.Probe):
            if len(trials) - before < self.max_sweep and spent(trials) < self.max_trials:
                return Next(step.config, f"{SWEEP} {name}: {step.purpose}")
            return replace(verdict, why=f"{verdict.why}; the rule about {name} is not settled")
        if step.rule is None or step.probability < numbers.STOP or len(trials) == before:
            return verdict
        return self._with_rule(verdict, name, step, step.rule, evidence)

    def _with_rule(
        self, verdict: Verdict, name: str, found: numbers.Finding, rule: numbers.Rule, evidence: Sequence[Trial]
    ) -> Verdict:
        """The same verdict about the rule; the number at its failing level is rejected by what contradicts it."""
        accused = verdict.culprit
        against = [t for t in evidence if accused is not None and contradicts(accused, t)]
        rejected = [
            Rejected(accused, t.number, "failed without it" if t.outcome is Outcome.FAIL else "passed with it")
            for t in against[:1]
            if accused is not None
        ]
        supports = ", ".join(str(number) for number, _ in found.support)
        return replace(
            verdict,
            culprit=Hypothesis("derived", (Derived(name, rule.when, self.space.factor(name).title),)),
            confidence=verdict.confidence * found.probability,
            why=f"{verdict.why}; {rule.when.text} separates good from bad (trials {supports})",
            inseparable=tuple(h for h in verdict.inseparable if not any(contradicts(h, t) for t in evidence)),
            rejected=(*rejected, *verdict.rejected),
        )


def _number(verdict: Verdict) -> str | None:
    """The number that is accused, at its failing level or in relation to another."""
    accused = verdict.culprit
    return accused.members[0].name if accused is not None and accused.kind in ("single", "relation") else None


def _rates(verdict: Verdict) -> tuple[float, float]:
    """How often an active and an idle boot is garbled, as the search before has found it."""
    rates = verdict.rates
    if rates is None or (rates.active.garbled == rates.active.tried and rates.idle.garbled == 0):
        return 0.999, 0.001
    show = (rates.active.garbled + 1) / (rates.active.tried + 1.5)
    return show, (rates.idle.garbled + 0.5) / (rates.idle.tried + 20)
