"""A run as an issue for the project whose engine it is about: ready to paste. Pure: a document in, text out.

The headings are those that the projects ask for; what stands below them is the same for all: what happens, the smallest
setting that shows it and how often, how to start it, the request and its control, what it wrote beside what it should
have, what it is not, what the host is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from diag.report import run_page
from diag.report.text import one_line, visible

Project = Literal["sglang", "vllm", "generic"]

MAX_ROWS, MAX_REJECTED, MAX_TEXT = 30, 12, 600


def issue(made: Mapping[str, Any], project: Project, removed: str = "") -> str:
    """removed: what was replaced for strangers. Text of a host stands in code blocks only, where nothing of it is read
    as markup or as a name to be called."""
    lines = {"sglang": _sglang, "vllm": _vllm, "generic": _generic}[project](made)
    note = f"_Replaced before this was written: {removed}._" if removed else ""
    return "\n".join([*lines, "", *([note, ""] if note else [])])


def _sglang(made: Mapping[str, Any]) -> Iterator[str]:
    yield "### Checklist"
    yield from _to_tick("Related issues were searched.", "It was tried on the latest version.")
    yield "### Describe the bug"
    yield from _describe(made)
    yield "### Reproduction"
    yield from _reproduce(made)
    yield "### Environment"
    yield from _environment(made, "python3 -m sglang.check_env")


def _vllm(made: Mapping[str, Any]) -> Iterator[str]:
    yield "### Your current environment"
    yield from _environment(made, "python collect_env.py")
    yield "### 🐛 Describe the bug"
    yield from _describe(made)
    yield "#### To reproduce"
    yield ""
    yield from _reproduce(made)
    yield "### Before submitting a new issue..."
    yield from _to_tick("Related issues were searched, and the documentation's assistant was asked.")


def _generic(made: Mapping[str, Any]) -> Iterator[str]:
    yield "## What happens"
    yield from _describe(made)
    yield "## How to reproduce it"
    yield from _reproduce(made)
    yield "## Environment"
    yield from _environment(made, None)


def _to_tick(*lines: str) -> Iterator[str]:
    yield ""
    yield from (f"- [ ] {line}" for line in lines)
    yield ""


def _describe(made: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield from fenced("\n".join(made["answer"]) or "no answer was recorded")
    yield ""
    if made["factors"] and made["verdict"] == "culprit" and made["culprit"]:
        yield f"**Smallest failing set**: {code(str(made['culprit']['title'] or made['culprit']['name']))}"
        yield ""
    for rate in made["rates"]:
        yield f"- {rate['what']}: {run_page.rate_text(rate)}"
    if made["rates"]:
        yield ""
    if made["reasons"]:
        yield from fenced("\n".join(f"{reason['label']:13} {reason['text']}" for reason in made["reasons"]))
        yield ""
    yield from _beside(made)
    yield from _table(made)
    yield from _steps(made)
    yield from _rejected(made)
    yield from _source(made["source"])


def _beside(made: Mapping[str, Any]) -> Iterator[str]:
    for pair in made["texts"][:1]:
        yield f"Trial {pair['trial']}, prompt {code(pair['prompt'])}, asked {pair['how']}: {code(pair['why'])}"
        yield ""
        yield "Written:"
        yield ""
        yield from fenced(pair["text"][:MAX_TEXT])
        yield ""
        if pair["healthy"] is not None:
            yield "The healthy configuration, same request:"
            yield ""
            yield from fenced(pair["healthy"][:MAX_TEXT])
            yield ""


def _table(made: Mapping[str, Any]) -> Iterator[str]:
    trials: Sequence[Mapping[str, Any]] = made["trials"]
    if not trials:
        return
    names = run_page.columns(made)
    shown = trials if len(trials) <= MAX_ROWS else [*trials[: MAX_ROWS // 2], *trials[-MAX_ROWS // 2 :]]
    yield f"| # | {' | '.join(_cell(name) for name in names)} | verdict | alone | at once |"
    yield f"|{'---|' * (len(names) + 4)}"
    for trial in shown:
        counts = [f"{bad}/{of}" if of else "-" for bad, of in (trial["alone"], trial["together"])]
        cells = [*(run_page.cell(trial, name) for name in names), run_page.verdict_of(trial), *counts]
        yield f"| {trial['number']} | {' | '.join(_cell(cell) for cell in cells)} |"
    left = made["trials_left_out"] + len(trials) - len(shown)
    yield ""
    yield f"Values in force; garbled of asked.{f' {left} more trials are left out.' if left else ''}"
    yield ""


def _steps(made: Mapping[str, Any]) -> Iterator[str]:
    if made["steps"]:
        yield "| step | state | found |"
        yield "|---|---|---|"
        for step in made["steps"]:
            yield f"| {_cell(step['id'])} | {_cell(step['state'])} | {_cell(step['summary'] or step['why'])} |"
        yield ""
    for part in made["parts"]:
        yield f"#### {one_line(part['name'], 80)}"
        yield from _describe(part)


def _rejected(made: Mapping[str, Any]) -> Iterator[str]:
    if made["rejected"]:
        rest = len(made["rejected"]) - MAX_REJECTED
        yield from _folded(
            "Ruled out, each with the first trial that contradicts it",
            [
                *(f"{one['name']}: {one['why']} (trial {one['trial']})" for one in made["rejected"][:MAX_REJECTED]),
                *([f"and {rest} more"] if rest > 0 else []),
            ],
        )


def _source(source: Mapping[str, Any] | None) -> Iterator[str]:
    if source is None:
        return
    state = source["state"].replace("_", " ")
    yield f"**Installed source**: {code(source['path'])}, {code(source['version'])}, {state}"
    yield ""
    yield from fenced("\n".join(f"{site['line']:>6} | {site['text']}" for site in source["sites"]), "python")
    yield ""


def _reproduce(made: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    bisection = next((one for one in (made, *made["parts"]) if one["commands"]["failing"]), None)
    if bisection is None:
        yield "No server was started by this run."
        yield ""
        return
    for name, title in (("failing", "Fails"), ("good", "Healthy (the control)")):
        command = bisection["commands"][name]
        if command and command["argv"]:
            yield f"{title}, trial {command['trial']}:"
            yield ""
            yield from fenced(run_page.shell(command), "sh")
            yield ""
    for pair in bisection["texts"][:1]:
        yield from _request(pair)
    force = bisection["in_force"]
    if force is not None:
        told = [f"{key}={value}" for key, value in force["telling"].items()]
        yield from _folded(f"In force by the server's own word (trial {force['trial']})", told)


def _request(pair: Mapping[str, Any]) -> Iterator[str]:
    if pair["asked"] is None:
        yield "The text of the prompt was not recorded."
        yield ""
        return
    how = {"together": "The request, sent at the same moment as the suite's other prompts"}.get(
        pair["how"], "The request"
    )
    yield f"{how} (temperature 0); the control is the same request to the healthy server:"
    yield ""
    yield from fenced(json.dumps({"prompt": visible(pair["asked"])}, ensure_ascii=False, indent=2), "json")
    yield ""


def _environment(made: Mapping[str, Any], command: str | None) -> Iterator[str]:
    yield ""
    facts = made["facts"] or [fact for part in made["parts"] for fact in part["facts"]]
    if not facts:
        yield "What the hosts say of themselves was not recorded."
    seen: set[str] = set()
    for host in facts:
        if host["host"] not in seen:
            seen.add(host["host"])
            yield from fenced(f"{host['host']}\n" + "\n".join(f"{label:10} {value}" for label, value in host["lines"]))
    if command is not None:
        yield ""
        yield f"<!-- The project asks for the output of `{command}` as well: run it on the host and paste it here. -->"
    yield ""


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from fenced("\n".join(lines))
    yield ""
    yield "</details>"
    yield ""


def fenced(text: str, language: str = "text") -> Iterator[str]:
    """A block whose fence is longer than any in the text."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`{3,}", shown)), default=2)
    fence = "`" * (longest + 1)
    yield f"{fence}{language}"
    yield shown
    yield fence


def code(text: str) -> str:
    """In a line: between as many backticks as it takes."""
    shown = one_line(text, 200)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{ticks}{pad}{shown or ' '}{pad}{ticks}"


def _cell(text: str) -> str:
    """In a table: a bar ends a cell even in code."""
    return code(str(text).replace("|", "\\|"))
