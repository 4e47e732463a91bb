"""Judge a text that one already has: transport, shape and property. No server, no reference. Pure.

garbled   no healthy server gives this
suspect   it may well be wrong; healthy servers give such texts now and then
unknown   there is too little to judge by
healthy   none of the rules has anything to say
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from diag.verdict.patterns import pattern
from diag.verdict.shape.judge import judge_shape
from diag.verdict.shape.values import Evidence

Verdict = Literal["healthy", "suspect", "garbled", "unknown"]

LEAST_CHARACTERS = 12
"""Shorter texts without any evidence are not called healthy: nearly anything of that length could be right."""


REPETITION = frozenset({"loop", "character-run", "token-run"})
"""Rules that see the same thing in a text that repeats itself."""


class Record(BaseModel):
    """One output. text: null where there was no answer, `error` says why; prompt: as it was sent; language: a code
    such as "en"; token_ids: as emitted; expect: a regular expression that a right answer contains; absent: one that
    it must not contain (another request's canary); parses: what it must hold a whole document of."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str | None
    id: str | int | None = None
    prompt: str = ""
    language: str = ""
    token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    finish_reason: str = ""
    error: str = ""
    expect: Annotated[str, AfterValidator(pattern)] | None = None
    absent: Annotated[str, AfterValidator(pattern)] | None = None
    parses: Literal["json"] | None = None


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    evidence: tuple[Evidence, ...]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "evidence": [each.to_json() for each in self.evidence]}


def judge(record: Record) -> Judged:
    """All that layers 1 to 3 have to say, the gravest first."""
    if record.text is None or record.error:
        return Judged("unknown", (_no_answer(record.error),))
    found = judge_shape(
        record.text,
        prompt=record.prompt,
        token_ids=record.token_ids,
        finish_reason=record.finish_reason,
        language=record.language,
    )
    found += _properties(record, record.text)
    found.sort(key=lambda evidence: evidence.weight != "garbled")
    return Judged(_verdict(found, record), tuple(found))


def _verdict(found: list[Evidence], record: Record) -> Verdict:
    if len({"repetition" if evidence.rule in REPETITION else evidence.rule for evidence in found}) > 1:
        return "garbled"  # two things that healthy texts seldom have, and that have nothing to do with each other
    if found:
        return found[0].weight
    looked_at = len((record.text or "").strip()) >= LEAST_CHARACTERS or record.expect is not None
    return "healthy" if looked_at else "unknown"


def _properties(record: Record, text: str) -> list[Evidence]:
    found = lacking(text, record.finish_reason, record.expect, record.parses)
    if record.absent is not None and (match := re.search(record.absent, text)) is not None:
        why = f"has what must not be in it: {match.group()!r}"
        found.append(Evidence("absent", "garbled", match.span(), why, {"pattern": record.absent}))
    return found


def lacking(text: str, finish_reason: str, expect: str | None, parses: str | None) -> list[Evidence]:
    """What a right answer must have and this one lacks."""
    found = []
    if expect is not None and re.search(expect, text) is None:
        why = f"lacks what a right answer must have: {expect!r}"
        found.append(Evidence("expected", "garbled", (0, len(text)), why, {"pattern": expect}))
    # Cut off at its number of tokens, no document is whole.
    if parses is not None and finish_reason != "length" and not holds_json(text):
        found.append(Evidence("unparsed", "garbled", (0, len(text)), "no JSON object or array in it can be parsed"))
    return found


def holds_json(text: str) -> bool:
    """Whether a whole object or array begins at the first bracket of the text; what is around it may be anything."""
    begins = re.search(r"[{\[]", text)
    if begins is None:
        return False
    try:
        json.JSONDecoder().raw_decode(text, begins.start())
    except (ValueError, RecursionError):
        return False
    return True


def _no_answer(error: str) -> Evidence:
    return Evidence("no-answer", "suspect", (0, 0), error or "there is no text")
