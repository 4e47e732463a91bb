"""What `diag probe source` and `diag source` say: a document for programs, a page for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diag.source import listing
from diag.source.inspection import Edit, Inspection, Judged
from diag.source.oracle import OracleAnswer
from diag.source.targets import Installation
from diag.source.view import View

SCHEMA = 1
SHORT_DIFF = 40  # lines of a diff that the page shows unasked

_STATE = {
    "present": ("bold red", "PRESENT"),
    "fixed": ("green", "fixed"),
    "not_applicable": ("green", "not applicable"),
    "unknown": ("yellow", "cannot tell"),
}


def document(seen: Inspection) -> dict[str, Any]:
    """The JSON document of `diag probe source --json`; its fields are described in docs/faults.md."""
    found = seen.installation
    diffs = {edit.path: edit for edit in seen.edits}
    return {
        "schema": SCHEMA,
        **_installation(found),
        "backends": list(seen.backends),
        "faults": [_fault(judged, seen.oracle) for judged in seen.faults],
        "files": [
            {
                "path": file.path,
                "integrity": file.integrity,
                "sha256": file.sha256,
                "diff": diffs[file.path].diff if file.path in diffs else None,
            }
            for file in found.files
        ],
        "disagreement": seen.disagreement,
        "others": list(found.others),
        "unknown": [dict(gap) for gap in found.unknown],
    }


def _installation(found: Installation) -> dict[str, Any]:
    return {
        "target": found.target.typed,
        "kind": found.target.kind,
        "package": found.package,
        "version": found.version,
        "where": found.where,
        "python": found.python,
    }


def _fault(judged: Judged, oracle: OracleAnswer | None) -> dict[str, Any]:
    detection = judged.detection
    return {
        "id": judged.fix.id,
        "title": judged.fix.title,
        "severity": judged.severity,
        "state": detection.state,
        "why": detection.why,
        "sites": [
            {"file": judged.file.path, "symbol": site.symbol, "line": site.line, "text": site.text, "role": site.role}
            for site in detection.sites
        ],
        "mends": judged.fix.mend is not None,
        "oracle": _oracle(oracle) if judged.fix.oracle and oracle is not None else None,
    }


def _oracle(answer: OracleAnswer) -> dict[str, Any]:
    return {
        "verdict": answer.verdict,
        "why": answer.why,
        "summary": answer.summary,
        "notes": list(answer.notes),
        "seconds": answer.seconds,
    }


Row = tuple[str, str]


def page(seen: Inspection, *, whole_diff: bool) -> Iterator[Row]:
    """(style, line): what is wrong first, then each fault with its lines, then the files."""
    found = seen.installation
    name = f"{found.package} {found.version or '(version unknown)'}"
    code = seen.exit_code
    style, word = {
        0: ("bold green", f"no fault for --attention-backend {', '.join(seen.backends)}"),
        1: ("bold red", f"{seen.count} fault{'s' if seen.count > 1 else ''} present"),
        3: ("yellow", "not everything could be told"),
    }[code]
    yield style, f"{name}: {word}"
    yield "", f"  {found.where}" + (f" ({found.python})" if found.python else "")
    for other in found.others:
        yield "dim", f"  also in {other}"
    if seen.disagreement is not None:
        yield "bold yellow", f"  {seen.disagreement}"
    for judged in seen.faults:
        if judged.severity == "fault":
            yield "", ""
            yield from _fault_rows(judged, seen.oracle, found)
    yield "", ""
    for judged in seen.faults:
        if judged.severity == "notice":
            yield from _notice_rows(judged)
    yield "", ""
    for file in found.files:
        yield "yellow" if file.integrity in ("edited", "missing") else "dim", f"{file.integrity:9} {file.path}"
    for edit in seen.edits:
        yield from _edit_rows(edit, whole_diff)
    for gap in found.unknown:
        yield "yellow", f"could not look at {gap['what']}: {gap['why']}"


def _fault_rows(judged: Judged, oracle: OracleAnswer | None, found: Installation) -> Iterator[Row]:
    detection = judged.detection
    style, word = _STATE[detection.state]
    yield style, f"{judged.fix.id}  {word}: {detection.why}"
    if oracle is not None and judged.fix.oracle:
        yield "dim", f"  oracle: {oracle.verdict.replace('_', ' ')}: {oracle.summary or oracle.why}"
    if detection.state not in ("present", "unknown"):
        return
    yield "", f"  {judged.file.path}"
    sites = [site for site in detection.sites if site.source == "server"] or list(detection.sites)
    symbol = ""
    for excerpt in listing.excerpts(judged.file.text, sites, context=0):
        if excerpt.symbol != symbol:
            symbol = excerpt.symbol
            yield "", f"  {symbol}"
        for line in listing.numbered(excerpt):
            yield "red" if detection.state == "present" else "", f"    {line}"
    if judged.fix.mend is not None and detection.state == "present" and found.target.kind == "host":
        yield "dim", f"  → diag fix apply {found.target.typed} {judged.fix.id} --diff"
    else:
        yield "dim", f"  → diag explain {judged.fix.id}"


def _notice_rows(judged: Judged) -> Iterator[Row]:
    detection = judged.detection
    word = _STATE[detection.state][1].lower()
    lines = sorted({site.line for site in detection.sites if site.source == "server" and site.role != "definition"})
    where = (
        f", line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}" if lines and detection.state == "present" else ""
    )
    backends = "/".join(judged.fix.backends)
    yield "dim", f"{judged.fix.id:24} {word} ({backends}{where if detection.state == 'present' else ''})"


def _edit_rows(edit: Edit, whole: bool) -> Iterator[Row]:
    yield "", ""
    if edit.diff is None:
        yield "yellow", f"{edit.path} is edited; no diff: {edit.why}"
        return
    rows = edit.diff.splitlines()
    if not whole and len(rows) > SHORT_DIFF:
        yield "yellow", f"{edit.path} is edited: {len(rows)} lines of diff (--diff shows them)"
        return
    yield from diff_rows(rows)


def diff_rows(rows: list[str]) -> Iterator[Row]:
    for row in rows:
        yield {"+": "green", "-": "red", "@": "cyan"}.get(row[:1], ""), row


# --- diag source --------------------------------------------------------------------------------------------------


def view_document(seen: View) -> dict[str, Any]:
    """The JSON document of `diag source --json`."""
    return {
        "schema": SCHEMA,
        **_installation(seen.installation),
        "path": seen.file.path,
        "integrity": seen.file.integrity,
        "sha256": seen.file.sha256,
        "symbol": seen.symbol,
        "blocks": [
            [{"number": line.number, "text": line.text, "matches": line.matches} for line in block]
            for block in seen.blocks
        ],
        "against": None if seen.against is None else {"what": seen.against.what, "diff": seen.against.diff},
    }


def view_head(seen: View) -> str:
    """What is shown, for standard error: the lines alone are for standard output."""
    found = seen.installation
    version = found.version or "(version unknown)"
    return f"{found.where}/{seen.file.path}: {found.package} {version}, {seen.file.integrity} by its RECORD"


def view_rows(seen: View) -> Iterator[Row]:
    """Numbered lines; `--` between blocks, as grep has it. With `against`, the diff instead."""
    if seen.against is not None:
        yield from diff_rows(seen.against.diff.splitlines())
        return
    width = len(str(max((block[-1].number for block in seen.blocks), default=0)))
    for index, block in enumerate(seen.blocks):
        if index:
            yield "dim", "--"
        for line in block:
            yield "bold" if line.matches else "", f"{line.number:>{width}} | {line.text}"
