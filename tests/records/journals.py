"""Journals as the programs write them, in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

START = {"hosts": ["box"], "host": "box", "plan": "factors: {}\n", "plan_name": "mine", "rules": 2}


def line(kind: str, **content: Any) -> bytes:
    return json.dumps({"schema": 1, "kind": kind, "at_unix": 1000.0, **content}).encode() + b"\n"


def text(prompt: str = "poem", kind: str = "garbled", how: str = "alone") -> dict[str, Any]:
    healthy = kind in ("identical", "near_tie", "plausible")
    gap = None if healthy else 9.5
    return {"prompt": prompt, "how": how, "kind": kind, "text": "x", "worst_gap_nats": gap, "healthy": healthy}


def trial(number: int, outcome: str = "pass", *texts: dict[str, Any], **more: Any) -> bytes:
    content = {
        "number": number,
        "purpose": "because",
        "config": {"budget": 7 if outcome == "pass" else 16},
        "effective": {"budget": 7 if outcome == "pass" else 16},
        "outcome": outcome,
        "texts": list(texts),
        "reason": "seen",
        "warnings": [],
        "start_s": 1.0,
        "total_s": 2.0,
        "host": "box",
        "signature": "",
    }
    return line("trial", **{**content, **more})


def journal(state: Path, run: str, *lines: bytes) -> Path:
    path = state / "runs" / run / "journal.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(lines))
    return path


def finished(state: Path, run: str = "20261129-120000-aaaaaa") -> Path:
    """A run of three lines of trials, to a verdict."""
    return journal(
        state,
        run,
        line("start", run_id=run, **START),
        trial(1, "pass", text(kind="identical")),
        trial(2, "fail", text(), text("sum", "identical"), text("poem", "no_answer", "together")),
        line("verdict", verdict="culprit", culprit="budget=16"),
    )
