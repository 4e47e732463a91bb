"""Loops: the same character, token, word or phrase again and again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from diag.verdict.shape.alphabets import code_points
from diag.verdict.shape.values import Evidence, Weight

LONGEST_PERIOD = 80
"""Characters of a unit that is looked for."""

_CHARACTER_RUN = re.compile(r"(.)\1{11,}", re.DOTALL)

RULERS = frozenset("-=_*.~#+─━═·•…|/\\<>^\"'`:;,")
"""Characters that people draw lines, leaders and boxes with."""

ZERO_RUN = 4
"""Tokens of id 0 in a row: the arg-max over NaN or zeros. Healthy text repeats no token of a Qwen- or Llama-type
vocabulary with that id ("!", "<unk>", "<pad>") so often."""

ONE_RUN = 24
"""Tokens of any one id in a row."""


def token_runs(token_ids: Sequence[int], text: str) -> Iterator[Evidence]:
    """Of the ids as emitted; where: the whole text, since which characters an id became is not known."""
    start = 0
    for at in range(1, len(token_ids) + 1):
        if at < len(token_ids) and token_ids[at] == token_ids[start]:
            continue
        token, length = token_ids[start], at - start
        numbers = {"token_id": token, "tokens": length, "at_token": start, "of_tokens": len(token_ids)}
        if token == 0 and length >= ZERO_RUN:
            why = f"token id 0, {length} times in a row from token {start} on: the arg-max over NaN or zeros"
            yield Evidence("token-0-run", "garbled", (0, len(text)), why, numbers)
        elif length >= ONE_RUN:
            why = f"token id {token}, {length} times in a row from token {start} on"
            yield Evidence("token-run", "suspect", (0, len(text)), why, numbers)
        start = at


def loops(text: str, prompt: str = "") -> Iterator[Evidence]:
    """The one loop that covers most of the text. A unit that the prompt has as well may have been asked for."""
    runs = ((match.start(), match.end(), 1) for match in _CHARACTER_RUN.finditer(text))
    found = max(runs, key=lambda run: run[1] - run[0], default=None)
    for start, end, period in filter(None, (found, longest_loop(text))):
        yield from _told(text, start, end, period, prompt)


def _told(text: str, start: int, end: int, period: int, prompt: str) -> Iterator[Evidence]:
    unit, repeats = text[start : start + period], (end - start) / period
    weight = _weight(text, start, end, unit, repeats)
    if weight is None:
        return
    if weight == "garbled" and unit.strip() and unit.strip() in prompt:
        weight = "suspect"
    numbers = {"period_characters": period, "repeats": round(repeats, 1), "share_of_text": (end - start) / len(text)}
    rule = "character-run" if period == 1 else "loop"
    why = f"{unit[:24]!r} {repeats:.0f} times in a row" + (", to the end" if _to_the_end(text, end) else "")
    yield Evidence(rule, weight, (start, end), why, numbers)


def longest_loop(text: str) -> tuple[int, int, int] | None:
    """(start, end, period) of the stretch that repeats with some period up to LONGEST_PERIOD and is the longest;
    None where hardly anything repeats."""
    codes = code_points(text)
    if len(codes) < 16 or _distinct(codes) > 0.7:
        return None
    best: tuple[int, int, int] | None = None
    for period in range(2, min(LONGEST_PERIOD, len(codes) // 3) + 1):
        breaks = codes[period:] != codes[:-period]
        if len(breaks) - np.count_nonzero(breaks) < 2 * period:
            continue
        breaks = np.flatnonzero(breaks)
        edges = np.concatenate(([-1], breaks, [len(codes) - period]))
        at = int((edges[1:] - edges[:-1]).argmax())
        start, matched = int(edges[at]) + 1, int(edges[at + 1] - edges[at]) - 1
        length = matched + period
        if matched >= 2 * period and (best is None or length > 1.2 * (best[1] - best[0])):
            best = (start, start + length, period)
    return best


def _distinct(codes: npt.NDArray[np.uint32]) -> float:
    """Share of sequences of four characters that are there once only, or for the first time."""
    two = codes[:-1].astype(np.uint64) << np.uint64(21) | codes[1:]
    four = two[:-2] * np.uint64(0x9E3779B97F4A7C15) ^ two[2:]
    return len(np.unique(four)) / len(four)


def _weight(text: str, start: int, end: int, unit: str, repeats: float) -> Weight | None:
    length, share = end - start, (end - start) / len(text)
    if len(set(unit)) == 1:
        return _weight_of_one(unit[0], length, share, _to_the_end(text, end)) if len(unit) == 1 else None
    if not any(c.isalpha() for c in unit):
        # Rules of tables, lists of numbers, dumps: only where there is next to nothing else.
        return "suspect" if share > 0.9 and repeats >= 40 and not set(unit) <= RULERS | {" ", "\n"} else None
    # Phrases come again and again from healthy small models at temperature 0; one word alone seldom does, unless a mark
    # is between (`wir, wir,`, `urn:urn:`): of 15,300 clean outputs two did from the first word on, and six with marks.
    one_word = len(unit.split()) == 1
    if unit.strip().isalpha() and one_word and repeats >= 24 and length >= 60 and share > 0.8:
        return "garbled"
    if one_word and repeats >= 24 and length >= 60 and (share > 0.5 or _to_the_end(text, end)):
        return "suspect"
    return "suspect" if repeats >= 5 and length >= 80 and share > 0.4 else None


def _weight_of_one(character: str, length: int, share: float, to_the_end: bool) -> Weight | None:
    if character == "!":  # token id 0 of many vocabularies
        return "garbled" if length >= 24 else "suspect" if length >= 12 else None
    if character == "\n":
        return "garbled" if length >= 24 else "suspect" if length >= 10 else None
    if character.isspace():
        return "garbled" if length >= 1000 or (length >= 200 and (share > 0.8 or to_the_end)) else None
    if character in RULERS:
        return "suspect" if length >= 400 or (share > 0.9 and length >= 100) else None
    if character.isdigit():
        return "suspect" if length >= 200 and share > 0.5 else None
    return "garbled" if length >= 40 and share > 0.3 else "suspect" if length >= 24 and share > 0.3 else None


def _to_the_end(text: str, end: int) -> bool:
    return end >= len(text.rstrip()) - 1
