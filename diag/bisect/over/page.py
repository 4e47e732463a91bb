"""What `--over` says at the end: one document for programs, one page for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from diag.bisect.decision import Rate
from diag.bisect.over.axis import Axis, FirstBad
from diag.bisect.over.session import Ready
from diag.bisect.run import Result
from diag.bisect.trial import Outcome, Trial
from diag.report import bisect as report

Line = tuple[str, str]

SHOWN = 12

ADVICE = {
    "not_reproduced": "Check that the bad end is the one that failed, on this host, with these prompts; --flaky "
    "tries it more often.",
    "environmental": "Choose an older good end that you see work; if none does, look at what all trials share (model, "
    "driver, the plan's configuration).",
    "narrowed": "Try by hand what lies between, or raise max_trials in the plan; what was learnt is in the journal.",
    "unexplained": "Repeat it with --flaky.",
}


def document(result: Result, ready: Ready) -> dict[str, Any]:
    """The document of `diag bisect`, and what is particular to a range of versions or commits under `over`."""
    axis, verdict = ready.axis, result.verdict
    made = report.document(result, axis.space, ready.asked.where, ready.asked.name, None)
    made["answer"] = [line.strip() for _, line in _answer(result, ready)]
    made["reasons"] = report.reasons_json((*_reasons(result, axis), *_notes(ready)))
    made["next"] = [_next(result, ready)]
    if isinstance(verdict.culprit, FirstBad):
        made["culprit"]["predicate"] = verdict.culprit.predicate
    question = ready.asked.question
    made["over"] = {
        "what": question.what,
        "package": question.package or None,
        "repo": ready.top or None,
        "good": axis.places[0].id,
        "bad": axis.places[-1].id,
        "places": len(axis.places),
        "left": [_left(axis, one, weight, result.trials) for one, weight in verdict.alive if isinstance(one, FirstBad)],
        "last_good": [axis.places[p].id for p in _before(axis, verdict.culprit)],
        "notes": list(ready.notes),
    }
    return made


def _left(axis: Axis, one: FirstBad, weight: float, trials: Sequence[Trial]) -> dict[str, Any]:
    place = _place(axis, one)
    skipped = place in _skipped(axis, trials)
    return {
        "id": axis.places[place].id,
        "title": axis.places[place].title,
        "weight": round(weight, 6),
        "skipped": skipped,
    }


def page(result: Result, ready: Ready) -> Iterator[Line]:
    """(style, line): the answer in the first lines, then why, then the table, then what to do."""
    axis = ready.axis
    yield from _answer(result, ready)
    yield "", ""
    yield from report.reason_lines((*_reasons(result, axis), *_notes(ready)))
    yield "", ""
    yield from report.table([_short(axis, trial) for trial in result.trials], axis.space)
    yield "", ""
    yield "bold", f"next: {_next(result, ready)}"
    yield "dim", f"every trial, with its texts: {result.journal}"


def _answer(result: Result, ready: Ready) -> Iterator[Line]:
    axis, verdict = ready.axis, result.verdict
    what = "server start" if ready.asked.command is None else "run of the command"
    count = len(result.trials)
    many = {"server start": "server starts", "run of the command": "runs of the command"}[what]
    spent = f"{count} {what if count == 1 else many}, {result.elapsed_s / 60:.1f} min, on {ready.asked.where}"
    if isinstance(verdict.culprit, FirstBad):
        sure = f" (probability {verdict.confidence:.1%})" if verdict.rates is not None else ""
        yield "bold red", f"CULPRIT   {_called(axis, _place(axis, verdict.culprit))}{sure}"
        yield "", f"          {verdict.why}; {spent}"
    else:
        yield "bold yellow", f"{report.HEADLINE[verdict.kind]}   {verdict.why} ({spent})"


def _notes(ready: Ready) -> Iterator[report.Reason]:
    for note in ready.notes:
        yield "", "note", note


def _reasons(result: Result, axis: Axis) -> Iterator[report.Reason]:
    verdict = result.verdict
    if isinstance(verdict.culprit, FirstBad):
        if verdict.sufficient:
            yield "", "first bad", f"it fails itself ({_numbers(verdict.sufficient)})"
        for before in _before(axis, verdict.culprit):
            yield "", "right before", f"{_called(axis, before)} {_ended(axis, before, result.trials)}"
        if verdict.culprit.predicate:
            yield "", "predicate", f"{verdict.culprit.predicate}"
        if verdict.rates is not None:
            yield "", "rates", f"with it {_rate(verdict.rates.active)}; before it {_rate(verdict.rates.idle)}"
    elif verdict.kind == "narrowed":
        skipped = _skipped(axis, result.trials)
        yield "", "left", f"{len(verdict.alive)} of {len(axis.places) - axis.bases}, one of which it is:"
        for one, weight in verdict.alive[:SHOWN]:
            if isinstance(one, FirstBad):
                place = _place(axis, one)
                says = ", cannot be tried" if place in skipped else ""
                yield "", "", f"{_called(axis, place)} ({weight:.0%}{says})"
        if len(verdict.alive) > SHOWN:
            yield "", "", f"and {len(verdict.alive) - SHOWN} more (see --json)"
    for trial in result.trials:
        if trial.outcome in (Outcome.SKIP, Outcome.INFRA):
            yield "yellow", "not tried", f"trial {trial.number}: {trial.reason}"
        for warning in trial.warnings:
            yield "yellow", "warning", f"trial {trial.number}: {warning}"
    for host, why in result.left_out.items():
        yield "yellow", "left out", f"{host}: {why}"


def _next(result: Result, ready: Ready) -> str:
    culprit, axis = result.verdict.culprit, ready.axis
    if not isinstance(culprit, FirstBad):
        return ADVICE[result.verdict.kind]
    place = axis.places[_place(axis, culprit)]
    if axis.name == "commit":
        return f"git show {place.id}"
    last = ", ".join(axis.places[at].id for at in _before(axis, culprit))
    return f"{ready.asked.question.package} {last} is the last one that works; look at what {place.id} changed"


def _before(axis: Axis, culprit: object) -> list[int]:
    """The places right before it."""
    if not isinstance(culprit, FirstBad):
        return []
    return list(dict.fromkeys(axis.places[_place(axis, culprit)].parents))


def _place(axis: Axis, one: FirstBad) -> int:
    member = one.members[0]
    return axis.index[str(getattr(member, "bad", ""))]


def _called(axis: Axis, at: int) -> str:
    title = axis.places[at].title
    return f"{axis.name} {axis.called(at)}" + (f" ({title})" if title else "")


def _ended(axis: Axis, at: int, trials: Sequence[Trial]) -> str:
    """How what lies right before the culprit went."""
    passed = [
        t.number for t in trials if t.outcome is Outcome.PASS and t.effective.get(axis.name) == axis.places[at].id
    ]
    if passed:
        return f"passed ({_numbers(passed)})"
    return "cannot be tried" if at in _skipped(axis, trials) else "is one build with what passed"


def _skipped(axis: Axis, trials: Sequence[Trial]) -> set[int]:
    tried = {t.effective.get(axis.name) for t in trials if t.outcome in (Outcome.PASS, Outcome.FAIL)}
    names = {str(t.config[axis.name]) for t in trials if t.outcome is Outcome.SKIP} - tried
    return {axis.index[name] for name in names if name in axis.index}


def _short(axis: Axis, trial: Trial) -> Trial:
    """With a commit's short id, for the table."""
    at = axis.index.get(str(trial.effective.get(axis.name)))
    return trial if at is None else replace(trial, effective={**trial.effective, axis.name: axis.called(at)})


def _numbers(numbers: Sequence[int]) -> str:
    word = "trial" if len(numbers) == 1 else "trials"
    return f"{word} {', '.join(map(str, numbers))}"


def _rate(rate: Rate) -> str:
    return f"{rate.garbled} of {rate.tried} failed (95 %: {rate.low:.0%} to {rate.high:.0%})"
