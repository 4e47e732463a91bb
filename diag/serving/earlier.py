"""The answers of a server that was asked before, from what `diag probe prompts --json` said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.verdict.answers import Answer


def lone_answers(document: Mapping[str, Any]) -> dict[str, Answer]:
    """By prompt, those that were asked for alone; of several rounds the first counts. Raises KeyError, TypeError or
    ValueError where the document is not one of that command."""
    alone = [each for each in document["answers"] if each["how"] == "alone"]
    return {
        each["prompt"]: Answer(
            str(each["prompt"]),
            text=str(each["text"]),
            token_ids=tuple(int(token) for token in each["token_ids"]),
            finish_reason=str(each["finish_reason"]),
        )
        for each in reversed(alone)
    }
