"""Where the minutes of a run went, by the times that its journal holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from diag.records.runs import TrialRow, Whole

Kind = Literal["start", "ask", "stop", "step", "away"]

SAYS: dict[Kind, str] = {
    "start": "servers starting",
    "ask": "prompts asked and judged",
    "stop": "servers stopping",
    "step": "steps of the playbook",
    "away": "cut off, not gone on with yet",
}
REST = {
    "bisect": "connecting, reading the host, deciding",
    "playbook": "between the steps",
    "probe": "reading the host",
}


@dataclass(frozen=True)
class Span:
    """lane: the host. from_s, to_s: since the run began."""

    kind: Kind
    what: str
    lane: str
    from_s: float
    to_s: float


def spent(found: Whole, bodies: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """spans: one by one, of the trials in `bodies`; totals: of all of them, [{what, seconds}]; what is in no trial and
    no pause is what REST calls it. With several hosts the totals of all add up to more than the run took."""
    began = found.run.began_unix
    ended = max((at for at in found.at_unix.values() if at is not None), default=None)
    if began is None or ended is None:
        return {"spans": [], "totals": [], "lanes": []}
    away = list(_away(found, began))
    trials = [span for row in found.trials for span in _of_trial(row, bodies.get(row.number), began)]
    steps = [_of_step(row.step, row.at_unix, row.seconds, began) for row in found.steps if row.state != "begun"]
    spans = [*trials, *(span for span in steps if span is not None), *away]
    totals = [
        {"what": SAYS[kind], "kind": kind, "seconds": round(sum(s.to_s - s.from_s for s in spans if s.kind == kind), 3)}
        for kind in SAYS
        if any(span.kind == kind for span in spans)
    ]
    rest = max(0.0, ended - began - _covered(spans))
    names = {f"trial {number}" for number in bodies}
    shown = [span for span in spans if span.kind == "step" or span.what in names]
    return {
        "spans": [asdict(span) for span in (*shown, *away)],
        "totals": [
            *totals,
            {"what": REST.get(found.run.program, "the rest"), "kind": "rest", "seconds": round(rest, 3)},
        ],
        "lanes": list(dict.fromkeys(span.lane for span in spans if span.kind != "away")),
    }


def _of_trial(row: TrialRow, body: Mapping[str, Any] | None, began: float) -> Iterator[Span]:
    if row.at_unix is None:
        return
    to_s = row.at_unix - began
    from_s, what = to_s - row.total_s, f"trial {row.number}"
    started = min(to_s, from_s + row.start_s)
    stopped = ((body or {}).get("details") or {}).get("stopped") or {}
    stopping = min(to_s - started, float(stopped.get("seconds") or 0.0))
    if started > from_s:
        yield Span("start", what, row.host, from_s, started)
    yield Span("ask", what, row.host, started, to_s - stopping)
    if stopping:
        yield Span("stop", what, row.host, to_s - stopping, to_s)


def _of_step(step: str, at_unix: float | None, seconds: float | None, began: float) -> Span | None:
    if at_unix is None or not seconds:
        return None
    return Span("step", step, "", at_unix - began - seconds, at_unix - began)


def _away(found: Whole, began: float) -> Iterator[Span]:
    """From the last line before a run was gone on with, to that."""
    for line in found.lines.get("resumed", ()):
        before, after = found.at_unix.get(line - 1), found.at_unix.get(line)
        if before is not None and after is not None and after > before:
            yield Span("away", "cut off", "", before - began, after - began)


def _covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of them was under way."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.from_s):
        total += max(0.0, span.to_s - max(span.from_s, until))
        until = max(until, span.to_s)
    return total
