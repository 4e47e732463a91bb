"""A run on a terminal: the answer in the first three lines, then why, then the table. Pure: document in, lines out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diag.bisect.space import level_text
from diag.report.text import aligned, one_line

SHOWN = 40
"""Trials in the table; of more the first and the last half."""
LABEL_WIDTH = 13

OUTCOME = {
    "pass": ("green", "clean"),
    "fail": ("red", "GARBLED"),
    "skip": ("yellow", "skipped"),
    "infra": ("yellow", "not counted"),
}
STATE = {"done": "green", "failed": "red", "undone": "yellow", "skipped": "dim", "begun": "yellow"}

Line = tuple[str, str]


def page(made: Mapping[str, Any]) -> Iterator[Line]:
    """(style, line)"""
    before = ""
    for style, line in _whole(made):
        if line or before:
            yield style, line
        before = line


def _whole(made: Mapping[str, Any]) -> Iterator[Line]:
    yield from _answer(made)
    for reason in made["reasons"]:
        yield "", f"{reason['label']:{LABEL_WIDTH}} {reason['text']}"
    for host, why in made["left_out"].items():
        yield "yellow", f"{'left out':{LABEL_WIDTH}} {host}: {why}"
    yield from _rates(made)
    yield from _steps(made)
    yield from _trials(made)
    yield from _sample(made)
    yield from _source(made["source"])
    for part in made["parts"]:
        yield "", ""
        yield "bold", f"{part['run']}"
        for style, line in _whole({**part, "parts": []}):
            yield style, f"  {line}".rstrip()
    yield "", ""
    for line in made["next"]:
        yield "bold", f"next: {line}"
    if made["not_recorded"]:
        yield "dim", f"not recorded: {'; '.join(made['not_recorded'])}"
    yield "dim", f"all of it: {made['journal']}"


def _answer(made: Mapping[str, Any]) -> Iterator[Line]:
    style = {0: "bold green", 1: "bold red"}.get(made["exit_code"], "bold yellow")
    for number, line in enumerate(made["answer"]):
        yield (style if number == 0 else ""), line if number == 0 else f"{' ' * 10}{line}"
    yield "", ""


def _rates(made: Mapping[str, Any]) -> Iterator[Line]:
    if any(reason["label"] == "rates" for reason in made["reasons"]):
        return
    for rate in made["rates"]:
        yield "", f"{'how often':{LABEL_WIDTH}} {rate['what']} {rate_text(rate)}"


def rate_text(rate: Mapping[str, Any]) -> str:
    counts = f"{rate['garbled']} of {rate['tried']} starts fail"
    return f"{counts} (95 %: {rate['low']:.0%} to {rate['high']:.0%})"


def _steps(made: Mapping[str, Any]) -> Iterator[Line]:
    if not made["steps"]:
        return
    yield "", ""
    wide = max(len(step["id"]) for step in made["steps"])
    for step in made["steps"]:
        took = f"{step['seconds']:7.1f} s" if step["seconds"] is not None else " " * 9
        host = f" · {step['host']}" if step["host"] and len(made["hosts"]) > 1 else ""
        told = one_line(step["summary"] or step["why"], 100)
        yield STATE.get(step["state"], ""), f"{step['state']:8} {took}  {step['id']:{wide}}{host}  {told}".rstrip()
    for change in made["changes"]:
        state = "undone" if change["undone"] else "still there"
        yield ("dim" if change["undone"] else "bold yellow"), f"changed: {one_line(str(change['what']), 90)} ({state})"


def columns(made: Mapping[str, Any]) -> list[str]:
    """Factors and rules whose values a table of trials shows."""
    return [item["name"] for item in (*made["factors"], *made["derived"])]


def cell(trial: Mapping[str, Any], name: str) -> str:
    """What was in force; "?" where the server did not say."""
    value = trial["effective"].get(name)
    if value is None:
        return "?"
    text = level_text(value)
    return text[:12] if len(text) == 40 and name == "commit" else text


def verdict_of(trial: Mapping[str, Any]) -> str:
    kind = trial["outcome"]
    if kind == "fail" and trial["signature"] not in ("", "garbled"):
        return one_line(trial["signature"], 30)
    return OUTCOME[kind][1]


def _trials(made: Mapping[str, Any]) -> Iterator[Line]:
    trials: Sequence[Mapping[str, Any]] = made["trials"]
    if not trials:
        return
    yield "", ""
    names = columns(made)
    hosts = ["host"] if len({trial["host"] for trial in trials}) > 1 else []
    asked = ["alone", "at once"] if any(trial["alone"][1] or trial["together"][1] for trial in trials) else []
    head = ["#", *names, *hosts, *asked, "verdict", "start s", "total s"]
    left = trials if len(trials) <= SHOWN else [*trials[: SHOWN // 2], *trials[-SHOWN // 2 :]]
    rows = [_row(trial, names, bool(hosts), bool(asked)) for trial in left]
    first, *lines = aligned(head, rows)
    yield "bold", first
    hidden = made["trials_left_out"] + len(trials) - len(left)
    for at, (trial, line) in enumerate(zip(left, lines)):
        if hidden and at == SHOWN // 2:
            yield "dim", f"... {hidden} more: diag runs show {made['run']}"
        yield OUTCOME[trial["outcome"]][0], line


def _row(trial: Mapping[str, Any], names: Sequence[str], hosts: bool, asked: bool) -> list[str]:
    counts = [f"{bad}/{of}" if of else "-" for bad, of in (trial["alone"], trial["together"])]
    return [
        str(trial["number"]),
        *(cell(trial, name) for name in names),
        *([trial["host"]] if hosts else []),
        *(counts if asked else []),
        verdict_of(trial),
        f"{trial['start_s']:.1f}",
        f"{trial['total_s']:.1f}",
    ]


def _sample(made: Mapping[str, Any]) -> Iterator[Line]:
    for pair in made["texts"][:1]:
        yield "", ""
        yield "bold", f"for example, trial {pair['trial']}, prompt '{pair['prompt']}' {pair['how']}: {pair['why']}"
        if pair["healthy"] is not None:
            yield "green", f"  good     {one_line(pair['healthy'], 140)}"
        yield "red", f"  garbled  {one_line(pair['text'], 140)}"


def shell(command: Mapping[str, Any]) -> str:
    """As one would type it; `{port}` is for the host to fill in."""
    env = [f"{key}={value}" for key, value in command["env"].items()]
    return shlex.join([*(["env", *env] if env else []), *command["argv"]]).replace("'{port}'", "{port}")


def _source(source: Mapping[str, Any] | None) -> Iterator[Line]:
    if source is None:
        return
    yield "", ""
    yield "bold", f"in the installed source: {source['fault']} is {source['state'].replace('_', ' ')}"
    yield "", f"  {source['path']} ({source['version']})"
    symbol = ""
    for site in source["sites"]:
        if site["symbol"] != symbol:
            symbol = site["symbol"]
            yield "", f"  {symbol}"
        yield "red", f"  {site['line']:>6} | {site['text']}"
