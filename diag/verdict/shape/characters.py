"""Characters and strings that have no business in finished text: U+FFFD, surrogates, controls, a vocabulary's own
special tokens, scripts mixed inside words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import regex

from diag.verdict.shape.values import Evidence, Weight

CUT_CHARACTER = 3
"""U+FFFD at the very end that an output cut at max_tokens may have: part of one character's bytes."""

_SPECIAL = regex.compile(
    r"<\|[a-zA-Z0-9_ ]{2,40}\|>|<｜[^<>｜]{2,40}｜>|<(?:pad|unk|eos|bos|mask|eod|sep|cls)>|\[(?:PAD|UNK|CLS|SEP|MASK)\]"
    r"|<extra_id_\d+>|<(?:start|end)_of_(?:turn|text|image)>|</?s>(?=\s*(?:</?s>|$))|\[/?INST\]|<0x[0-9A-F]{2}>"
    r"|<reserved_\d+>|<unused\d+>|<\|reserved_special_token_\d+\|>"
)
# The byte-level alphabets of BPE and SentencePiece, which a detokeniser turns into spaces and line breaks.
_RAW = regex.compile(r"(?:[ĠĊ]\p{L}+.{0,20}){4,}|(?:▁\p{L}+.{0,20}){4,}", regex.DOTALL)
_CONTROL = regex.compile(r"[\x00-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_UNASSIGNED = regex.compile(r"[\p{Co}\p{Cn}]")


def characters(text: str) -> Iterator[Evidence]:
    yield from _replaced(text)
    if (match := regex.search(r"[\ud800-\udfff]", text)) is not None:
        a_byte = "\udc80" <= match.group() <= "\udcff"
        why = "bytes that are not UTF-8" if a_byte else "half of a surrogate pair: no encoding of any text has it"
        yield Evidence("lone-surrogate", "garbled", match.span(), why)
    yield from _counted("control", _CONTROL, text, "control characters", few=1, many=3)
    yield from _counted("unassigned", _UNASSIGNED, text, "private or unassigned characters", few=3, many=12)
    yield from _special(text)
    if (match := _RAW.search(text)) is not None:
        yield Evidence("raw-pieces", "garbled", match.span(), "pieces of the vocabulary that were not detokenised")


def _replaced(text: str) -> Iterator[Evidence]:
    inside = text.rstrip()
    cut = len(inside) - len(inside.rstrip("\ufffd"))
    if cut <= CUT_CHARACTER:
        inside = inside.rstrip("\ufffd")
    count = inside.count("\ufffd")
    if count:
        first = inside.index("\ufffd")
        why = f"U+FFFD {count} times: bytes that are no UTF-8, or a detokeniser that cut a character in two"
        quoted = count == 1 and text[max(first - 1, 0) : first + 2].strip("\ufffd") in ('""', "''", "()", "“”", "«»")
        yield Evidence("replaced", "suspect" if quoted else "garbled", (first, first + 1), why, {"characters": count})


def _counted(
    rule: str, pattern: regex.Pattern[str], text: str, what: str, *, few: int, many: int
) -> Iterator[Evidence]:
    found = [match.start() for match, _ in zip(pattern.finditer(text), range(1000))]
    if len(found) >= few:
        names = sorted({f"U+{ord(text[at]):04X}" for at in found[:50]})[:5]
        weight: Weight = "garbled" if len(found) >= many else "suspect"
        numbers = {"characters": len(found), "which": names}
        yield Evidence(rule, weight, (found[0], found[0] + 1), f"{len(found)} {what} ({', '.join(names)})", numbers)


def _special(text: str) -> Iterator[Evidence]:
    found = [match for match, _ in zip(_SPECIAL.finditer(text), range(1000))]
    if not found:
        return
    # One may be a text about chat templates; several, or one where the text stops, are the template itself.
    at_the_edge = found[-1].end() >= len(text.rstrip()) or found[0].start() <= len(text) - len(text.lstrip())
    weight: Weight = "garbled" if len(found) >= 3 or (at_the_edge and len(found) >= 2) else "suspect"
    why = f"{found[0].group()!r}: {len(found)} special tokens of a vocabulary in the text"
    yield Evidence("special-token", weight, found[0].span(), why, {"tokens": len(found)})
