"""`diag probe text`: judge texts that one already has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, console, print_json

if TYPE_CHECKING:
    from diag.verdict.texts import Record

MOST_PROBLEMS = 10


@click.command()
@click.argument("file", metavar="FILE.jsonl")
@JSON
def text(file: str, as_json: bool) -> int:
    """Judge the texts in FILE.jsonl, one JSON object a line with "text" and, where known, "id", "prompt", "language",
    "token_ids", "finish_reason", "expect", "absent", "parses", "error"; - reads standard input. No server is asked.

    Each text is healthy, suspect, garbled or unknown, with what speaks for it: the rule, the place, the numbers.

    Exit code 0: none is garbled or suspect; 1: one is garbled; 3: one is suspect, or none could be judged.
    """
    from diag.report import texts as report
    from diag.report.text import visible
    from diag.verdict.texts import judge

    judged = [(line, record, judge(record)) for line, record in _read(file)]
    if as_json:
        print_json(report.document(file, judged))
    else:
        out = console()
        for style, line in report.page(judged):
            out.print(visible(line), style=style)
    return report.exit_code(judged)


def _read(file: str) -> list[tuple[int, Record]]:
    """Raises UsageError with every line that cannot be read."""
    from diag.errors import UsageError

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", next="Check the name of the file.") from None
    problems: list[str] = []
    records = list(_records(raw, problems))
    if problems:
        more = [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        raise UsageError(
            f"{file}: {len(problems)} of its lines are not texts as diag reads them.",
            next='Each line is one JSON object with at least "text".',
            details=[*problems[:MOST_PROBLEMS], *more],
        )
    return records


def _records(raw: bytes, problems: list[str]) -> Iterator[tuple[int, Record]]:
    import json

    from pydantic import ValidationError

    from diag.verdict.texts import Record

    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            # Bytes that are no UTF-8 stay visible as such: they are what is to be judged.
            document = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: not JSON: {error}"[:200])
            continue
        try:
            # By its own objects, not as JSON text again: a lone surrogate is a text to judge, not bad input.
            yield number, Record.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            problems.append(f"line {number}: {where}: {first['msg']}"[:200])
