"""Garbled texts beside healthy ones, from the journal of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.records.runs import BadText, Whole

MAX_PAIRS = 6
MAX_CHARS = 4000
MAX_TOKENS = 512


def pairs(found: Whole, start: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The worst ones first, one of each prompt. common: characters that both begin with; None without a healthy text.
    gaps_nats: for each token, how far it is below the best one; empty where it was not scored."""
    asked = {prompt["name"]: prompt["text"] for prompt in (start.get("suite") or {}).get("prompts") or []}
    chosen: dict[str, BadText] = {}
    for bad in sorted(found.bad, key=lambda bad: (bad.kind == "no_answer", -(bad.worst_gap_nats or 0.0), bad.trial)):
        chosen.setdefault(bad.prompt, bad)
    lines = {row.number: row.line for row in found.trials}
    made = []
    for bad in list(chosen.values())[:MAX_PAIRS]:
        text = found.read(lines[bad.trial])["texts"][bad.place]
        if text["text"] or text.get("reference") or bad.kind == "no_answer":
            made.append(_pair(bad, text, _healthy(found, bad, text), asked.get(bad.prompt)))
    return made


def _healthy(found: Whole, bad: BadText, text: Mapping[str, Any]) -> str | None:
    """What it was compared with; else what the first healthy trial answered to the same prompt."""
    if text.get("reference") is not None:
        return str(text["reference"])
    for row in found.trials:
        if row.outcome == "pass" and row.alone[1] + row.together[1]:
            for other in found.read(row.line)["texts"]:
                if other["prompt"] == bad.prompt and other["text"]:
                    return str(other["text"])
            return None
    return None


def _pair(bad: BadText, text: Mapping[str, Any], healthy: str | None, asked: str | None) -> dict[str, Any]:
    words = str(text["text"])
    common = _common(words, healthy) if healthy is not None else None
    return {
        "trial": bad.trial,
        "prompt": bad.prompt,
        "asked": asked,
        "how": bad.how,
        "kind": bad.kind,
        "why": str(text.get("why") or ""),
        "text": words[:MAX_CHARS],
        "healthy": healthy[:MAX_CHARS] if healthy is not None else None,
        "common": common,
        "diverges_at": text.get("diverges_at"),
        "worst_at": text.get("worst_at"),
        "gaps_nats": list(text.get("gaps_nats") or [])[:MAX_TOKENS],
        "pieces": list(text.get("pieces") or [])[:MAX_TOKENS],
    }


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
