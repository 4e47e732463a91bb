"""Scenario files: a hidden fault, and the whole transcript of finding it.

    tests/transcripts/NAME.txt     JSON header, a line of ---, the transcript

Header: about; factors {name: {good, bad, levels?, title?}}; derived {name: when | {when, title}}; fault, an expression
over effective values (and `visit`: how often this configuration was tried); does_not_start, over what was asked;
reported {name: expression}, what the server says is in force; max_trials.

`pytest --update-transcripts` writes the transcripts anew. Read the difference: it is what users will see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from simulated_host import SimulatedHost, make_search

from diag.bisect.decision import Next, Verdict
from diag.bisect.expr import Value, parse
from diag.bisect.run import Result
from diag.bisect.space import Config, Derived, Factor, Space, describe
from diag.report import bisect as report

FOLDER = Path(__file__).resolve().parent.parent / "transcripts"
KEYS = {"about", "factors", "derived", "fault", "does_not_start", "reported", "max_trials"}
RULE = "---\n"


def scenario_space(header: Mapping[str, Any]) -> Space:
    factors = []
    for name, spec in header["factors"].items():
        levels: tuple[Value, ...] = tuple(dict.fromkeys([spec["good"], spec["bad"], *spec.get("levels", [])]))
        factors.append(Factor(name, f"--{name}", "flag", spec["good"], spec["bad"], levels, spec.get("title", "")))
    derived = []
    for name, rule in header.get("derived", {}).items():
        when, title = (rule, "") if isinstance(rule, str) else (rule["when"], rule.get("title", ""))
        derived.append(Derived(name, parse(when), title))
    return Space(tuple(factors), tuple(derived))


def scenario_host(header: Mapping[str, Any]) -> SimulatedHost:
    over = scenario_space(header)
    fault = parse(header["fault"])
    dead = parse(header.get("does_not_start", "false"))
    reported = {name: parse(text) for name, text in header.get("reported", {}).items()}
    host = SimulatedHost(
        over,
        lambda values: fault.holds({**values, "visit": 1 + [t.config for t in host.trials].count(asked[-1])}),
        starts=lambda config: not dead.holds(config),
        reports=lambda config: asked.append(config) or {name: e.value(config) for name, e in reported.items()},
    )
    asked: list[Config] = []
    return host


def transcript(header: Mapping[str, Any]) -> Iterator[str]:
    host = scenario_host(header)
    search = make_search(host.space, header.get("max_trials", 32))
    while isinstance(step := search.next(host.trials), Next):
        number = len(host.trials) + 1
        yield f"trial {number} of about {max(number, search.expected_trials(host.trials))}: {step.purpose}"
        trial = host.run(step)
        yield f"    {describe(step.config)}"
        yield f"    {trial.outcome.value}"
    yield ""
    yield from told(step)
    yield ""
    result = Result("a-run", step, tuple(host.trials), 0.0, "a-journal")
    for _, line in report.page(result, host.space, "a-host", None):
        if line.startswith("  # "):  # the table repeats the trials above
            break
        yield line.rstrip()


def told(verdict: Verdict) -> Iterator[str]:
    yield f"verdict {verdict.kind}: {verdict.why}"
    if verdict.culprit is not None:
        yield f"    culprit {verdict.culprit.name}, confidence {verdict.confidence:.3f}"
    if verdict.inseparable:
        yield f"    inseparable from {', '.join(h.name for h in verdict.inseparable)}"
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
    assert len(list(FOLDER.glob("*.txt"))) >= 10
