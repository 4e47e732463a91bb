"""Which place of an axis is the first bad one: `decision.Search`, decided by `engine.commits`. Pure.

Both ends first, then (where the good end is no ancestor of the bad one) their merge bases. As long as no trial
contradicts another, one trial is a proof and n places in a row take ceil(log2 n). At the first contradiction, or
from the start where the fault is said to flake, trials are weighed, with rates that nobody knows.

Of a graph the mainline (first parents) is searched first. Once one merge is accused the places that it brought in are
tried as well; what was learnt until then holds for them too, because the suspects have been all places all along.

Before a place is named it must have failed itself, and what is right before it must have passed, as often as the
fault's rate asks for. A place that does not start is evidence of nothing; its neighbours are less likely to be tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.special import betaincinv

from diag.bisect.decision import Next, Rate, Rates, Verdict, VerdictKind, spent
from diag.bisect.engine import commits, stopping
from diag.bisect.engine.rates import CERTAIN
from diag.bisect.engine.rows import Bools, Floats
from diag.bisect.expr import Value
from diag.bisect.over.axis import Axis, FirstBad
from diag.bisect.trial import Outcome, Trial

MAX_TRIALS = 64
FLAKY_TRIALS = 200
HELD = 0.95
"""Where it cannot be narrowed down to one place: the smallest set that holds this much is named."""
SKIPPED_TWICE = 2


@dataclass(frozen=True)
class Seen:
    """One trial that is evidence. garbled of asked: 1 of 1, or 0 of 1, where the trial did not count."""

    place: int
    failed: bool
    garbled: int
    asked: int
    number: int


@dataclass(frozen=True)
class _View:
    """What the trials say. one_build: whether places of one build count as one. exact: whether a trial is a proof."""

    axis: Axis
    seen: tuple[Seen, ...]
    skipped: Mapping[int, int] = field(default_factory=dict)

    def at(self, place: int) -> list[Seen]:
        return [one for one in self.seen if one.place == place]

    @cached_property
    def one_build(self) -> bool:
        """Until two places that are said to be one build end differently."""
        ended: dict[str, tuple[int, bool]] = {}
        for one in self.seen:
            build = self.axis.places[one.place].build
            place, failed = ended.setdefault(build, (one.place, one.failed)) if build else (one.place, one.failed)
            if place != one.place and failed is not one.failed:
                return False
        return True

    def like(self, place: int) -> list[int]:
        """The places that are the same trial as this one."""
        build = self.axis.places[place].build
        return self.axis.builds[build] if build and self.one_build else [place]

    def told_of(self, place: int, *, itself: bool = False) -> list[Seen]:
        """Trials of this place, or of one that is the same trial."""
        like = {place} if itself else set(self.like(place))
        return [one for one in self.seen if one.place in like]

    @cached_property
    def prior(self) -> Floats:
        """Nothing can break where nothing that matters was changed."""
        return np.where(self.axis.unchanged, 0.0, self.axis.suspects) if self.one_build else self.axis.suspects

    @cached_property
    def chance(self) -> Floats:
        """(places,) that each can be tried: not what did not start, and less what lies beside it with nothing between
        them that did."""
        places = np.arange(len(self.axis.places))
        chance = np.ones(len(places))
        chance[: self.axis.bases] = 0.0
        started = sorted({one.place for one in self.seen})
        for at in self.skipped:
            low = max((s for s in started if s < at), default=-1)
            high = min((s for s in started if s > at), default=len(places))
            beside = (places > low) & (places < high)
            chance[beside] *= 1 - 0.5 ** np.abs(places[beside] - at)
            chance[self.like(at)] = 0.0
        if self.one_build:  # the first of its kind stands for all of them
            chance[np.array(self.axis.first_of_build) != places] = 0.0
        return chance


class FirstBadSearch:
    """flaky: the fault does not show every time. seed: decides among equals."""

    def __init__(self, axis: Axis, *, flaky: bool = False, max_trials: int | None = None, seed: int = 0) -> None:
        self.axis, self.flaky, self.seed = axis, flaky, seed
        self.max_trials = max_trials or (FLAKY_TRIALS if flaky else MAX_TRIALS)

    # protocol

    def next(self, trials: Sequence[Trial]) -> Next | Verdict:
        steps = self.next_batch(trials, (), 1)
        return steps if isinstance(steps, Verdict) else steps[0]

    def next_batch(
        self, trials: Sequence[Trial], pending: Sequence[Mapping[str, Value]], hosts: int
    ) -> list[Next] | Verdict:
        view = self._view(trials)
        waiting = [at for config in pending if (at := self.axis.index.get(str(config[self.axis.name]))) is not None]
        steps = self._opening(view) or self._middle(view, waiting, hosts)
        if isinstance(steps, Verdict):
            return [] if pending else steps
        free = [step for step in steps if not self._is_pending(step, pending)][:hosts]
        if free and spent(trials) + len(pending) >= self.max_trials:
            return [] if pending else self._narrowed(view, f"{self.max_trials} trials are spent")
        return free

    def expected_trials(self, trials: Sequence[Trial]) -> int:
        view = self._view(trials)
        ahead = sum(not view.at(at) for at in (*range(self.axis.bases), self.axis.bad))
        if not any(one.failed for one in view.at(self.axis.bad)):  # nothing to search yet
            view = replace(view, seen=(), skipped={})
            ahead = max(ahead, 1)
        step, exact = self._decide(view, (), 1)
        weight = step.weight[step.weight > 0]
        bits = float(-(weight * np.log2(weight)).sum())
        # With chance a trial settles about half a bit, and the end is confirmed.
        return len(trials) + ahead + (math.ceil(bits) if exact else math.ceil(2 * bits) + 3)

    def standing(self, trials: Sequence[Trial], most: int = 1) -> tuple[tuple[FirstBad, float], ...]:
        """Nothing before there is something to find; the likeliest is what the search would name."""
        view = self._view(trials)
        if not any(one.failed for one in view.at(self.axis.bad)):
            return ()
        step, _ = self._decide(view, (), 1)
        places = sorted(np.flatnonzero(step.weight > 0), key=lambda at: (at != step.culprit, -step.weight[at]))
        return tuple((self.axis.first_bad(int(at)), float(step.weight[at])) for at in places[:most])

    # what the trials say

    def _view(self, trials: Sequence[Trial]) -> _View:
        wanted = self._signatures(trials)
        seen: list[Seen] = []
        skipped: dict[int, int] = {}
        for trial in trials:
            place = self._place(trial)
            if trial.outcome is Outcome.INFRA:
                continue
            failed = trial.outcome is Outcome.FAIL
            # Another failure than the one that is looked for hides it: the place cannot be judged.
            hidden = failed and wanted and trial.signature not in wanted
            if place is None or trial.outcome is Outcome.SKIP or hidden:
                asked = self.axis.index.get(str(trial.config.get(self.axis.name)))
                at = place if place is not None else asked
                skipped.update({at: skipped.get(at, 0) + 1} if at is not None else {})
                continue
            counted = trial.garbled > 0 or not failed
            garbled, asked = (trial.garbled, len(trial.texts)) if trial.texts and counted else (int(failed), 1)
            seen.append(Seen(place, failed, garbled if failed else 0, asked, trial.number))
        return _View(self.axis, tuple(seen), {at: n for at, n in skipped.items() if all(s.place != at for s in seen)})

    def _place(self, trial: Trial) -> int | None:
        """Where it was made, by what was in force; None for a place that is not on the axis."""
        name = self.axis.name
        return self.axis.index.get(str(trial.effective.get(name, trial.config.get(name))))

    def _signatures(self, trials: Sequence[Trial]) -> set[str]:
        """Kinds of failure that the bad end shows; empty where none is told."""
        shown = {t.signature for t in trials if t.outcome is Outcome.FAIL and self._place(t) == self.axis.bad}
        return shown if all(shown) else set()

    # the steps

    def _opening(self, view: _View) -> list[Next] | Verdict | None:
        """Both ends, and the merge bases: without them there is nothing to find."""
        wanted: list[Next] = []
        for at in (0, self.axis.bad, *range(1, self.axis.bases)):
            step = self._bad_end(view) if at == self.axis.bad else self._base(view, at)
            if isinstance(step, Verdict):
                return step
            wanted += [step] if step is not None else []
        return wanted or None

    def _base(self, view: _View, at: int) -> Next | Verdict | None:
        called = self._called(at)
        seen, failed = view.at(at), [one for one in view.at(at) if one.failed]
        if len(failed) > int(self.flaky) and 2 * len(failed) >= len(seen):
            if at == 0:
                return self._end(view, "environmental", f"{called}, the good end, fails itself")
            return self._end(
                view,
                "environmental",
                f"{called}, where the two ends part, fails too: it was mended on the way to the good end, "
                "and nothing broke on the way to the bad one",
            )
        if len(seen) - len(failed) >= self._passes_of_an_end(view):
            return None
        if view.skipped.get(at, 0) >= SKIPPED_TWICE:
            return self._end(view, "environmental", f"{called} cannot be tried, and what is good is not known then")
        what = "the good end" if at == 0 else "where the two ends part: is it good, too?"
        return Next(self.axis.config(at), what + (": its texts are what others are compared with" if at == 0 else ""))

    def _passes_of_an_end(self, view: _View) -> int:
        bad = view.at(self.axis.bad)
        failed = sum(one.failed for one in bad)
        return stopping.good_passes(failed, len(bad)) if failed else 1

    def _bad_end(self, view: _View) -> Next | Verdict | None:
        bad = view.at(self.axis.bad)
        if any(one.failed for one in bad):
            return None
        tries = stopping.REPRODUCE_TRIES if self.flaky else 2
        if len(bad) >= tries:
            return self._end(view, "not_reproduced", f"{self._called(self.axis.bad)} was healthy {len(bad)} times")
        if view.skipped.get(self.axis.bad, 0) >= SKIPPED_TWICE:
            return self._end(view, "not_reproduced", f"{self._called(self.axis.bad)} cannot be tried")
        again = "it did not fail: once more" if bad else "the bad end: does it fail here at all?"
        return Next(self.axis.config(self.axis.bad), again)

    def _middle(self, view: _View, waiting: Sequence[int], hosts: int) -> list[Next] | Verdict:
        step, exact = self._decide(view, waiting, hosts)
        if step.settled:
            missing = self._unconfirmed(view, step.culprit, exact)
            return missing or self._named(view, step, exact)
        if step.index is None:
            if waiting:
                return []
            return self._narrowed(view, "what is left cannot be told apart: what lies between cannot be tried")
        return [Next(self.axis.config(at), self._purpose(view, step, at, exact)) for at in (step.index, *step.more)]

    def _decide(self, view: _View, waiting: Sequence[int], hosts: int) -> tuple[commits.Step, bool]:
        """(what to try, whether a trial is a proof)"""
        if not self.flaky:
            for trials in (self._of_all_alike(view), [(one.place, one.failed) for one in view.seen]):
                step = self._halve(view, trials, waiting, hosts)
                if step is not None:
                    return step, True
        return self._weigh(view, waiting, hosts), False

    @staticmethod
    def _of_all_alike(view: _View) -> list[tuple[int, bool]]:
        """Each trial as one of every place of its build."""
        return [(place, one.failed) for one in view.seen for place in view.like(one.place)]

    def _halve(
        self, view: _View, trials: Sequence[tuple[int, bool]], waiting: Sequence[int], hosts: int
    ) -> commits.Step | None:
        def among(chance: Floats) -> commits.Step | None:
            return commits.halve(
                self.axis.contains,
                trials,
                prior=view.prior,
                chance=chance,
                seed=self.seed,
                pending=waiting,
                count=hosts,
            )

        step = among(view.chance * self.axis.mainline)
        if step is None or step.settled or step.index is not None:
            return step
        return among(view.chance)

    def _weigh(self, view: _View, waiting: Sequence[int], hosts: int) -> commits.Step:
        trials = [(one.place, one.garbled, one.asked) for one in view.seen]

        def among(chance: Floats) -> commits.Step:
            return commits.decide(
                self.axis.contains,
                trials,
                prior=view.prior,
                chance=chance,
                certain=CERTAIN,
                seed=self.seed,
                pending=waiting,
                count=hosts,
            )

        step = among(view.chance * self.axis.mainline)
        merges = np.bincount(self.axis.brought_in_by, weights=step.weight)
        if step.settled or (step.index is not None and merges.max() < stopping.STOP):
            return step
        return among(view.chance)

    def _unconfirmed(self, view: _View, culprit: int, exact: bool) -> list[Next]:
        """What must still be seen before it is named."""
        name = self._called(culprit)
        wanted = []
        if culprit not in view.skipped and not any(one.failed for one in view.told_of(culprit)):
            wanted.append(Next(self.axis.config(culprit), f"{name} itself: must fail"))
        passes = 1 if exact else stopping.passes_needed(self._rate_of(view, culprit))
        for parent in self._before(culprit):
            told = view.told_of(parent, itself=self.axis.declared)
            if parent in view.skipped or (parent < self.axis.bases and exact):
                continue
            if sum(not one.failed for one in told) < passes:
                at = parent if self.axis.declared else view.like(parent)[0]
                wanted.append(Next(self.axis.config(at), f"right before {name}: must pass"))
        return wanted

    def _before(self, place: int) -> list[int]:
        return list(dict.fromkeys(self.axis.places[place].parents))

    def _rate_of(self, view: _View, culprit: int) -> float:
        active = [one.failed for one in view.seen if self.axis.contains[one.place, culprit]]
        return stopping.fail_rate(sum(active), len(active))

    # verdicts

    def _named(self, view: _View, step: commits.Step, exact: bool) -> Verdict:
        at = step.culprit
        contains: Bools = self.axis.contains[:, at]
        parents = self._before(at)
        necessary = [one.number for p in parents for one in view.told_of(p) if not one.failed]
        return Verdict(
            kind="culprit",
            why=self._how_sure(view, at, exact),
            culprit=self.axis.first_bad(at),
            confidence=float(step.weight[at]),
            sufficient=tuple(one.number for one in view.told_of(at) if one.failed),
            necessary=tuple(sorted(set(necessary))),
            alive=self._left(step.weight, exact),
            rates=None if exact else _rates(view.seen, contains),
        )

    def _how_sure(self, view: _View, at: int, exact: bool) -> str:
        parents = self._before(at)
        said = "it fails, and what is right before it does not"
        if len(parents) > 1:
            said = "a merge that fails though all its parents are clean"
        if any(p in view.skipped for p in parents):
            said = "it fails; what is right before it cannot be tried, but other trials clear it"
        if not exact and not self.flaky:
            said += "; trials contradict each other, so that chance was reckoned with"
        if self.axis.unchanged[at]:
            said += ". Distrust it: nothing that matters was changed there, it is one build with what is before it"
        return said

    def _narrowed(self, view: _View, why: str) -> Verdict:
        return self._end(view, "narrowed", why)

    def _end(self, view: _View, kind: VerdictKind, why: str) -> Verdict:
        step, exact = self._decide(view, (), 1)
        return Verdict(kind, why, alive=self._left(step.weight, exact) if kind == "narrowed" else ())

    def _left(self, weight: Floats, exact: bool) -> tuple[tuple[FirstBad, float], ...]:
        """The smallest set that holds HELD, likeliest first; all that is possible where trials are proofs."""
        order = np.lexsort((np.arange(len(weight)), -weight))
        held, left = 0.0, []
        for at in order:
            if weight[at] <= 0 or (not exact and held >= HELD):
                break
            held += weight[at]
            left.append((self.axis.first_bad(int(at)), float(weight[at])))
        return tuple(left)

    # words

    def _called(self, at: int) -> str:
        return f"{self.axis.name} {self.axis.called(at)}"

    def _purpose(self, view: _View, step: commits.Step, at: int, exact: bool) -> str:
        fails = self.axis.contains[at]
        if exact:
            left = step.weight > 0
            both = int((left & fails).sum()), int((left & ~fails).sum())
            return f"of {sum(both)} suspects a failure leaves {both[0]}, a pass {both[1]}"
        share = float(step.weight[fails].sum())
        leader = self._called(step.culprit)
        return f"it fails with {share:.0%} probability; so far {leader} leads with {step.weight[step.culprit]:.0%}"

    def _is_pending(self, step: Next, pending: Sequence[Mapping[str, Value]]) -> bool:
        name = self.axis.name
        return any(step.config[name] == config.get(name) for config in pending)


def _rates(seen: Sequence[Seen], active: Bools) -> Rates:
    with_it = [one.failed for one in seen if active[one.place]]
    without = [one.failed for one in seen if not active[one.place]]
    return Rates(_rate(sum(with_it), len(with_it)), _rate(sum(without), len(without)))


def _rate(garbled: int, tried: int) -> Rate:
    """With its 95 % interval (Jeffreys)."""
    low = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.025)) if garbled else 0.0
    high = float(betaincinv(garbled + 0.5, tried - garbled + 0.5, 0.975)) if garbled < tried else 1.0
    return Rate(garbled, tried, low, high)
