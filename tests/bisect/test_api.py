"""The search as a function: what it takes, what it returns, what it refuses."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diag import bisect
from diag.bisect.expr import Value

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
SPACE = bisect.factors({"a": (0, 1), "b": (0, 1), "c": (0, 1)})


def fault_in_b(config: Mapping[str, Value]) -> bool:
    return config["b"] == 1


def test_the_page_runs() -> None:
    ran = doctest.testfile(str(DOCS / "api.md"), module_relative=False)
    assert (ran.failed, ran.attempted > 10) == (0, True)


def test_the_module_stays_light() -> None:
    """numpy and scipy are imported with the search, not with its name."""
    code = "import sys, diag.bisect; print([m for m in ('numpy', 'scipy') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "told",
    [
        lambda failed: failed,
        lambda failed: (7, 32) if failed else (0, 32),
        lambda failed: bisect.Outcome.FAIL if failed else bisect.Outcome.PASS,
        lambda failed: bisect.Trial(
            0, "", {}, {}, bisect.Outcome.FAIL if failed else bisect.Outcome.PASS, reason="as I say"
        ),
    ],
)
def test_whatever_a_trial_returns(told: Any) -> None:
    def trial(config: Mapping[str, Value]) -> Any:
        shown = told(fault_in_b(config))
        return shown if not isinstance(shown, bisect.Trial) else _effective(shown, config)

    verdict = bisect.search(SPACE, trial)
    assert verdict.culprit is not None
    assert verdict.culprit.name == "b=1"


def _effective(trial: bisect.Trial, config: Mapping[str, Value]) -> bisect.Trial:
    return bisect.Trial(0, "", config, dict(config), trial.outcome, reason=trial.reason)


@pytest.mark.parametrize("shown", [None, 1, "fail", (1, 2, 3), (3, 2), (-1, 4), (0, 0), (0.5, 1)])
def test_anything_else_is_refused(shown: Any) -> None:
    with pytest.raises(TypeError, match="a trial returns"):
        bisect.search(SPACE, lambda config: shown)


def test_what_a_trial_raises_goes_through() -> None:
    def trial(config: Mapping[str, Value]) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bisect.search(SPACE, trial)


def test_a_trial_is_told_of_and_may_do_what_it_likes_with_its_configuration() -> None:
    seen: list[bisect.Trial] = []

    def trial(config: Any) -> bool:
        failed = fault_in_b(config)
        config.clear()
        return failed

    verdict = bisect.search(SPACE, trial, on_trial=seen.append)
    assert [t.number for t in seen] == list(range(1, len(seen) + 1))
    assert all(set(t.config) == {"a", "b", "c"} for t in seen)
    assert verdict.kind == "culprit"


def test_the_budget_is_kept() -> None:
    seen: list[bisect.Trial] = []
    verdict = bisect.search(SPACE, fault_in_b, max_trials=3, on_trial=seen.append)
    assert (verdict.kind, len(seen)) == ("narrowed", 3)


def contradicting(at: int) -> Any:
    """b breaks it, but the trial of that number shows the opposite."""
    count = 0

    def trial(config: Mapping[str, Value]) -> bool:
        nonlocal count
        count += 1
        return fault_in_b(config) != (count == at)

    return trial


def test_a_contradiction_ends_it_only_where_that_is_asked_for() -> None:
    ended = bisect.search(SPACE, contradicting(4), flaky=False)
    assert (ended.kind, ended.culprit) == ("unexplained", None)
    went_on = bisect.search(SPACE, contradicting(4))
    assert went_on.culprit is not None
    assert went_on.culprit.name == "b=1"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: bisect.factors({"a": (1,)}), "needs a good and a bad level"),
        (lambda: bisect.factors({"a": "on"}), "needs a good and a bad level"),
        (lambda: bisect.factors({"a": (1, 1)}), "nothing to find"),
        (lambda: bisect.factors({}), "nothing to find"),
        (lambda: bisect.factors({"a": (0, 1)}, request=["b"]), "there is no factor 'b'"),
        (lambda: bisect.factors({"a": (0, 1)}, derived={"d": "a +"}), "not an expression"),
        (lambda: bisect.factors({"a": (0, 1)}, constraints={"c": "a == 0"}), "the failing configuration violates 'c'"),
    ],
)
def test_what_is_no_space_is_refused(made: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_there_is_nothing_else_in_the_module() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        bisect.nothing  # noqa: B018
