"""What `diag probe kernels` says: a document for programs, a page for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diag.kernel_check import KernelCheck, Step

SCHEMA = 1
SHOWN = 12

_STYLE = {"right": "bold green", "wrong": "bold red", "cannot_tell": "yellow"}
_WORD = {"right": "right", "wrong": "WRONG", "cannot_tell": "cannot tell"}


def document(seen: KernelCheck) -> dict[str, Any]:
    """The JSON document of `diag probe kernels --json`; its fields are described in docs/json.md."""
    return {
        "schema": SCHEMA,
        "host": seen.host,
        "verdict": seen.verdict,
        "why": seen.why,
        "version": seen.package_version,
        "file": seen.file,
        "device": seen.device,
        "gpu": seen.gpu_why,
        "interpreted": seen.interpreted,
        "engine_imported": seen.real_import,
        "cases": seen.cases,
        "skipped": seen.skipped,
        "wrong_cases": seen.wrong_cases,
        "wrong": [
            {
                "shape": case.label,
                "error": case.error,
                "wrong_rows": list(case.wrong),
                "untouched_rows": list(case.untouched),
                "died": case.died or None,
            }
            for case in seen.wrong
        ],
        "worst_errors": dict(seen.worst),
        "offsets": seen.offsets,
        "steps": [
            {
                "path": step.path,
                "bs": step.bs,
                "num_draft_tokens": step.setting,
                "draft_token_num": step.width,
                "off": list(step.off),
                "wrong_rows": list(step.wrong),
                "untouched_rows": list(step.untouched),
                "rows_wrong_by": dict(step.alone),
                "mask_cells": dict(step.cells),
            }
            for step in seen.steps
        ],
        "seconds": seen.seconds,
    }


def page(seen: KernelCheck) -> Iterator[tuple[str, str]]:
    """(style, line): the answer, where it was found, what is wrong by itself, what by what it is told."""
    name = f"sglang {seen.package_version or '(version unknown)'}"
    yield _STYLE[seen.verdict], f"{name}, extend_attention_fwd: {_WORD[seen.verdict]}"
    yield "", f"  {seen.why}"
    yield "dim", f"  {seen.file or 'no such file'}"
    where = f"{seen.cases} shapes on {seen.device} in {seen.seconds:.0f} s"
    skipped = f", {seen.skipped} more do not fit this GPU" if seen.skipped else ""
    yield "dim", f"  {where}{skipped}; {seen.gpu_why}"
    if seen.worst:
        worst = ", ".join(f"{kind} {error:.1e}" for kind, error in seen.worst.items())
        yield "dim", f"  largest error of a row against float64: {worst}"
    if seen.wrong:
        yield "", ""
        yield "bold", "wrong by itself"
        for case in seen.wrong[:SHOWN]:
            yield "red", f"  {case.label}: {case.died or _rows(case.wrong, case.untouched)}"
        if seen.wrong_cases > SHOWN:
            yield "dim", f"  and {seen.wrong_cases - SHOWN} more (--json lists up to 40)"
    if seen.steps:
        yield "", ""
        yield "bold", "with the offsets that the installed backend computes"
        yield from _table(seen.steps)


def _rows(wrong: Sequence[int], untouched: Sequence[int]) -> str:
    parts = [f"rows {_ranges(wrong)} differ"] if wrong else []
    parts += [f"rows {_ranges(untouched)} are never computed"] if untouched else []
    return ", ".join(parts) or "as it should be"


def _ranges(rows: Sequence[int]) -> str:
    """`0-7, 9`."""
    out: list[list[int]] = []
    for row in rows:
        if out and row == out[-1][1] + 1:
            out[-1][1] = row
        else:
            out.append([row, row])
    told = [str(a) if a == b else f"{a}-{b}" for a, b in out]
    return ", ".join(told[:6]) + (", ..." if len(told) > 6 else "")


def _table(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    head = ("path", "bs", "server's count", "verify width", "rows wrong", "never computed", "through")
    rows = [
        (
            step.path,
            str(step.bs),
            str(step.setting),
            str(step.width),
            f"{len(step.wrong)} of {step.rows}",
            str(len(step.untouched)),
            ", ".join(f"{field} ({count})" for field, count in step.alone.items() if count) or "nothing: harmless here",
        )
        for step in steps
    ]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, *rows):
        line = "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
        yield "dim" if row is head else "", line.rstrip()
