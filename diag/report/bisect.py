"""What a bisection says: one document for programs, one page for a person. Pure: values in, JSON or lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diag.bisect.decision import Rate, Verdict, signature_of
from diag.bisect.early import ends_alike, no_effect
from diag.bisect.hypotheses import Hypothesis
from diag.bisect.run import Result
from diag.bisect.space import Derived, Factor, Space, describe, level_text
from diag.bisect.trial import Outcome, Trial
from diag.report.text import aligned, one_line

SCHEMA = 1

EXIT = {"clean": 0, "fails": 1, "culprit": 1, "not_reproduced": 3, "environmental": 3, "narrowed": 3, "unexplained": 3}

HEADLINE = {
    "clean": "CLEAN",
    "fails": "FAILS",
    "culprit": "CULPRIT",
    "not_reproduced": "NOT REPRODUCED",
    "environmental": "NOT ONE OF THE FACTORS",
    "narrowed": "NARROWED",
    "unexplained": "UNEXPLAINED",
}

ADVICE = {
    "not_reproduced": "Check that the failing configuration is the one that failed, on this host, with these prompts; "
    "raise the load or the number of prompts.",
    "environmental": "The good configuration fails too: look at what all trials share (model, driver, version, other "
    "flags), or choose another good end.",
    "narrowed": "Raise max_trials in the plan, or leave out factors that are cleared.",
    "unexplained": "Add what is missing to the plan: another factor, a derived rule, or repeat it if the fault is "
    "intermittent.",
}


MEANS = {
    "not_reproduced": "What is said to fail was healthy here: there is nothing to search for.",
    "environmental": "The good settings fail as well: what the plan varies is not the cause.",
    "unexplained": "No single setting, combination or rule of the plan fits what was seen.",
    "clean": "The configuration that failed is healthy now.",
    "fails": "The configuration still fails.",
}

NOTHING_TAKES_EFFECT = (
    "Compare the plan's flags with the server's --help, and `reads` with its /server_info: nothing that was varied "
    "reached it."
)

SHOWN = 3
"""Explanations that are named where several are left."""


@dataclass(frozen=True)
class FaultySource:
    """What the installed source says about it. lines: numbered, as they stand in the file."""

    fault: str
    title: str
    state: str
    path: str
    version: str
    sha256: str
    lines: tuple[tuple[int, str, str], ...]  # line number, symbol, text


Reason = tuple[str, str, str]
"""(style, label, text): one line of what speaks for the answer."""

LABEL_WIDTH = 13


def document(result: Result, space: Space, host: str, plan_name: str, source: FaultySource | None) -> dict[str, Any]:
    """The JSON document of `diag bisect --json`; its fields are described in docs/json.md."""
    verdict, dead = result.verdict, no_effect(space, result.trials)
    return {
        "schema": SCHEMA,
        "host": host,
        "hosts": list(result.hosts),
        "left_out": dict(result.left_out),
        "plan": plan_name,
        "run": result.run_id,
        "journal": result.journal,
        "verdict": verdict.kind,
        "why": verdict.why,
        "answer": [line.strip() for _, line in _answer(result, space, host)],
        "reasons": reasons_json(_reasons(result, space)),
        "next": next_json(_next_step(result, space, host, source)),
        "culprit": _culprit(verdict.culprit, verdict.confidence) if verdict.culprit is not None else None,
        "sufficient": list(verdict.sufficient),
        "necessary": list(verdict.necessary),
        "cleared": dict(verdict.cleared or {}),
        "held_out": list(verdict.held_out),
        "rates": asdict(verdict.rates) if verdict.rates is not None else None,
        "runners_up": [{"name": h.name, "weight": round(w, 6)} for h, w in verdict.runners_up],
        "inseparable": [h.name for h in verdict.inseparable],
        "untested": [h.name for h in verdict.untested],
        "rejected": [{"name": r.hypothesis.name, "trial": r.trial, "why": r.why} for r in verdict.rejected],
        "no_effect": list(dead),
        "no_effect_because": dead,
        "signature": signature_of(space, result.trials),
        "other_failures": [{"trial": number, "signature": text} for number, text in verdict.other_failures],
        "forbidden": dict(verdict.forbidden),
        "trials": [trial.to_json() for trial in result.trials],
        "elapsed_s": round(result.elapsed_s, 3),
        "source": _source(source),
    }


def _culprit(culprit: Hypothesis, confidence: float) -> dict[str, Any]:
    factors = {m.name: m.bad for m in culprit.members if isinstance(m, Factor)}
    predicates = [m.when.text for m in culprit.members if isinstance(m, Derived)]
    return {
        "name": culprit.name,
        "title": culprit.title,
        "factors": factors,
        "relation": {"either": "or"}.get(culprit.kind, "and"),
        "predicate": predicates[0] if predicates else None,
        "confidence": round(confidence, 6),
    }


def _source(source: FaultySource | None) -> dict[str, Any] | None:
    if source is None:
        return None
    lines = [{"line": number, "symbol": symbol, "text": text} for number, symbol, text in source.lines]
    return {
        "fault": source.fault,
        "state": source.state,
        "path": source.path,
        "version": source.version,
        "sha256": source.sha256,
        "sites": lines,
    }


def page(result: Result, space: Space, host: str, source: FaultySource | None) -> Iterator[tuple[str, str]]:
    """(style, line): the answer in the first lines, then why, then the table, then the source, then what to do."""
    yield from _answer(result, space, host)
    yield "", ""
    yield from reason_lines(_reasons(result, space))
    yield "", ""
    yield from table(result.trials, space)
    yield from _sample(result.trials)
    if source is not None:
        yield from _faulty_lines(source)
    yield from _next_step(result, space, host, source)


def _answer(result: Result, space: Space, host: str) -> Iterator[tuple[str, str]]:
    """Three lines."""
    verdict = result.verdict
    if verdict.culprit is not None:
        yield "bold red", f"{HEADLINE[verdict.kind]}   {verdict.culprit.title}"
        yield "", f"          {_plainly(verdict.culprit, signature_of(space, result.trials))}"
        yield "", f"          {_confidence(verdict)}; {_spent(result, host)}"
    else:
        style = {"clean": "bold green", "fails": "bold red"}.get(verdict.kind, "bold yellow")
        yield style, f"{HEADLINE[verdict.kind]}   {verdict.why}"
        yield "", f"          {_left(verdict) if verdict.kind == 'narrowed' else MEANS[verdict.kind]}"
        yield "", f"          {_spent(result, host)}"


def reason_lines(reasons: Iterable[Reason]) -> Iterator[tuple[str, str]]:
    for style, label, text in reasons:
        yield style, f"{label:{LABEL_WIDTH}} {text}"


def next_json(lines: Iterable[tuple[str, str]]) -> list[str]:
    return [line.removeprefix("next: ") for _, line in lines if line.startswith("next: ")]


def reasons_json(reasons: Iterable[Reason]) -> list[dict[str, str]]:
    return [{"label": label, "text": text} for _, label, text in reasons]


def _spent(result: Result, host: str) -> str:
    """5 trials (3 server starts), 12.0 min on gpu1."""
    count, starts = len(result.trials), sum(trial.start_s > 0 for trial in result.trials)
    told = f"{count} trial{'s' if count != 1 else ''}"
    if 0 < starts < count:
        told += f" ({starts} server starts)"
    return f"{told}, {result.elapsed_s / 60:.1f} min on {host}"


def _plainly(culprit: Hypothesis, signature: str) -> str:
    """For someone who has never heard of a posterior."""
    what = _symptom(signature)
    each = [one.name for one in (Hypothesis("single", (m,)) for m in culprit.members) if one.name]
    match culprit.kind:
        case "pair" | "triple":
            few = "neither of them is enough" if culprit.kind == "pair" else "no two of them are enough"
            return f"{what} where {_and(each)} come together; {few} by itself."
        case "either":
            return f"{what} with {each[0]}, and with {each[1]}: each is enough by itself."
        case _:
            return f"{what} where {culprit.name}, whatever else is set; otherwise all is well."


def _symptom(signature: str) -> str:
    if signature.startswith("died"):
        return f"The server dies ({signature.removeprefix('died').removeprefix(': ')})"
    if signature.startswith("answers"):
        return f"The server {signature}"
    return {
        "": "It fails",
        "fails": "The trial fails",
        "garbled": "The output breaks",
        "too short": "The output ends too early",
        "empty": "The output is empty",
        "no answer": "The server gives no answer",
        "aborts": "The server aborts requests",
        "wrong answer": "The answers are wrong",
    }.get(signature, f"It fails ({signature})")


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def _left(verdict: Verdict) -> str:
    """What is still possible, likeliest first."""
    names = [f"{h.name} ({weight:.0%})" for h, weight in verdict.alive[:SHOWN]]
    more = len(verdict.alive) - len(names)
    rest = f", or one of {more} others" if more > 0 else ""
    return f"Still possible: {'; '.join(names)}{rest}." if names else "Nothing is ruled in or out yet."


def _confidence(verdict: Verdict) -> str:
    if verdict.rates is not None and verdict.confidence <= 0.999:
        return f"{verdict.confidence:.1%} sure"
    if verdict.confidence <= 0.999:
        return f"{verdict.confidence:.1%} of what is still possible"
    if verdict.inseparable:
        return "But for what is inseparable from it (below), nothing else in the plan explains the trials"
    return "Nothing else in the plan explains the trials"


def _reasons(result: Result, space: Space) -> Iterator[Reason]:
    verdict, trials = result.verdict, result.trials
    if verdict.culprit is not None:
        if sum(factor.suspect for factor in space.factors) == 1 and verdict.culprit.kind == "single":
            yield "", "only suspect", "the plan varies nothing else, so nothing else could have been named"
        if verdict.sufficient:
            numbers = _numbers(verdict.sufficient)
            yield "", "sufficient", f"the good configuration fails with it alone ({numbers})"
        if verdict.necessary:
            numbers = _numbers(verdict.necessary)
            yield "", "necessary", f"the failing configuration is clean without it ({numbers})"
        for name, cleared_by in (verdict.cleared or {}).items():
            factor = space.factor(name)
            label = f"{factor.title} ({name})" if factor.title else name
            good = level_text(factor.good)
            yield "", "not needed", f"{label}: with {name}={good} it still fails (trial {cleared_by})"
        if verdict.inseparable:
            others = "; ".join(_with_constraint(h.name, verdict) for h in verdict.inseparable)
            yield "", "inseparable", f"no configuration of this plan tells it from: {others}"
        if verdict.held_out:
            yield "", "held out", f"went as it foretells ({_numbers(verdict.held_out)})"
        if verdict.rates is not None:
            active, idle = _rate(verdict.rates.active), _rate(verdict.rates.idle)
            yield "", "rates", f"with it {active}; without it {idle}"
        for hypothesis in verdict.untested:
            yield "", "not tested", f"{hypothesis.title}: this server does not report what it needs"
    for derived in space.derived:
        against = next((r for r in verdict.rejected if r.hypothesis.members == (derived,)), None)
        if against is not None:
            label = f"{derived.title} ({derived.when.text})" if derived.title else derived.when.text
            yield "", "not the cause", f"{label}: {against.why} (trial {against.trial})"
    for trial in trials:
        for warning in trial.warnings:
            yield "yellow", "warning", f"trial {trial.number}: {warning}"
    yield from _set_aside(result, space)


def _set_aside(result: Result, space: Space) -> Iterator[Reason]:
    """What counts for nothing, and why."""
    for name, why in no_effect(space, result.trials).items():
        yield "yellow", "no effect", f"{name}: {why}"
    for number, signature in result.verdict.other_failures:
        says = f"trial {number}: {signature}; not what is looked for, so it counts for nothing"
        yield "yellow", "another fault", says
    for host, why in result.left_out.items():
        yield "yellow", "left out", f"{host}: {why}"
    again = [trial for trial in result.trials if trial.outcome is Outcome.INFRA]
    if again:
        whys = ", ".join(dict.fromkeys(trial.signature or trial.reason for trial in again))
        yield "yellow", "not counted", f"{_numbers([trial.number for trial in again])}: {whys}"


def _with_constraint(name: str, verdict: Verdict) -> str:
    constraint = verdict.forbidden.get(name)
    return f"{name} (forbidden by {constraint})" if constraint is not None else name


def _rate(rate: Rate) -> str:
    return f"{rate.garbled} of {rate.tried} starts garbled (95 %: {rate.low:.0%} to {rate.high:.0%})"


def _numbers(numbers: Sequence[int]) -> str:
    word = "trial" if len(numbers) == 1 else "trials"
    return f"{word} {', '.join(map(str, numbers))}"


OUTCOME_STYLE = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.SKIP: "yellow", Outcome.INFRA: "yellow"}


def table(trials: Sequence[Trial], space: Space) -> Iterator[tuple[str, str]]:
    """The evidence: one line a trial; garbled of asked, alone and at once."""
    names = [f.name for f in space.factors]
    derived = [d.name for d in space.derived]
    counted = ["alone", "at once"] if any(t.texts for t in trials) else []
    hosts = ["host"] if len({t.host for t in trials}) > 1 else []
    started = ["start s"] if any(t.start_s for t in trials) else []
    header = [*names, *derived, *hosts, *counted, "verdict", *started, "total s"]
    first, *lines = aligned(
        ["#", *header], [[f"{t.number:3}", *(_cell(t, column) for column in header)] for t in trials]
    )
    yield "bold", first
    for trial, line in zip(trials, lines):
        yield OUTCOME_STYLE[trial.outcome], line


def _cell(trial: Trial, column: str) -> str:
    match column:
        case "alone" | "at once":
            bad, asked = trial.count("alone" if column == "alone" else "together")
            return f"{bad}/{asked}" if asked else "-"
        case "verdict":
            return _verdict_cell(trial)
        case "host":
            return trial.host
        case "start s":
            return f"{trial.start_s:.1f}"
        case "total s":
            return f"{trial.total_s:.1f}"
        case _:
            value = trial.effective.get(column)
            return "?" if value is None else level_text(value)


def _verdict_cell(trial: Trial) -> str:
    match trial.outcome:
        case Outcome.FAIL:
            return "GARBLED" if trial.signature in ("", "garbled") else one_line(trial.signature, 30)
        case Outcome.SKIP:
            return "did not start" if trial.signature == "does not start" or not trial.texts else "no answers"
        case Outcome.INFRA:
            return "not counted"
    return "clean"


def _sample(trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """One garbled text beside the healthy one: a person trusts their own eyes."""
    texts = [(t.number, text) for t in trials for text in t.texts if text.kind == "garbled"]
    if not texts:
        return
    number, worst = max(texts, key=lambda item: item[1].worst_gap_nats or 0.0)
    yield "", ""
    yield "bold", f"for example, trial {number}, prompt '{worst.prompt}' {worst.how}: {worst.why}"
    if worst.reference is not None:
        yield "green", f"  good     {one_line(worst.reference, 140)}"
    yield "red", f"  garbled  {one_line(worst.text, 140)}"


def _faulty_lines(source: FaultySource) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield "bold", f"in the installed source: {source.fault} is {source.state.replace('_', ' ')}"
    yield "", f"  {source.path} ({source.version})"
    symbol = ""
    for number, owner, text in source.lines:
        if owner != symbol:
            symbol = owner
            yield "", f"  {owner}"
        yield "red", f"  {number:>6} | {text}"


def _next_step(result: Result, space: Space, host: str, source: FaultySource | None) -> Iterator[tuple[str, str]]:
    yield "", ""
    verdict = result.verdict
    if verdict.culprit is None and ends_alike(space, result.trials) is not None:
        yield "bold", f"next: {NOTHING_TAKES_EFFECT}"
    elif verdict.kind in ADVICE:
        yield "bold", f"next: {ADVICE[verdict.kind]}"
    elif source is not None and source.state == "present":
        for each in result.hosts or (host,):
            yield "bold", f"next: diag fix apply {each} {source.fault} --diff    (shows the patch, touches nothing)"
    yield "dim", f"every trial, with its texts: {result.journal}"


def trial_line(trial: Trial, base: dict[str, Any]) -> str:
    """One finished trial in one line; base: the failing configuration, named by what differs from it."""
    changed = {name: level for name, level in trial.config.items() if level != base[name]}
    what = describe(changed) if changed else "as reported"
    mark = {"pass": "clean  ", "fail": "GARBLED", "skip": "skipped", "infra": "no evidence"}[trial.outcome.value]
    if trial.outcome is Outcome.FAIL and trial.signature not in ("", "garbled"):
        mark = "FAILS  "
    return f"{mark} [{what}] {one_line(trial.reason, 90)}"
