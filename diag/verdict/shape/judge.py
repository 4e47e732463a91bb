"""Judge one text by its shape. Pure, and of bounded work: of a megabyte the beginning, the end and some middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.verdict.shape.characters import characters
from diag.verdict.shape.runs import loops, token_runs
from diag.verdict.shape.salad import salad
from diag.verdict.shape.values import Evidence

HEAD, TAIL, MIDDLE, MIDDLES = 24_000, 12_000, 4_000, 4
"""Characters that are looked at closely; a text is judged whole up to HEAD + TAIL."""

GIVEN = 0.75
"""Share of a stretch's pieces that the prompt has as well, from which on the stretch is no salad."""

_AROUND = ".,;:!?\"'()[]"


def judge_shape(
    text: str, *, prompt: str = "", token_ids: Sequence[int] = (), finish_reason: str = "", language: str = ""
) -> list[Evidence]:
    """Everything the rules have to say, the gravest first. prompt: as it was sent; what it has itself is no fault;
    language: the code of the one that the text is to be in, if it is known."""
    found = [*_nothing(text, finish_reason), *token_runs(token_ids, text), *characters(text)]
    for offset, part in parts(text):
        found += [_moved(evidence, offset) for evidence in loops(part, prompt)]
        found += (each for each in salad(part, offset, language) if not _in_the_prompt(each, text, prompt))
    return sorted(found, key=lambda evidence: evidence.weight != "garbled")


def parts(text: str) -> Iterator[tuple[int, str]]:
    """(offset, part) of what is looked at closely."""
    if len(text) <= HEAD + TAIL:
        yield 0, text
        return
    yield 0, text[:HEAD]
    step = (len(text) - HEAD - TAIL) // MIDDLES
    for number in range(MIDDLES):
        at = HEAD + number * step
        yield at, text[at : at + min(MIDDLE, step)]
    yield len(text) - TAIL, text[-TAIL:]


def _nothing(text: str, finish_reason: str) -> Iterator[Evidence]:
    if text.strip():
        return
    why = "nothing but blanks" if text else "empty"
    if finish_reason:
        why += f" (finished: {finish_reason})"
    yield Evidence("empty", "garbled", (0, len(text)), why, {"characters": len(text)})


def _in_the_prompt(evidence: Evidence, text: str, prompt: str) -> bool:
    """Whether what looks odd is made of the prompt's own pieces, which were odd before any server saw them."""
    start, end = evidence.where
    pieces = [piece.strip(_AROUND) for piece in text[start:end].split()]
    given = {piece.strip(_AROUND) for piece in prompt.split()}
    return bool(prompt) and sum(piece in given for piece in pieces) >= GIVEN * len(pieces)


def _moved(evidence: Evidence, offset: int) -> Evidence:
    if not offset:
        return evidence
    return replace(evidence, where=(evidence.where[0] + offset, evidence.where[1] + offset))
