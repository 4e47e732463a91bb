"""The search as a function: a space and a way to try a configuration in, a verdict out. See docs/api.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Verdict
from diag.bisect.expr import Value, parse
from diag.bisect.refine import RefinedSearch
from diag.bisect.space import Config, Constraint, Derived, Factor, Space, same
from diag.bisect.trial import Outcome, Trial
from diag.verdict.compare import TextVerdict

Shown = bool | tuple[int, int] | Outcome | Trial
"""What a trial shows: whether it failed; how many of how many failed; an outcome; or a whole Trial."""

MAX_TRIALS = 200
MAX_COUNT = 10_000
_BROKEN = TextVerdict("trial", "alone", "garbled", "", None, "")
_HEALTHY = TextVerdict("trial", "alone", "identical", "", None, "")


def factors(
    levels: Mapping[str, Sequence[Value]],
    *,
    derived: Mapping[str, str] | None = None,
    constraints: Mapping[str, str] | None = None,
    request: Sequence[str] = (),
) -> Space:
    """A space from name -> (good, bad, other levels ...). derived, constraints: name -> expression. request: names of
    factors that take no new server. Raises ValueError for what is no space."""
    made = [_factor(name, own, name in request) for name, own in levels.items()]
    if all(same(f.good, f.bad) for f in made):
        raise ValueError("no factor differs between good and bad: there is nothing to find")
    if unknown := set(request) - set(levels):
        raise ValueError(f"there is no factor {sorted(unknown)[0]!r}")
    return Space(
        tuple(made),
        tuple(Derived(name, parse(when)) for name, when in (derived or {}).items()),
        constraints=tuple(Constraint(name, parse(when)) for name, when in (constraints or {}).items()),
    )


def _factor(name: str, levels: Sequence[Value], request: bool) -> Factor:
    if isinstance(levels, str) or len(levels) < 2:
        raise ValueError(f"factor {name!r} needs a good and a bad level, not {levels!r}")
    distinct: list[Value] = []
    for level in levels:
        if not any(same(level, known) for known in distinct):
            distinct.append(level)
    apply = "request" if request else "restart"
    return Factor(name, name, "trial", levels[0], levels[1], tuple(distinct), apply=apply)  # type: ignore[arg-type]


def search(
    space: Space,
    trial: Callable[[Config], Shown],
    *,
    quick: bool = False,
    flaky: bool | None = None,
    max_trials: int = MAX_TRIALS,
    on_trial: Callable[[Trial], None] | None = None,
    seed: int = 0,
) -> Verdict:
    """Call `trial` with configurations until it is clear which factor, combination or rule makes it fail.

    trial: True, or (failed, tried), where the fault shows; Outcome.SKIP where the configuration cannot be tried.
    What it raises goes through. flaky: True reckons with chance from the start; None takes the fault to show every
    time until a trial contradicts that; False ends there. quick: stop at .95 instead of .985. on_trial: told of each
    trial. seed: draws among equals; the same seed and the same answers give the same search.
    """
    inner = BayesianSearch(
        space,
        deterministic=None if flaky else True,
        strict=flaky is False,
        quick=quick,
        max_trials=max_trials,
        seed=seed,
    )
    decide, trials = RefinedSearch(inner, space, max_trials=max_trials), list[Trial]()
    while isinstance(step := decide.next(trials), Next):
        trials.append(_trial(space, len(trials) + 1, step, trial(dict(step.config))))
        if on_trial is not None:
            on_trial(trials[-1])
    return step


def _trial(space: Space, number: int, step: Next, shown: Shown) -> Trial:
    if isinstance(shown, Trial):
        return replace(shown, number=number, purpose=step.purpose, config=step.config)
    bare = Trial(number, step.purpose, step.config, space.effective(step.config, {}), Outcome.PASS)
    match shown:
        case Outcome():
            return replace(bare, outcome=shown)
        case bool():
            return replace(bare, outcome=Outcome.FAIL if shown else Outcome.PASS)
        case (int(failed), int(tried)) if 0 <= failed <= tried and 0 < tried <= MAX_COUNT:
            texts = (_BROKEN,) * failed + (_HEALTHY,) * (tried - failed)
            return replace(bare, outcome=Outcome.FAIL if failed else Outcome.PASS, texts=texts)
        case _:
            raise TypeError(f"a trial returns True, False, (failed, tried), an Outcome or a Trial, not {shown!r}")
