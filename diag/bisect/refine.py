"""After a number is accused: which rule? A search around a search, see diag.bisect.engine.numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.bisect.decision import Next, Search, Verdict, one_at_a_time
from diag.bisect.engine import numbers
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.space import Config, Derived, Factor, Space
from diag.bisect.trial import Trial


class RefinedSearch:
    """`inner` names a culprit; if that is one number at its failing level, a short sweep finds the rule behind it."""

    def __init__(self, inner: Search, space: Space, *, max_sweep: int = 6) -> None:
        self.inner, self.space, self.max_sweep = inner, space, max_sweep
        self._known: dict[int, tuple[tuple[Trial, ...], Verdict]] = {}

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        settled = self._settled(trials)
        if isinstance(settled, Next):
            return settled
        upto, verdict = settled
        accused = verdict.culprit
        if accused is None or accused.kind != "single" or not isinstance(accused.members[0], Factor):
            return verdict
        name = accused.members[0].name
        rates = verdict.rates
        show = (rates.active.garbled + 1) / (rates.active.tried + 1.5) if rates is not None else 0.999
        alarms = (rates.idle.garbled + 0.5) / (rates.idle.tried + 20) if rates is not None else 0.001
        if rates is not None and rates.active.garbled == rates.active.tried and rates.idle.garbled == 0:
            show, alarms = 0.999, 0.001
        step = numbers.sweep(self.space, trials, name, show=show, alarms=alarms)
        if isinstance(step, numbers.Probe):
            if len(trials) - upto < self.max_sweep:
                return Next(step.config, f"which rule about {name}: {step.purpose}")
            return replace(verdict, why=f"{verdict.why}; the rule about {name} is not settled")
        if step.rule is None or step.probability < numbers.STOP or len(trials) == upto:
            return verdict
        derived = Derived(name, step.rule.when)
        supports = ", ".join(str(number) for number, _ in step.support)
        return replace(
            verdict,
            culprit=Hypothesis("derived", (derived,)),
            confidence=verdict.confidence * step.probability,
            why=f"{verdict.why}; {step.rule.when.text} separates good from bad (trials {supports})",
            inseparable=(),
        )

    def next_batch(self, trials: Sequence[Trial], pending: Sequence[Config], hosts: int) -> list[Next] | Verdict:
        if isinstance(self._settled(trials), Next):
            return self.inner.next_batch(trials, pending, hosts)
        return one_at_a_time(self, trials, pending, hosts)

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        settled = self._settled(trials)
        return self.inner.expected_trials(trials) if isinstance(settled, Next) else len(trials) + 1

    def _settled(self, trials: Sequence[Trial]) -> Next | tuple[int, Verdict]:
        """The shortest run of trials after which the inner search was done; what follows is the sweep's."""
        for upto, (prefix, verdict) in self._known.items():
            if tuple(trials[:upto]) == prefix:
                return upto, verdict
        for upto in range(len(trials)):
            step = self.inner.next(trials[:upto])
            if isinstance(step, Verdict):
                self._known[upto] = (tuple(trials[:upto]), step)
                return upto, step
        last = self.inner.next(trials)
        return last if isinstance(last, Next) else (len(trials), last)
