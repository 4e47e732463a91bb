"""What `diag probe host` found, kept as a run: to be compared with the next time, and for the report.

Written after the answer is given, without the record's database; a probe never fails for it.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diag import paths
from diag.errors import DiagError
from diag.journal import Journal
from diag.records.telling import bounded

SUFFIX = ".probe"
KEPT, KEPT_BYTES = 200, 64 * 1024 * 1024
"""Of the probes so far the newest ones, within both."""
MAX_NEXT = 5

VERDICTS = {0: "healthy", 1: "fault", 3: "unknown", 4: "unreachable"}
"""By exit code."""


def record(
    name: str,
    documents: Mapping[str, Mapping[str, Any]],
    exit_code: int,
    differences: Sequence[Mapping[str, Any]] = (),
    warn: Callable[[str], None] = lambda why: None,
) -> str | None:
    """name: the host or the group as it was asked for. documents: by host, as `diag probe host --json` has them, or
    {"error": ...}. The run's name; None where it could not be written, which is said."""
    root = paths.state_dir() / "runs"
    run = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3) + SUFFIX
    try:
        hosts = list(documents)
        with Journal(root / run, run) as journal:
            journal.write("start", program="probe", run_id=run, name=name, hosts=hosts, host=", ".join(hosts))
            journal.write_all(_host(host, document) for host, document in documents.items())
            journal.write_all(
                [
                    ("report", {"document": _told(name, documents, differences, exit_code)}),
                    (
                        "verdict",
                        {"verdict": VERDICTS.get(exit_code, "unknown"), "culprit": None, "exit_code": exit_code},
                    ),
                ]
            )
        _forget(root)
    except (DiagError, OSError) as error:
        warn(f"this probe is not kept: {error}")
        return None
    return run


def _host(host: str, document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "error" in document:
        return "host", {"host": host, "out": str(document["error"].get("what", ""))}
    return "facts", {"host": host, "document": bounded(document)}


def _told(
    name: str, documents: Mapping[str, Mapping[str, Any]], differences: Sequence[Mapping[str, Any]], exit_code: int
) -> dict[str, Any]:
    """The answer in lines, as the report prints it."""
    several = len(documents) > 1
    findings = [(host, finding) for host, document in documents.items() for finding in document.get("findings", ())]
    faults = sum(finding["severity"] == "fault" for _, finding in findings)
    word = VERDICTS.get(exit_code, "unknown").upper()
    said = f"{name}: {faults} fault{'' if faults == 1 else 's'} found" if faults else f"{name}: no fault found"
    reasons = [
        {
            "label": str(finding["severity"]),
            "text": f"{host + ': ' if several else ''}{finding['id']}: {finding['what']}",
        }
        for host, finding in findings
    ]
    reasons += [
        {"label": "differs", "text": f"{one['what']}: {', '.join(f'{h} {v}' for h, v in one['values'].items())}"[:400]}
        for one in differences
        if one.get("matters")
    ]
    steps = dict.fromkeys(str(finding["next"]) for _, finding in findings if finding.get("next"))
    return {"answer": [f"{word}   {said}"], "reasons": reasons, "next": list(steps)[:MAX_NEXT]}


def _forget(root: Path) -> None:
    """The oldest ones, which are more than are kept."""
    total = 0
    for number, folder in enumerate(sorted(root.glob(f"*{SUFFIX}"), reverse=True)):
        total += sum(file.stat().st_size for file in folder.iterdir())
        if number >= KEPT or total > KEPT_BYTES:
            shutil.rmtree(folder, ignore_errors=True)
