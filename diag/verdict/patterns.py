"""Regular expressions that people write into prompt suites and files of texts."""

from __future__ import annotations

import re


def pattern(text: str) -> str:
    """The text itself. Raises ValueError where it is no regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text
