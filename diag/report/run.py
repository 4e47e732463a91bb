"""A run as one document, from its journal: what `diag report --json` prints and every other form is made of.

    document(whole, load)    pure but for reading lines of the journal; the same for a bisection, a playbook, a probe

What a journal does not hold is `null`, or empty, and named in `not_recorded`; nothing is worked out again by rules that
the run did not know, except counts of what it wrote down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from diag.bisect.command import environment
from diag.records.runs import TrialRow, Whole
from diag.report import run_facts, run_rates, run_texts, run_time

SCHEMA = 1

MAX_TRIALS, OPENING, CLOSING = 200, 60, 60
"""Trials that are listed one by one; of more, those that show something, and the first and last ones."""
MAX_POINTS = 200
MAX_REJECTED = 100
MAX_PARTS = 20

Load = Callable[[str], Whole | None]
"""A run by its name, None where it is not there any more."""

EXIT = {"clean": 0, "healthy": 0, "done": 0, "fails": 1, "fault": 1, "culprit": 1}
"""By verdict; any other, or none, is inconclusive."""

Document = dict[str, Any]


def document(found: Whole, load: Load = lambda run: None, *, depth: int = 1) -> Document:
    """load: for the runs that a playbook began; depth: how deep they are told in full."""
    start = found.read(found.lines["start"][0])
    told = _told(found)
    shown = _shown(found.trials, told)
    bodies = {row.number: found.read(row.line) for row in shown}
    run = found.run
    last = max((at for at in found.at_unix.values() if at is not None), default=run.began_unix)
    made: Document = {
        "schema": SCHEMA,
        "run": run.run,
        "program": run.program,
        "name": run.name,
        "title": str(start.get("title") or ""),
        "engine": start.get("engine"),
        "hosts": list(run.hosts),
        "began_unix": run.began_unix,
        "ended_unix": run.ended_unix,
        "elapsed_s": round(last - run.began_unix, 3) if last is not None and run.began_unix is not None else None,
        "ended": run.ended,
        "verdict": run.verdict,
        "exit_code": _exit_code(found),
        "answer": _answer(found, told),
        "reasons": told.get("reasons", []),
        "next": told.get("next", []),
        "culprit": told.get("culprit"),
        "factors": start.get("factors") or _inferred(found.trials),
        "derived": start.get("derived", []),
        "counts": _counts(found.trials),
        "trials": [_trial(row, told) for row in shown],
        "trials_left_out": len(found.trials) - len(shown),
        "left_out": dict(found.left_out),
        "texts": run_texts.pairs(found, start),
        "posterior": _posterior(found),
        "rates": run_rates.rates(found.trials, told, over="over" in start),
        "rejected": told.get("rejected", [])[:MAX_REJECTED],
        "inseparable": told.get("inseparable", []),
        "commands": _commands(shown, bodies, told),
        "in_force": run_facts.in_force(shown, bodies),
        "facts": list(_facts(found, bodies)),
        "source": told.get("source"),
        "time": run_time.spent(found, bodies),
        "steps": _steps(found),
        "changes": _changes(found),
        "parts": _parts(found, load, depth),
        "journal": str(run.journal),
    }
    return {**made, "not_recorded": list(_not_recorded(made))}


def _told(found: Whole) -> Document:
    """The document that the run itself ended with, {} where it did not, or where its journal is of an older diag."""
    last = found.last("report")
    return dict(last["document"]) if last is not None else {}


def _exit_code(found: Whole) -> int:
    verdict = found.last("verdict") or {}
    told = verdict.get("exit_code")
    return told if isinstance(told, int) else EXIT.get(str(verdict.get("verdict")), 3)


def _answer(found: Whole, told: Mapping[str, Any]) -> list[str]:
    """At most three lines."""
    verdict = found.last("verdict") or {}
    spent = f"{len(found.trials)} trials" if found.run.program == "bisect" else f"{found.run.steps} steps"
    where = ", ".join(found.run.hosts) or "this machine"
    if found.run.verdict is not None:
        lines = [str(line) for line in told.get("answer") or verdict.get("answer") or ()]
        if lines and "   " in lines[0]:  # its word stands before it already
            return lines[:3]
        head = lines[0] if lines else verdict.get("why") or found.run.culprit or ""
        title = str(found.read(found.lines["start"][0]).get("title") or "")
        more = lines[1:2] or ([title] if title else [])
        return [f"{found.run.verdict.upper().replace('_', ' ')}   {head}".strip(), *more, f"{spent} on {where}"]
    return [f"{found.run.ended.upper()}   there is no verdict yet", *_so_far(found), f"{spent} on {where}"]


def _so_far(found: Whole) -> Iterator[str]:
    outlook = found.last("outlook")
    if outlook is not None and outlook["standing"]:
        name, share = outlook["standing"][0]
        yield f"Likeliest so far: {name} ({share:.0%}); about {outlook['rest']} trials more were expected"


def _inferred(trials: Sequence[TrialRow]) -> list[Document]:
    """Names and both ends from the first two trials, in journals that do not tell the factors."""
    if not trials:
        return []
    ends = (trials[0].config, trials[min(1, len(trials) - 1)].config)
    return [
        {"name": name, "title": "", "how": None, "target": None, "good": good, "bad": ends[1].get(name, good)}
        for name, good in ends[0].items()
    ]


def _counts(trials: Sequence[TrialRow]) -> Document:
    outcomes = [row.outcome for row in trials]
    starts = sum(row.start_s > 0 for row in trials)
    return {
        "trials": len(trials),
        **{kind: outcomes.count(kind) for kind in ("pass", "fail", "skip", "infra")},
        "starts": starts,
    }


def _shown(trials: Sequence[TrialRow], told: Mapping[str, Any]) -> list[TrialRow]:
    if len(trials) <= MAX_TRIALS:
        return list(trials)
    telling = {number for name in ("sufficient", "necessary", "held_out") for number in told.get(name, ())}
    telling |= set((told.get("cleared") or {}).values())
    telling = set(sorted(telling)[: MAX_TRIALS - OPENING - CLOSING])
    ends = {row.number for row in (*trials[:OPENING], *trials[-CLOSING:])}
    return [row for row in trials if row.number in ends | telling]


def _trial(row: TrialRow, told: Mapping[str, Any]) -> Document:
    """shows: what it is evidence of, in the run's own words."""
    names = {"sufficient": "sufficient", "necessary": "necessary", "held_out": "held out"}
    shows = [word for name, word in names.items() if row.number in told.get(name, ())]
    shows += [f"clears {name}" for name, number in (told.get("cleared") or {}).items() if number == row.number]
    return {
        "number": row.number,
        "host": row.host,
        "outcome": row.outcome,
        "signature": row.signature,
        "purpose": row.purpose,
        "reason": row.reason,
        "config": dict(row.config),
        "effective": dict(row.effective),
        "alone": list(row.alone),
        "together": list(row.together),
        "start_s": row.start_s,
        "total_s": row.total_s,
        "shows": shows,
    }


