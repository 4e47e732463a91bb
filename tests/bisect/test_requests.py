"""Factors that go with the request: the server stays up between them, and texts cut at other lengths are comparable."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scripted_server import PLAN, Bench, FakeClient, Wire

from diag.bisect import plan
from diag.bisect.bench import ServerBench
from diag.bisect.decision import Next
from diag.bisect.expr import Value
from diag.bisect.link import Link
from diag.bisect.trial import Outcome
from diag.hosts.inventory import Host
from diag.serving.client import Answer, Prompt
from diag.verdict.compare import TextVerdict
from diag.verdict.reference import Margin

REQUEST_PLAN = PLAN + (
    "  tokens: {request: max_new_tokens, good: 3, bad: 8}\n  crowd: {request: concurrency, good: 1, bad: 4}\n"
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    path = tmp_path / "requests.yaml"
    path.write_text(REQUEST_PLAN)
    return Bench(plan.load(str(path)), tmp_path / "runs", monkeypatch)


@dataclass
class Long(FakeClient):
    """Tokens 1, 2, 3, ... up to the number asked for; garbled from `wrong_from` on; as many at once as it was told."""

    wrong_from: int = 10**9
    stops_at: int = 10**9

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        wanted = self.sampling.get("max_new_tokens", max_new_tokens)
        ids = tuple(n if n < self.wrong_from else 9 for n in range(1, min(wanted, self.stops_at) + 1))
        reason = "length" if len(ids) == wanted else "stop"
        return Answer(prompt.name, text=" ".join(map(str, ids)), token_ids=ids, finish_reason=reason)

    def ids(self, max_new_tokens: int) -> tuple[int, ...]:
        raise NotImplementedError


def test_a_fault_of_the_request_is_found_with_few_starts(bench: Bench) -> None:
    """Eight tokens garble, whatever else is set: most trials differ in the request alone."""
    result = bench.run(lambda config, start: Long(garbled=False, wrong_from=5, info={"a": config["a"]}))
    assert result.verdict.culprit is not None
    assert result.verdict.culprit.name == "tokens=8"
    assert len(bench.launches) < len(result.trials)
    asked = [(t.config["a"], t.config["b"]) for t in result.trials]
    changes = sum(one != other for one, other in itertools.pairwise(asked))
    assert len(bench.launches) >= changes
    # The last one is stopped, too, before the run is over.
    assert [event for event in bench.events if event.startswith("stop")] == [
        f"stop {n}" for n in range(1, len(bench.launches) + 1)
    ]


def tried(bench: Bench, client: FakeClient, *configs: dict[str, Value]) -> tuple[ServerBench, list[Outcome]]:
    link = Link(Host(name="box", address="local", python="/py"), lambda host: Wire())
    bench.serve(lambda config, start: client)
    own = ServerBench(bench.plan, link, "run", bench, {"python": "/py"})
    return own, [own.trial(n, Next(config, "")).outcome for n, config in enumerate(configs, 1)]


GOOD = {"a": 0, "b": 0, "tokens": 3, "crowd": 1}


def test_another_request_takes_no_new_server_and_the_same_once_more_does(bench: Bench) -> None:
    client = FakeClient(garbled=False)
    own, _ = tried(bench, client, GOOD, {**GOOD, "crowd": 4}, {**GOOD, "tokens": 8})
    assert len(bench.launches) == 1
    assert len(client.flushed) == 2
    own.trial(4, Next({**GOOD, "crowd": 4}, "once more"))
    assert len(bench.launches) == 2
    own.trial(5, Next({**GOOD, "a": 1}, "another flag"))
    assert len(bench.launches) == 3
    assert bench.events[-1] != "stop 3"
    own.close()
    assert bench.events[-1] == "stop 3"


def test_a_server_that_gives_no_answer_is_not_kept(bench: Bench) -> None:
    tried(bench, FakeClient(garbled=False, gone=True), GOOD, {**GOOD, "crowd": 4})
    assert len(bench.launches) == 2
    assert [event for event in bench.events if event.startswith("stop")] == ["stop 1", "stop 2"]


def test_a_cancelled_bench_stops_what_it_kept_when_it_is_closed(bench: Bench) -> None:
    own, _ = tried(bench, FakeClient(garbled=False), GOOD)
    own.cancel()
    own.close()
    assert bench.events[-1] == "stop 1"


@pytest.mark.parametrize(
    ("client", "outcome"),
    [
        (Long(False), Outcome.PASS),  # longer than the reference, as right as it
        (Long(False, wrong_from=7), Outcome.FAIL),  # wrong where the reference does not reach
        (Long(False, wrong_from=2), Outcome.FAIL),
    ],
)
def test_a_longer_text_is_compared_as_far_as_the_reference_goes(
    bench: Bench, client: FakeClient, outcome: Outcome
) -> None:
    good = Long(False)
    own, (first,) = tried(bench, good, GOOD)
    assert first is Outcome.PASS
    bench.serve(lambda config, start: client)
    assert own.trial(2, Next({**GOOD, "a": 1, "tokens": 8}, "")).outcome is outcome
    own.close()


def test_a_shorter_text_is_compared_as_far_as_it_goes(bench: Bench) -> None:
    own, outcomes = tried(bench, Long(False), {**GOOD, "tokens": 8}, {**GOOD, "a": 1})
    assert outcomes == [Outcome.PASS, Outcome.PASS]
    bench.serve(lambda config, start: Long(False, stops_at=5))
    stopped = own.trial(3, Next({**GOOD, "a": 1, "b": 1, "tokens": 8}, ""))
    assert (stopped.outcome, stopped.signature) == (Outcome.FAIL, "too short")
    own.close()


def test_a_temperature_is_warned_of(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "hot.yaml"
    path.write_text(PLAN + "  heat: {request: temperature, good: 0, bad: 0.7}\n")
    bench.plan = plan.load(str(path))
    result = bench.run(lambda config, start: FakeClient(garbled=config["a"] == 1))
    for trial in result.trials:
        assert any("drawn by lot" in warning for warning in trial.warnings) is (trial.config["heat"] == 0.7)


def test_the_reference_of_an_earlier_session_is_as_good(bench: Bench) -> None:
    """Its longest text is taken for one that was cut off."""
    from diag.bisect.asking import reference_of
    from diag.bisect.trial import Trial

    texts = tuple(TextVerdict(str(n), "alone", "plausible", "", None, "", token_ids=tuple(range(n))) for n in (2, 5))
    done = [Trial(1, "", GOOD, GOOD, Outcome.FAIL, texts), Trial(2, "", GOOD, GOOD, Outcome.PASS, texts)]
    reference = reference_of(done)
    assert reference is not None
    assert {name: answer.finish_reason for name, answer in reference.answers.items()} == {"2": "stop", "5": "length"}
    assert reference.margin == Margin()
    measured = Margin(0.4, True, "measured", 0.2, 900, 8)
    later = reference_of([replace(done[1], details={"margin": measured.to_json()})])
    assert later is not None
    assert later.margin == measured
    assert reference_of(done[:1]) is None
