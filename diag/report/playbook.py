"""What `diag playbook` says: the answer first, then a line a step, then what was changed and given back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diag.playbook import verdict as verdicts
from diag.playbook.ended import Ended, HostEnd
from diag.playbook.foresee import Ahead
from diag.playbook.load import Book, Step
from diag.playbook.stage import Change
from diag.playbook.steps.servers import STOP
from diag.playbook.steps.words import shown
from diag.playbook.verdict import Verdict
from diag.report.text import one_line

SCHEMA = 1
SAID = 8
"""Lines of the step that the answer comes from."""

Row = tuple[str, str]

_HEAD = {
    "done": ("bold green", "DONE"),
    "found": ("bold red", "FOUND"),
    "failed": ("bold red", "FAILED"),
    "inconclusive": ("bold yellow", "INCONCLUSIVE"),
    "unreachable": ("bold red", "UNREACHABLE"),
}
_STATE = {"done": "", "failed": "red", "skipped": "dim", "undone": "yellow", "begun": "yellow", "": "dim"}
_CODE = {0: "", 1: "red", 3: "yellow"}


def document(ended: Ended) -> dict[str, Any]:
    """The JSON document of `diag playbook run --json`; its fields are described in docs/json.md."""
    verdict = verdicts.of_run(ended)
    return {
        "schema": SCHEMA,
        "run": ended.run_id,
        "playbook": ended.book.name,
        "title": ended.book.title,
        "verdict": verdict.word,
        "why": verdict.why,
        "exit_code": verdict.exit_code,
        "changed": any(_lasting(host) for host in ended.hosts),
        "hosts": {host.host: _host_json(ended.book, host) for host in ended.hosts},
        "differences": [each.to_json() for each in verdicts.compared(ended)],
        "journal": ended.journal,
    }


def _host_json(book: Book, host: HostEnd) -> dict[str, Any]:
    verdict = verdicts.of_host(book, host)
    return {
        "verdict": verdict.word,
        "why": verdict.why,
        "exit_code": verdict.exit_code,
        "step": verdict.step,
        "steps": [_step_json(step, host) for step in book.all_steps],
        "changes": [_change_json(book, change, host) for change in host.past.changes.values()],
        "error": host.error.to_json() if host.error is not None else None,
    }


def _step_json(step: Step, host: HostEnd) -> dict[str, Any]:
    last, past = host.past.last.get(step.id, {}), host.past
    result = past.results.get(step.id) or past.failed.get(step.id)
    return {
        "id": step.id,
        "step": step.kind.name,
        "title": step.title,
        "state": past.state(step.id) or "not begun",
        "seconds": last.get("seconds"),
        "why": last.get("why", ""),
        "result": result.to_json() if result is not None else None,
    }


def _change_json(book: Book, change: Change, host: HostEnd) -> dict[str, Any]:
    return {
        "id": change.id,
        "step": change.step,
        "what": change.what,
        "state": _became(book, change, host),
        "by": host.past.by.get(change.id),
    }


def _became(book: Book, change: Change, host: HostEnd) -> str:
    if change.id not in host.past.in_force:
        return "given back"
    return "kept" if change.step in book.keep else "outstanding"


def _lasting(host: HostEnd) -> list[Change]:
    """Without servers, which leave nothing of themselves."""
    return [change for change in host.past.changes.values() if change.undo["do"] != STOP]


def page(ended: Ended) -> Iterator[Row]:
    """(style, line)"""
    verdict = verdicts.of_run(ended)
    style, word = _HEAD[verdict.word]
    where = ", ".join(host.host for host in ended.hosts)
    yield style, f"{ended.book.name} on {one_line(where, 60)}: {word}. {verdict.why}"
    if len(ended.hosts) == 1:
        yield from _said(ended.hosts[0], verdict)
    for host in ended.hosts:
        yield "", ""
        if len(ended.hosts) > 1:
            told = verdicts.of_host(ended.book, host)
            yield _HEAD[told.word][0], f"{host.host}: {_HEAD[told.word][1].lower()}. {told.why}"
        yield from _steps(ended.book, host)
    yield "", ""
    yield from _differences(ended)
    yield from _changes(ended)
    yield "dim", f"journal: {ended.journal}"


def _said(host: HostEnd, verdict: Verdict) -> Iterator[Row]:
    """More of the step that the answer comes from."""
    past = host.past
    result = past.failed.get(verdict.step or "") or past.results.get(verdict.step or "")
    for line in (result.said if result is not None else ())[:SAID]:
        if line:
            yield "dim", f"  {one_line(line, 160)}"


def _steps(book: Book, host: HostEnd) -> Iterator[Row]:
    width = max(len(step.id) for step in book.all_steps)
    for number, step in enumerate(book.all_steps, 1):
        state = host.past.state(step.id) or "not begun"
        result = host.past.results.get(step.id) or host.past.failed.get(step.id)
        last = host.past.last.get(step.id, {})
        took = f"{last['seconds']:7.1f} s" if last.get("seconds") else " " * 9
        what = result.summary if result is not None else str(last.get("why") or step.title)
        style = _STATE.get(state, "")
        if state == "done" and result is not None:
            style = _CODE.get(result.exit_code, "")
        head = f"{number:3} {state:9} {took}  {step.id:{width}}  {step.kind.name:13}  "
        yield style, head + one_line(what, 200)


def _differences(ended: Ended) -> Iterator[Row]:
    for each in verdicts.compared(ended):
        values = "; ".join(f"{host}: {one_line(value, 60)}" for host, value in each.values.items())
        yield "red" if each.matters else "yellow", f"differs: {each.what}: {one_line(values, 200)}"


def _changes(ended: Ended) -> Iterator[Row]:
    if not any(_lasting(host) for host in ended.hosts):
        yield "green", "Nothing had to be changed."
    for host in ended.hosts:
        on = f" on {host.host}" if len(ended.hosts) > 1 else ""
        states = [(change, _became(ended.book, change, host)) for change in host.past.changes.values()]
        back = sum(state == "given back" for _, state in states)
        if back and _lasting(host):
            yield "green", f"Given back{on}: {back} of {len(states)} changes."
        for change, state in states:
            if state == "kept":
                yield "", f"Kept{on}: {change.what}   (take it back: diag playbook resume {ended.run_id} --undo)"
            elif state == "outstanding":
                yield "bold red", f"NOT given back{on}: {change.what}"
                yield "", f"next: diag playbook resume {ended.run_id} --undo"


# --- a dry run ----------------------------------------------------------------------------------------------------


def ahead_document(book: Book, ahead: Mapping[str, Sequence[Ahead]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "playbook": book.name,
        "title": book.title,
        "hosts": {
            host: [
                {"id": a.step.id, "step": a.step.kind.name, "foreseen": a.foreseen, "why": a.why, "title": a.step.title}
                for a in steps
            ]
            for host, steps in ahead.items()
        },
    }


def ahead_page(book: Book, ahead: Mapping[str, Sequence[Ahead]]) -> Iterator[Row]:
    styles = {"change": "yellow", "no change": "", "cannot tell until run": "dim"}
    width = max(len(step.id) for step in book.all_steps)
    for host, steps in ahead.items():
        yield "bold", f"{book.name} on {host}: nothing is done now."
        for number, each in enumerate(steps, 1):
            more = f"  {one_line(each.why, 120)}" if each.why else ""
            head = f"{number:3} {each.foreseen:21}  {each.step.id:{width}}  {each.step.kind.name:13}"
            yield styles[each.foreseen], f"{head}{more}"


# --- a playbook itself --------------------------------------------------------------------------------------------


def book_document(book: Book) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "playbook": book.name,
        "title": book.title,
        "path": str(book.path),
        "hosts": {"default": book.hosts.default, "most": book.hosts.most},
        "changes": book.changes,
        "vars": [
            {"name": name, "type": var.type, "default": var.default, "title": var.title}
            for name, var in book.vars.items()
        ],
        "steps": [
            {
                "id": step.id,
                "step": step.kind.name,
                "title": step.title,
                "when": step.when.text if step.when is not None else None,
                "on_failure": step.on_failure,
                "changes": step.kind.changes,
                "keep": step.id in book.keep,
                "finally": step in book.finally_,
            }
            for step in book.all_steps
        ],
        "answer": book.answer,
    }


def book_page(book: Book) -> Iterator[Row]:
    yield "bold", f"{book.name}: {book.title}"
    yield "dim", str(book.path)
    for name, var in book.vars.items():
        default = "has to be given" if var.default is None else f"default {shown(var.default)}"
        yield "", f"  --set {name}={var.type.upper()}   {default}{f'; {var.title}' if var.title else ''}"
    width = max(len(step.id) for step in book.all_steps)
    for number, step in enumerate(book.all_steps, 1):
        words = [step.title or step.kind.says]
        words += [f"when {step.when.text}"] if step.when is not None else []
        words += ["last"] if step in book.finally_ else []
        words += ["kept"] if step.id in book.keep else []
        words += [f"on failure: {step.on_failure}"] if step.on_failure != "stop" else []
        mark = "*" if step.kind.changes else " "
        yield "", f"{number:3} {mark} {step.id:{width}}  {step.kind.name:13}  {'; '.join(words)}"
    if book.changes:
        yield "dim", "  * changes something on the host; it is given back at the end, unless it is kept"
