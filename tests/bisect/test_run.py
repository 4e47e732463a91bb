"""The shell around the search, with servers that are scripted: what is written down, and when; what ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_server import BAD, GOOD, PLAN, Bench, FakeClient

from diag.bisect import bench as benches
from diag.bisect import plan, run
from diag.bisect.bench import fills_for
from diag.bisect.decision import Verdict
from diag.bisect.expr import Value
from diag.bisect.trial import Outcome
from diag.errors import (
    AuthenticationFailed,
    DiagError,
    HostKeyChanged,
    HostProgramFailed,
    HostUnreachable,
    LinkLost,
    PortInUse,
    ServerDied,
    ServerNotHealthy,
    UsageError,
)
from diag.hosts.inventory import Host
from diag.serving.client import Answer, Prompt
from diag.serving.server import Launch


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    path = tmp_path / "two.yaml"
    path.write_text(PLAN)
    return Bench(plan.load(str(path)), tmp_path / "runs", monkeypatch)


def fault_in_a(config: dict[str, Value], start: int) -> FakeClient:
    return FakeClient(garbled=config["a"] == 1, info={"a": config["a"]})


def test_a_run_ends_with_the_culprit_and_every_trial_is_written_before_the_next_starts(bench: Bench) -> None:
    result = bench.run(fault_in_a)
    assert result.verdict.kind == "culprit"
    assert result.verdict.culprit is not None
    assert result.verdict.culprit.name == "a=1"
    count = len(result.trials)
    expected = []
    for n in range(1, count + 1):
        expected += [f"announced {n}", f"start {n}, journal has {n - 1}", f"stop {n}", f"done {n}"]
    assert bench.events == expected
    assert bench.kinds() == ["start", *["trial"] * count, "verdict"]
    start, *trials, verdict = bench.entries()
    assert start["plan"] == PLAN
    assert start["run_id"] == result.run_id == bench.launches[0].run_id
    assert (verdict["verdict"], verdict["culprit"]) == ("culprit", "a=1")
    assert [(t["number"], t["config"], t["outcome"]) for t in trials] == [
        (t.number, dict(t.config), t.outcome.value) for t in result.trials
    ]
    assert trials == [
        {**t, "schema": 1, "kind": "trial", "at_unix": e["at_unix"]} for t, e in zip(_json(bench), trials)
    ]
    outlooks = bench.outlooks()
    assert [one["after"] for one in outlooks] == list(range(2, count + 1))  # none before both ends are known
    assert outlooks[-1]["standing"][0] == ["a=1", 1.0]
    for one in outlooks:
        shares = [share for _, share in one["standing"]]
        assert shares == sorted(shares, reverse=True)


def _json(bench: Bench) -> list[dict[str, Any]]:
    import json

    return [json.loads(json.dumps(trial.to_json())) for trial in bench.done]


def test_a_server_gets_the_configuration_and_what_the_plan_always_gives_it(bench: Bench) -> None:
    bench.run(fault_in_a)
    assert bench.launches[0].argv == ["/py", "serve", "--port", "{port}", "--a", "0"]
    assert bench.launches[0].env == {"FIXED": "1", "B": "0"}
    assert bench.launches[1].env == {"FIXED": "1", "B": "1"}


def test_texts_are_judged_against_the_good_configuration_alone_and_together(bench: Bench) -> None:
    good, bad = bench.run(fault_in_a).trials[:2]
    prompts = len(bench.plan.suite.prompts)
    assert (good.config, bad.config) == (GOOD, BAD)
    assert (good.count("alone"), good.count("together")) == ((0, prompts), (0, prompts))
    assert (bad.count("alone"), bad.count("together")) == ((prompts, prompts), (prompts, prompts))
    assert {t.kind for t in good.texts} == {"plausible", "identical"}
    assert {(t.kind, t.reference, t.diverges_at, t.worst_gap_nats) for t in bad.texts} == {
        ("garbled", "1 2 3", 1, 20.0)
    }
    assert "20.0 nats" in bad.reason


def test_what_the_server_does_not_do_as_asked_is_a_warning(bench: Bench) -> None:
    nan = {"watched": {"lines": 3, "first": "layer 4: nan in the logits"}}
    bench.stopped = lambda config: {"left": [{"pid": 77}], **nan} if config == BAD else {"left": []}
    result = bench.run(lambda config, n: FakeClient(config["a"] == 1, {"a": 0 if config == GOOD else 1}))
    by_config = {tuple(t.config.values()): t for t in result.trials}
    assert by_config[0, 0].warnings == ()
    left, log = by_config[1, 1].warnings
    assert left == "process 77 could not be stopped"
    assert log == "3 lines of its log tell of NaN: layer 4: nan in the logits"
    if (0, 1) in by_config:
        assert by_config[0, 1].warnings == ("a: asked for 0, in force is 1",)
        assert by_config[0, 1].effective["a"] == 1


@pytest.mark.parametrize("error", [ServerDied, ServerNotHealthy])
def test_a_configuration_between_the_ends_that_does_not_start_is_skipped(
    bench: Bench, error: type[ServerDied] | type[ServerNotHealthy]
) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        if config not in (GOOD, BAD):
            raise error("It ended with exit code 3.", next="Look.", details=["last words"])
        return fault_in_a(config, start)

    result = bench.run(script)
    skipped = [t for t in result.trials if t.outcome is Outcome.SKIP]
    assert skipped
    assert all(t.reason == "It ended with exit code 3." and t.details == {"log": ["last words"]} for t in skipped)
    assert [e["outcome"] for e in bench.entries() if e["kind"] == "trial"].count("skip") == len(skipped)
    assert result.verdict.culprit is None or result.verdict.inseparable


@pytest.mark.parametrize(("end", "name"), [(GOOD, "good"), (BAD, "failing")])
@pytest.mark.parametrize("error", [ServerDied, ServerNotHealthy])
def test_an_end_that_does_not_start_ends_the_run_and_is_named(
    bench: Bench, end: dict[str, int], name: str, error: type[ServerDied] | type[ServerNotHealthy]
) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        if config == end:
            raise error("It ended with exit code 3.", next="Look.", details=["last words"])
        return fault_in_a(config, start)

    with pytest.raises(error) as caught:
        bench.run(script)
    assert caught.value.what.startswith(
        f"The {name} configuration (a={end['a']} b={end['b']}) does not start. It ended"
    )
    assert str(caught.value).startswith("The ")
    assert caught.value.details == ["last words"]
    assert bench.kinds() == ["start", *["trial"] * (len(bench.launches) - 1)]


@pytest.mark.parametrize("when", [1, 2, 3])
def test_an_interrupt_is_written_down_and_goes_on_up(bench: Bench, when: int) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        if start == when:
            raise KeyboardInterrupt
        return fault_in_a(config, start)

    with pytest.raises(KeyboardInterrupt):
        bench.run(script)
    assert bench.kinds() == ["start", *["trial"] * (when - 1), "interrupted"]
    assert bench.entries()[-1]["trials"] == when - 1


def test_an_interrupt_while_a_server_is_asked_stops_it_first(bench: Bench) -> None:
    class Interrupted(FakeClient):
        def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(lambda config, start: Interrupted(garbled=False))
    assert bench.events[-1] == "stop 1"
    assert bench.kinds() == ["start", "interrupted"]


@pytest.fixture
def no_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Connections are made anew at once; what the host is asked then."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(benches, "RETRY_WAIT_S", 0.0)
    monkeypatch.setattr(benches.courier, "call", lambda wire, module, args, **more: calls.append({module: args}))
    return calls


def lost(start: int, *starts: int, error: type[DiagError] = LinkLost) -> None:
    if start in starts:
        raise error("The connection ended.", next="Again.")


def test_a_lost_link_is_no_evidence_and_the_same_is_tried_again(bench: Bench, no_wait: list[dict[str, Any]]) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        lost(start, 2, 4)
        return fault_in_a(config, start)

    result = bench.run(script)
    assert result.verdict.culprit is not None
    assert result.verdict.culprit.name == "a=1"
    infra = [t for t in result.trials if t.outcome is Outcome.INFRA]
    assert [(t.number, t.config, t.signature, t.reason) for t in infra] == [
        (2, BAD, "link lost", "The connection ended."),
        (4, result.trials[4].config, "link lost", "The connection ended."),
    ]
    assert [t.number for t in result.trials] == list(range(1, len(result.trials) + 1))
    # What the lost connection may have left there is stopped before the next server is started.
    reaped = {"reap": True, "run_id": result.run_id, "stop_grace_s": 10.0}
    assert no_wait == [{"supervise": reaped}] * 2
    assert bench.kinds() == ["start", *["trial"] * len(result.trials), "verdict"]


@pytest.mark.parametrize("error", [LinkLost, HostUnreachable, HostProgramFailed, PortInUse])
def test_what_fails_three_times_ends_the_run(
    bench: Bench, no_wait: list[dict[str, Any]], error: type[DiagError]
) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        lost(start, 2, 3, 4, error=error)
        return fault_in_a(config, start)

    with pytest.raises(error):
        bench.run(script)
    assert [e["outcome"] for e in bench.entries() if e["kind"] == "trial"] == ["pass", "infra", "infra", "infra"]


def test_a_run_tries_again_six_times_in_all(bench: Bench, no_wait: list[dict[str, Any]]) -> None:
    """Every second start goes wrong: never three in a row, and yet it ends."""
    path = bench.folder.parent / "wide.yaml"
    rows = "".join(f"  f{n}: {{env: F{n}, good: 0, bad: 1}}\n" for n in range(8))
    path.write_text(PLAN[: PLAN.index("  a:")] + rows)
    bench.plan = plan.load(str(path))

    def script(config: dict[str, Value], start: int) -> FakeClient:
        lost(start, *range(2, 100, 2))
        return FakeClient(garbled=config["f0"] == 1 and config["f5"] == 1)

    bench.config_of = wide_config  # type: ignore[method-assign]
    with pytest.raises(LinkLost):
        bench.run(script)
    assert [e["outcome"] for e in bench.entries() if e["kind"] == "trial"].count("infra") == 7


def wide_config(launch: Launch) -> dict[str, Value]:
    return {f"f{n}": int(launch.env[f"F{n}"]) for n in range(8)}


@pytest.mark.parametrize("error", [AuthenticationFailed, HostKeyChanged])
def test_what_will_not_pass_is_not_tried_again(
    bench: Bench, no_wait: list[dict[str, Any]], error: type[DiagError]
) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        lost(start, 2, error=error)
        return fault_in_a(config, start)

    with pytest.raises(error):
        bench.run(script)
    assert len(bench.launches) == 2


def test_a_full_disk_is_not_the_configurations_fault(bench: Bench) -> None:
    def script(config: dict[str, Value], start: int) -> FakeClient:
        if start == 3:
            log = ["saving", "OSError: [Errno 28] No space left on device: '/tmp/x'"]
            raise ServerDied("It ended with exit code 1.", next="Look.", details=log)
        return fault_in_a(config, start)

    with pytest.raises(ServerDied):
        bench.run(script)
    last = bench.entries()[-1]
    assert (last["outcome"], last["signature"]) == ("infra", "disk full")


DIED: dict[str, Any] = {"stopped": True, "died": {"exit_code": None, "signal": "SIGSEGV", "after_s": 1.0, "log": []}}


def test_a_death_between_the_ends_is_another_failure_and_no_evidence(bench: Bench) -> None:
    bench.stopped = lambda config: DIED if config not in (GOOD, BAD) else {}
    result = bench.run(
        lambda config, start: FakeClient(config["a"] == 1, {"a": config["a"]}, gone=config not in (GOOD, BAD))
    )
    died = [t for t in result.trials if t.signature == "died: signal SIGSEGV"]
    assert died
    assert all(t.outcome is Outcome.FAIL and "died while it was asked" in t.reason for t in died)
    assert {number for number, _ in result.verdict.other_failures} == {t.number for t in died}
    assert result.verdict.culprit is None or result.verdict.inseparable


def test_a_good_end_that_dies_whenever_it_is_asked_ends_the_run(bench: Bench) -> None:
    bench.stopped = lambda config: DIED if config == GOOD else {}
    result = bench.run(lambda config, start: FakeClient(False, gone=config == GOOD))
    assert (result.verdict.kind, result.verdict.culprit) == ("environmental", None)
    assert [t.outcome for t in result.trials] == [Outcome.SKIP, Outcome.SKIP]


def test_what_makes_a_server_die_is_found_as_what_garbles_it_is(bench: Bench) -> None:
    """The failing end dies when it is asked, and so does all that has a=1; b=1 alone garbles, which is not it."""
    log = ["loading", "2026-11-29 10:00:01 RuntimeError: CUDA error: misaligned address 0x7f00ff at step 17", "bye"]
    bench.stopped = lambda config: {"died": {**DIED["died"], "log": log}} if config["a"] == 1 else {}
    result = bench.run(lambda config, start: FakeClient(config["b"] == 1, {"a": config["a"]}, gone=config["a"] == 1))
    assert result.verdict.culprit is not None
    assert result.verdict.culprit.name == "a=1"
    bad = next(t for t in result.trials if t.config == BAD)
    assert bad.signature == "died: RuntimeError: CUDA error: misaligned address N at step N"
    garbled = [t for t in result.trials if t.signature == "garbled"]
    assert garbled
    assert {t.number for t in garbled} == {number for number, _ in result.verdict.other_failures}


def test_answers_of_a_server_that_died_are_no_reference(bench: Bench) -> None:
    """The good configuration dies at its first start and answers at its second: only those count."""
    bench.stopped = lambda config: DIED if len(bench.launches) == 1 else {}
    result = bench.run(lambda config, start: FakeClient(config["a"] == 1, {"a": config["a"]}, gone=start == 1))
    assert [t.outcome for t in result.trials[:3]] == [Outcome.SKIP, Outcome.PASS, Outcome.FAIL]
    assert result.verdict.culprit is not None
    assert result.verdict.culprit.name == "a=1"


def test_a_living_server_that_does_not_answer_is_not_healthy(bench: Bench) -> None:
    """It is there and refuses: that is what the configuration does, and it is said for each text."""
    result = bench.run(lambda config, start: FakeClient(False, {"a": config["a"]}, gone=config["a"] == 1))
    bad = next(t for t in result.trials if t.config == BAD)
    assert (bad.outcome, bad.signature) == (Outcome.FAIL, "no answer")
    assert {t.kind for t in bad.texts} == {"no_answer"}


@pytest.mark.parametrize(
    ("host", "given", "expected"),
    [
        ({"python": "/py"}, {}, {"python": "/py"}),
        ({"python": "/py"}, {"python": "/other"}, {"python": "/other"}),
        ({"labels": {"python": "/label"}}, {}, {"python": "/label"}),
        ({"python": "/py", "labels": {"unused": "x"}}, {"more": "y"}, {"python": "/py"}),
    ],
)
def test_what_fills_the_command(
    bench: Bench, host: dict[str, Any], given: dict[str, str], expected: dict[str, str]
) -> None:
    assert fills_for(bench.plan, Host(name="box", address="local", **host), given) == expected


def test_what_nothing_fills_is_named_with_where_to_put_it(bench: Bench) -> None:
    with pytest.raises(UsageError) as caught:
        fills_for(bench.plan, Host(name="box", address="local"), {})
    assert "{python}" in caught.value.what
    assert "--set python=VALUE" in caught.value.next
    assert "box" in caught.value.next


def test_a_source_that_changed_meanwhile_takes_the_conclusion_away() -> None:
    verdict = Verdict("culprit", "predicts every trial", rejected=(), alive=())
    result = run.Result("r", verdict, (), 1.0, "j")
    spoiled = run.spoiled(result, "x.py was changed by somebody while this ran")
    assert (spoiled.verdict.kind, spoiled.verdict.culprit) == ("unexplained", None)
    assert "x.py was changed" in spoiled.verdict.why
    assert (spoiled.run_id, spoiled.trials) == (result.run_id, result.trials)
