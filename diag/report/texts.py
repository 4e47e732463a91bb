"""Verdicts on texts, as a page and as the document of `diag probe text`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from diag.report.text import one_line
from diag.verdict.texts import Judged, Record

STYLES = {"garbled": "bold red", "suspect": "yellow", "unknown": "dim", "healthy": "green"}

SHOWN = 60
"""Characters of the text that are shown at the place of a piece of evidence."""


def document(source: str, judged: Sequence[tuple[int, Record, Judged]]) -> dict[str, Any]:
    return {
        "schema": 1,
        "file": source,
        "counts": counts(judged),
        "texts": [{"line": line, "id": record.id, **verdict.to_json()} for line, record, verdict in judged],
    }


def counts(judged: Sequence[tuple[int, Record, Judged]]) -> dict[str, int]:
    found = Counter(verdict.verdict for _, _, verdict in judged)
    return {name: found[name] for name in ("healthy", "suspect", "garbled", "unknown")}


def page(judged: Sequence[tuple[int, Record, Judged]]) -> Iterator[tuple[str, str]]:
    """(style, line): a verdict for each text, under it its evidence."""
    for line, record, verdict in judged:
        name = f" {record.id}" if record.id is not None else ""
        yield STYLES[verdict.verdict], f"{line:5}{name}  {verdict.verdict}"
        for each in verdict.evidence:
            start, end = each.where
            yield "", f"         {each.rule}, characters {start} to {end}: {one_line(each.why, 300)}"
            if end > start and record.text:
                yield "dim", f"         {one_line(record.text[start : min(end, start + SHOWN)], 2 * SHOWN)}"
    total = counts(judged)
    yield "", ", ".join(f"{number} {name}" for name, number in total.items() if number) or "no texts"


def exit_code(judged: Sequence[tuple[int, Record, Judged]]) -> int:
    """1: one is garbled; 3: one is suspect, or none could be judged; 0 otherwise."""
    total = counts(judged)
    if total["garbled"]:
        return 1
    return 3 if total["suspect"] or not total["healthy"] else 0