def _posterior(found: Whole) -> list[Document]:
    """What was held likely after each trial; of very many, evenly chosen ones."""
    lines = found.lines.get("outlook", ())
    step = -(-len(lines) // MAX_POINTS) if lines else 1
    chosen = [*lines[::step], *lines[-1:]]
    entries = [found.read(line) for line in dict.fromkeys(chosen)]
    return [{"after": entry["after"], "standing": entry["standing"]} for entry in entries]


def _commands(shown: Sequence[TrialRow], bodies: Mapping[int, Mapping[str, Any]], told: Mapping[str, Any]) -> Document:
    """What was started: for a configuration that is healthy, and for the smallest one that fails."""
    good = next((row for row in shown if row.outcome == "pass"), None)
    smallest = next((row for row in shown if row.number in told.get("sufficient", ())), None)
    failing = smallest or next((row for row in shown if row.outcome == "fail"), None)
    rows = {"good": good, "failing": failing}
    return {name: _command(row, bodies[row.number]) if row is not None else None for name, row in rows.items()}


def _command(row: TrialRow, body: Mapping[str, Any]) -> Document:
    details = body.get("details") or {}
    argv, env = details.get("argv"), dict(details.get("env") or {})
    if details.get("command"):
        argv, env = ["sh", "-c", str(details["command"])], environment(row.config)
    return {"trial": row.number, "argv": argv, "env": env, "config": dict(row.config)}


def _facts(found: Whole, bodies: Mapping[int, Mapping[str, Any]]) -> Iterator[Document]:
    """Of the environments that a host has, the one that servers were started in, where that is known."""
    words = [word for body in bodies.values() for word in ((body.get("details") or {}).get("argv") or [])[:1]]
    for host, document in found.said_of_hosts().items():
        yield run_facts.of_host(host, document, words[0] if words else None)


def _steps(found: Whole) -> list[Document]:
    """The last that was written of each."""
    latest: dict[tuple[str, str], Document] = {}
    for row in found.steps:
        entry = found.read(row.line)
        given = entry.get("result")
        result: Document = given if isinstance(given, dict) else {}
        latest[row.step, str(entry.get("host") or "")] = {
            "id": row.step,
            "kind": row.kind,
            "host": entry.get("host"),
            "state": row.state,
            "seconds": row.seconds,
            "at_unix": row.at_unix,
            "summary": str(result.get("summary") or entry.get("summary") or ""),
            "why": str(entry.get("why") or ""),
            "exit_code": result.get("exit_code"),
            "said": [str(line) for line in result.get("said") or []][:40],
            "run": result.get("run"),
        }
    return list(latest.values())


def _changes(found: Whole) -> list[Document]:
    undone = {(entry.get("host"), entry.get("change")) for entry in found.all("undone")}
    return [
        {
            "id": entry.get("id"),
            "host": entry.get("host"),
            "what": entry.get("what"),
            "undone": (entry.get("host"), entry.get("id")) in undone,
        }
        for entry in found.all("change")
    ]


def _parts(found: Whole, load: Load, depth: int) -> list[Document]:
    """The runs that its steps began, whole."""
    if depth < 1:
        return []
    names = [step["run"] for step in _steps(found) if step["run"]][:MAX_PARTS]
    parts = [load(str(name)) for name in names]
    return [document(part, load, depth=depth - 1) for part in parts if part is not None]


def _not_recorded(made: Document) -> Iterator[str]:
    if made["program"] == "bisect":
        if made["counts"]["trials"] and not made["posterior"]:
            yield "what was held likely after each trial"
        if made["verdict"] is not None and not made["reasons"]:
            yield "the reasons as they were given"
    if made["program"] != "playbook" and made["hosts"] and not made["facts"]:
        yield "what the hosts say of themselves"
    if made["texts"] and not any(pair["gaps_nats"] for pair in made["texts"]):
        yield "the surprise of each token"
    if made["texts"] and not any(pair["asked"] for pair in made["texts"]):
        yield "the text of the prompts"
