"""What kind of failure a trial shows, in words that are the same whenever it shows again. Pure.

A server that writes garbage, one that breaks off too early, one that answers HTTP 500 and one that dies of a CUDA
error fail in four different ways: only the way that the failing configuration fails is what is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from diag.verdict.compare import TextVerdict

MAX_CHARS = 120

# Worst first: a server that garbles and refuses besides is one that garbles.
_ORDER = ("garbled", "wrong answer", "too short", "empty")

_TELLING = re.compile(
    r"\b(?:[A-Za-z_.]*(?:Error|Exception)\b|CUDA error|out of memory|Segmentation fault|assert)", re.I
)
# What differs from one run to the next: addresses, numbers of processes and lines, times.
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


def of_texts(texts: Sequence[TextVerdict]) -> str:
    """ "" where every text is healthy."""
    kinds = [_kind(text) for text in texts if not text.healthy]
    for kind in _ORDER:
        if kind in kinds:
            return kind
    return max(dict.fromkeys(kinds), key=kinds.count) if kinds else ""


def is_of_text(signature: str) -> bool:
    """Whether it is about what was written, and not about getting no answer."""
    return signature in _ORDER


def _kind(text: TextVerdict) -> str:
    if text.kind == "no_answer":
        return _refusal(text.why)
    if text.kind == "wrong":
        return "wrong answer"
    if text.kind == "garbled":
        if not text.token_ids and not text.text:
            return "empty"
        if text.reference is not None and text.diverges_at == len(text.token_ids) > 0:
            return "too short"  # all that it says is right, and then it stops
        return "garbled"
    return text.kind.replace("_", " ")


def _refusal(why: str) -> str:
    """`answers HTTP 500`, `aborts`, or `no answer`."""
    status = re.match(r"HTTP (\d{3})", why)
    if status is not None:
        return f"answers HTTP {status[1]}"
    return "aborts" if why.startswith("aborted") else "no answer"


def of_death(log: Sequence[str], how: str = "") -> str:
    """died: and the last line that names an error, or how it ended."""
    found = next((match for line in reversed(log) if (match := _TELLING.search(line)) is not None), None)
    if found is None:
        return f"died: {how}" if how else "died"
    # From the error's name on: what stands before it is the time, the process and the file.
    text = _VARYING.sub("N", " ".join(found.string[found.start() :].split()))
    return f"died: {text[:MAX_CHARS].strip()}"
