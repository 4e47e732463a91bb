"""How often it shows, with and without what is accused: counts of the trials, with exact intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diag.bisect.expr import ExpressionError, Value, parse
from diag.records.runs import TrialRow
from diag.verdict.statistics import rate

Active = Callable[[Mapping[str, Value]], bool | None]


def rates(trials: Sequence[TrialRow], told: Mapping[str, Any], *, over: bool) -> list[dict[str, Any]]:
    """With it and without it: garbled of tried, 95 % interval. The run's own where it gives them. over: the run was
    about versions or commits, of which a name says nothing about the others."""
    given = told.get("rates")
    if given:
        return [{"what": _WHAT[name], **{key: given[name][key] for key in _KEYS}} for name in ("active", "idle")]
    active = None if over else _active(told.get("culprit"))
    evidence = [row for row in trials if row.outcome in ("pass", "fail")]
    if active is None or not evidence:
        return []
    found = []
    for name, wanted in (("active", True), ("idle", False)):
        rows = [row for row in evidence if active(row.effective) is wanted]
        failed = rate(sum(row.outcome == "fail" for row in rows), len(rows)) if rows else None
        if failed is not None:
            counts = (failed.garbled, failed.tried, failed.low, failed.high)
            found.append({"what": _WHAT[name], **dict(zip(_KEYS, counts))})
    return found


_KEYS = ("garbled", "tried", "low", "high")
_WHAT = {"active": "with the culprit", "idle": "without it"}


def _active(culprit: Mapping[str, Any] | None) -> Active | None:
    """Whether a trial had what is accused, by the values that were in force."""
    if culprit is None:
        return None
    if culprit.get("predicate") is not None:
        try:
            return parse(str(culprit["predicate"])).tells
        except ExpressionError:
            return None
    levels, relation = dict(culprit["factors"]), any if culprit["relation"] == "or" else all

    def active(effective: Mapping[str, Value]) -> bool | None:
        if not set(levels) <= set(effective):
            return None
        return relation(effective[name] == level for name, level in levels.items())

    return active
