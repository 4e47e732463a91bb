"""Scenario files: a hidden fault, and the whole transcript of finding it, as the command searches.

    tests/transcripts/NAME.txt     JSON header, a line of ---, the transcript

Header: about; factors {name: {good, bad, levels?, title?, apply?, sweep?}}; derived {name: when | {when, title}};
constraints {name: when}; fault, an expression over effective values (and `visit`: how often this configuration was
tried, `number`: of the trial); does_not_start, over what was asked; reported {name: expression}, what the server says
is in force; signature {text: when}, how it fails where that holds; max_trials; flaky, as of the command.

Chance: seed, flake (a failure is not seen), alarms (a failure where all is well), flake_after {trial number: flake};
infra [trial numbers], answers that were lost. hosts: how many at once. over: of versions or commits (over_scenario.py).

`pytest --update-transcripts` writes the transcripts anew. Read the difference: it is what users will see.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import over_scenario
import pytest
from simulated_host import SimulatedHost

from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next, Search, Verdict
from diag.bisect.expr import Value, parse
from diag.bisect.refine import RefinedSearch
from diag.bisect.run import Result
from diag.bisect.space import Config, Constraint, Derived, Factor, Space, describe
from diag.bisect.trial import Outcome
from diag.report import bisect as report

FOLDER = Path(__file__).resolve().parent.parent / "transcripts"
KEYS = {
    *("about", "factors", "derived", "constraints", "fault", "does_not_start", "reported", "signature", "max_trials"),
    *("flaky", "seed", "flake", "alarms", "flake_after", "infra", "hosts", "over"),
}
RULE = "---\n"


def scenario_space(header: Mapping[str, Any]) -> Space:
    factors = []
    for name, spec in header["factors"].items():
        ends = {key: spec[key] for key in ("good", "bad")}
        more = {key: spec[key] for key in ("title", "apply", "sweep") if key in spec}
        levels: tuple[Value, ...] = tuple(dict.fromkeys([*ends.values(), *spec.get("levels", [])]))
        factors.append(Factor(name, f"--{name}", "flag", **ends, levels=levels, **more))
    derived = []
    for name, rule in header.get("derived", {}).items():
        when, title = (rule, "") if isinstance(rule, str) else (rule["when"], rule.get("title", ""))
        derived.append(Derived(name, parse(when), title))
    constraints = tuple(Constraint(name, parse(when)) for name, when in header.get("constraints", {}).items())
    return Space(tuple(factors), tuple(derived), constraints=constraints)


def scenario_host(header: Mapping[str, Any]) -> SimulatedHost:
    fault = parse(header["fault"])
    dead = parse(header.get("does_not_start", "false"))
    reported = {name: parse(text) for name, text in header.get("reported", {}).items()}
    ways = {text: parse(when) for text, when in header.get("signature", {}).items()}
    asked: list[Config] = []

    def fails(values: Mapping[str, Value]) -> bool:
        visit = 1 + [t.config for t in host.trials].count(asked[-1])
        return fault.holds({**values, "visit": visit, "number": 1 + len(host.trials)})

    host = SimulatedHost(
        scenario_space(header),
        fails,
        starts=lambda config: not dead.holds(config),
        reports=lambda config: asked.append(config) or {name: e.value(config) for name, e in reported.items()},
        disturb=disturbance(header),
        signature=lambda values: next((text for text, when in ways.items() if when.holds(values)), ""),
    )
    return host


def disturbance(header: Mapping[str, Any]) -> Callable[[int, Outcome], Outcome]:
    chance = random.Random(header.get("seed", 0))
    lost, alarms = header.get("infra", []), header.get("alarms", 0.0)
    later = {int(number): flake for number, flake in header.get("flake_after", {}).items()}

    def disturb(number: int, outcome: Outcome) -> Outcome:
        flake = next((later[n] for n in sorted(later, reverse=True) if number > n), header.get("flake", 0.0))
        drawn = chance.random()
        if number in lost:
            return Outcome.INFRA
        if outcome is Outcome.FAIL:
            return Outcome.PASS if drawn < flake else Outcome.FAIL
        return Outcome.FAIL if outcome is Outcome.PASS and drawn < alarms else outcome

    return disturb


def scenario(header: Mapping[str, Any]) -> tuple[SimulatedHost, Search]:
    host = scenario_host(header)
    return host, scenario_search(header, host.space)


def scenario_search(header: Mapping[str, Any], over: Space) -> Search:
    most = header.get("max_trials", 200 if header.get("flaky") else 32)
    inner = BayesianSearch(over, deterministic=None if header.get("flaky") else True, max_trials=most)
    return RefinedSearch(inner, over, max_trials=most)


def transcript(header: Mapping[str, Any]) -> Iterator[str]:
    over = "over" in header
    host, search = over_scenario.scenario(header, disturbance(header)) if over else scenario(header)
    verdict = yield from at_once(host, search, header["hosts"]) if "hosts" in header else one_by_one(host, search)
    yield ""
    yield from told(verdict)
    yield ""
    result = Result("a-run", verdict, tuple(host.trials), 0.0, "a-journal")
    page = over_scenario.told(header, result) if over else report.page(result, host.space, "a-host", None)
    for _, line in page:
        if line.startswith("  # "):  # the table repeats the trials above
            break
        yield line.rstrip()


def one_by_one(host: SimulatedHost, search: Search) -> Iterator[str]:
    while isinstance(step := search.next(host.trials), Next):
        number = len(host.trials) + 1
        yield f"trial {number} of about {max(number, search.expected_trials(host.trials))}: {step.purpose}"
        yield from shown(host, step)
    return step


def at_once(host: SimulatedHost, search: Search, hosts: int) -> Iterator[str]:
    """In rounds: all hosts begin together, and the next round begins when the last of them is done."""
    while not isinstance(steps := search.next_batch(host.trials, [], hosts), Verdict):
        yield f"round of {len(steps)}, {len(host.trials)} of about {search.expected_trials(host.trials)} are done"
        for step in steps:
            yield f"  {step.purpose}"
            yield from shown(host, step)
    return steps


def shown(host: SimulatedHost, step: Next) -> Iterator[str]:
    trial = host.run(step)
    yield f"    {describe(step.config)}"
    yield f"    {trial.outcome.value}{f' ({trial.signature})' if trial.signature else ''}"


def told(verdict: Verdict) -> Iterator[str]:
    yield f"verdict {verdict.kind}: {verdict.why}"
    if verdict.culprit is not None:
        yield f"    culprit {verdict.culprit.name}, confidence {verdict.confidence:.3f}"
    if verdict.inseparable:
        yield f"    inseparable from {', '.join(h.name for h in verdict.inseparable)}"
    for name, constraint in verdict.forbidden.items():
        yield f"    what would tell {name} apart violates {constraint}"
    for number, signature in verdict.other_failures:
        yield f"    not this fault: trial {number}, {signature}"
    left = [h.name for h, _ in verdict.alive]
    if verdict.kind == "narrowed":
        yield f"    left {', '.join(left[:8])}{f' and {len(left) - 8} more' if len(left) > 8 else ''}"
    for rejected in verdict.rejected:
        if rejected.hypothesis.kind in ("single", "derived"):
            yield f"    rejected by trial {rejected.trial}: {rejected.hypothesis.name} ({rejected.why})"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_search_does_and_says_what_the_transcript_holds(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    head, _, expected = text.partition(RULE)
    header = json.loads(head)
    assert set(header) <= KEYS
    actual = "".join(f"{line}\n" for line in transcript(header))
    if request.config.getoption("--update-transcripts"):
        path.write_text(head + RULE + actual, encoding="utf-8")
        return
    assert actual == expected, f"{path.name} differs; if that is as wanted: pytest --update-transcripts"


def test_there_are_scenarios() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 24
