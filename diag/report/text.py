"""Text that came from a host, made safe to show: nothing in it may move the cursor, colour, or reorder a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

KEPT = "\n\t"


def visible(text: str) -> str:
    """`text` with every control, escape, bidi and lone-surrogate character written out, newline and tab kept.

    >>> visible("ok\\x1b[31mred")
    'ok\\\\x1b[31mred'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in KEPT or not _unsafe(c) else _written(c) for c in text)


def one_line(text: str, limit: int = 120) -> str:
    """The same on one line: newlines and tabs written out too; cut in the middle of what is too long."""
    flat = "".join(_written(c) if c in KEPT else c for c in visible(text))
    if len(flat) <= limit:
        return flat
    keep = limit - 1
    return flat[: keep - keep // 3] + "…" + flat[len(flat) - keep // 3 :]


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head and the rows as lines of a table: numbers to the right, every other column to the left."""
    whole = [head, *rows]
    widths = [max(len(row[at]) for row in whole) for at in range(len(head))]
    return [
        f"{row[0].rjust(widths[0])} "
        + "  ".join(cell.ljust(width) for cell, width in zip(row[1:], widths[1:])).rstrip()
        for row in whole
    ]


def _unsafe(c: str) -> bool:
    # Cc controls, Cf format characters (bidi marks and zero-width joiners among them), Cs lone surrogates.
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _written(c: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c)
    if named is not None:
        return named
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
