"""What changed between two runs: the hosts, what was started, how it ended.

Pure: two report documents, and what the hosts said of themselves, in; lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diag.hosts.parity import ABSENT, differences, flags

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Change:
    """group: host NAME, command, run, trials."""

    group: str
    what: str
    before: str
    after: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def changes(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    facts: Sequence[Mapping[str, Mapping[str, Any]]],
) -> list[Change]:
    """before, after: documents of diag.report.run. facts: of each, by host, what it said of itself."""
    return [
        *_run(before, after),
        *_hosts(*facts),
        *_commands(before, after),
        *_trials(before, after),
    ]


def _run(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    pairs = {
        "name": (before["name"], after["name"]),
        "hosts": (_listed(before["hosts"]), _listed(after["hosts"])),
        "ended": (before["ended"], after["ended"]),
        "culprit": (_culprit(before), _culprit(after)),
        "faulty source": (_source(before), _source(after)),
    }
    rates = [{rate["what"]: _rate(rate) for rate in one["rates"]} for one in (before, after)]
    for what in dict.fromkeys((*rates[0], *rates[1])):
        pairs[f"starts that fail {what}"] = (rates[0].get(what, ABSENT), rates[1].get(what, ABSENT))
    reasons = [{reason["text"]: reason["label"] for reason in one["reasons"]} for one in (before, after)]
    yield from _differing("run", pairs)
    if before["program"] == after["program"] == "probe":
        for text, label in reasons[0].items():
            if text not in reasons[1]:
                yield Change("run", f"{label} is gone", text, ABSENT)
        for text, label in reasons[1].items():
            if text not in reasons[0]:
                yield Change("run", f"{label} is new", ABSENT, text)


def _hosts(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    """Of hosts that both tell of."""
    for host in before:
        documents = {BEFORE: before[host], AFTER: after.get(host) or {}}
        if all("facts" in document for document in documents.values()):
            for found in differences(documents):
                yield Change(f"host {host}", found.what, found.values[BEFORE], found.values[AFTER])


def _commands(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for end in ("good", "failing"):
        told = [_command(one["commands"][end]) for one in (before, after)]
        if all(told):
            names = dict.fromkeys((*told[0], *told[1]))
            pairs = {f"{end} {name}": (told[0].get(name, ABSENT), told[1].get(name, ABSENT)) for name in names}
            yield from _differing("command", pairs)


def _command(command: Mapping[str, Any] | None) -> dict[str, str]:
    if not command or not command["argv"]:
        return {}
    env = {f"environment {name}": str(value) for name, value in command["env"].items()}
    words = [str(word) for word in command["argv"]]
    return {"program": words[0], **flags(words), **env}


def _trials(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Configurations that both tried, with another outcome."""
    told = [_outcomes(one["trials"]) for one in (before, after)]
    both = {config: (outcome, told[1][config]) for config, outcome in told[0].items() if config in told[1]}
    yield from _differing("trials", both)


def _outcomes(trials: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    seen: dict[str, list[str]] = {}
    for trial in trials:
        if trial["outcome"] in ("pass", "fail"):
            config = " ".join(f"{name}={value}" for name, value in trial["config"].items())
            seen.setdefault(config, []).append({"pass": "healthy", "fail": "fails"}[trial["outcome"]])
    return {config: ", ".join(dict.fromkeys(outcomes)) for config, outcomes in seen.items()}


def _differing(group: str, pairs: Mapping[str, tuple[str, str]]) -> Iterator[Change]:
    for what, (before, after) in pairs.items():
        if before != after:
            yield Change(group, what, before, after)


def _culprit(made: Mapping[str, Any]) -> str:
    return str(made["culprit"]["name"]) if made["culprit"] else ABSENT


def _source(made: Mapping[str, Any]) -> str:
    source = made["source"]
    return ABSENT if source is None else f"{source['fault']} {source['state']} in {source['version']}"


def _rate(rate: Mapping[str, Any]) -> str:
    return f"{rate['garbled']} of {rate['tried']} (95 %: {rate['low']:.0%} to {rate['high']:.0%})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "this machine"
