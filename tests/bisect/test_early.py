"""Runs that end before they are searched: ends that are one and the same to the server, and flags it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_server import BAD, GOOD, PLAN, Bench, FakeClient

from diag.bisect import plan
from diag.bisect.early import ends_alike, no_effect
from diag.bisect.expr import Value
from diag.bisect.space import Config, Factor, Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import ServerDied
from diag.report import bisect as report

SPACE = Space(
    (
        Factor("budget", "--budget", "flag", 7, 16, (7, 16)),
        Factor("graph", "--no-graph", "switch_off", False, True, (False, True)),
    )
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    path = tmp_path / "two.yaml"
    path.write_text(PLAN.replace("b: {env: B", "b: {reads: b, env: B"))
    return Bench(plan.load(str(path)), tmp_path / "runs", monkeypatch)


def trial(number: int, asked: Config, in_force: Config, outcome: Outcome = Outcome.PASS) -> Trial:
    return Trial(number, "", asked, in_force, outcome)


def test_a_factor_without_effect_is_told_with_how_that_is_known() -> None:
    first = trial(1, SPACE.good, {"budget": 7, "graph": False})
    second = trial(2, SPACE.bad, {"budget": 7, "graph": True})
    assert no_effect(SPACE, [first, second]) == {"budget": "asked for 7, 16, the server reports 7 each time"}
    assert no_effect(SPACE, [first]) == {}
    skipped = trial(3, SPACE.bad, {"budget": 7, "graph": False}, Outcome.SKIP)
    assert no_effect(SPACE, [first, skipped]) == {}


@pytest.mark.parametrize(("outcome", "kind"), [(Outcome.PASS, "not_reproduced"), (Outcome.FAIL, "unexplained")])
def test_ends_that_are_the_same_in_force_are_nothing_to_search_between(outcome: Outcome, kind: str) -> None:
    good = trial(1, SPACE.good, SPACE.good)
    bad = trial(2, SPACE.bad, SPACE.good, outcome)
    verdict = ends_alike(SPACE, [good, bad])
    assert verdict is not None
    assert (verdict.kind, "takes none of the factors" in verdict.why) == (kind, True)
    assert ends_alike(SPACE, [good]) is None
    assert ends_alike(SPACE, [good, trial(2, SPACE.bad, {**SPACE.good, "graph": True}, outcome)]) is None


@pytest.mark.parametrize("garbles", [False, True])
def test_a_server_that_takes_no_factor_ends_the_run_after_both_ends(bench: Bench, garbles: bool) -> None:
    result = bench.run(lambda config, start: FakeClient(garbles and start == 2, {"a": 0, "b": 0}))
    assert [t.config for t in result.trials] == [GOOD, BAD]
    assert result.verdict.kind == ("unexplained" if garbles else "not_reproduced")
    lines = [line for _, line in report.page(result, bench.plan.space, "box", None)]
    assert f"next: {report.NOTHING_TAKES_EFFECT}" in lines
    told = report.document(result, bench.plan.space, "box", "p", None)
    assert told["no_effect"] == ["a", "b"]
    assert told["no_effect_because"]["a"] == "asked for 0, 1, the server reports 0 each time"


UNKNOWN = ["usage: launch_server.py [-h] [--port PORT]", "launch_server.py: error: unrecognized arguments: --a 0"]


@pytest.mark.parametrize(("end", "name"), [(GOOD, "good"), (BAD, "failing")])
def test_a_flag_that_this_version_does_not_know_is_named_with_its_factor(
    bench: Bench, end: dict[str, Value], name: str
) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        if config == end:
            raise ServerDied("It ended with exit code 2.", next="Look.", details=UNKNOWN)
        return FakeClient(False, {"a": config["a"]})

    with pytest.raises(ServerDied) as caught:
        bench.run(script)
    assert caught.value.what.startswith(f"The {name} configuration")
    assert "does not know --a (factor 'a')" in caught.value.what
    assert "Leave it out of the plan" in caught.value.next


def test_a_level_that_is_refused_between_the_ends_is_skipped_and_named(bench: Bench) -> None:
    log = ["launch_server.py: error: argument --a: invalid choice: '1' (choose from '0')"]

    def script(config: dict[str, Value], start: int) -> FakeClient:
        if config not in (GOOD, BAD):
            raise ServerDied("It ended with exit code 2.", next="Look.", details=log)
        return FakeClient(config["a"] == 1, {"a": config["a"]})

    skipped = [t for t in bench.run(script).trials if t.outcome is Outcome.SKIP]
    assert skipped
    assert all(t.reason.startswith("The engine refuses a level of --a (factor 'a')") for t in skipped)
