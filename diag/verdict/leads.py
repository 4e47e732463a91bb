"""The cheap false leads, before anything is suspected of the engine: each is looked at and said, found or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["excluded", "found", "not looked at"]


@dataclass(frozen=True)
class Lead:
    """id: chat-template, detokeniser, sampling, dtype, max-tokens. what: what was seen, in a sentence."""

    id: str
    state: State
    what: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """What is needed to look at them.

    chat_tokens, reference_chat_tokens: prompt tokens of the same message by the chat path, here and at the reference
    chat_garbled, raw_garbled: whether all of those texts looked garbled; None where they were not asked for
    same_ids_other_text: answers with the reference's ids and another text; compared: answers whose ids were compared
    cut: answers that ended at their number of tokens and lack what was expected of them; answers: all
    """

    effective: Mapping[str, Any]
    answers: int
    cut: int = 0
    compared: int = 0
    same_ids_other_text: int = 0
    chat_tokens: int | None = None
    reference_chat_tokens: int | None = None
    chat_garbled: bool | None = None
    raw_garbled: bool | None = None


def leads(seen: Seen) -> list[Lead]:
    return [_template(seen), _detokeniser(seen), _sampling(seen), _dtype(seen), _max_tokens(seen)]


def _template(seen: Seen) -> Lead:
    if seen.chat_tokens is not None and seen.reference_chat_tokens is not None:
        if seen.chat_tokens != seen.reference_chat_tokens:
            what = (
                f"The chat path makes {seen.chat_tokens} tokens of a message that the reference makes "
                f"{seen.reference_chat_tokens} of: another chat template."
            )
            return Lead("chat-template", "found", what)
        if not seen.chat_garbled or seen.raw_garbled:
            return Lead("chat-template", "excluded", f"The chat path makes {seen.chat_tokens} tokens here and there.")
    if seen.chat_garbled is None or seen.raw_garbled is None:
        return Lead("chat-template", "not looked at", "The chat path was not asked, or has no reference.")
    if seen.chat_garbled != seen.raw_garbled:
        side = "chat path" if seen.chat_garbled else "raw completion"
        return Lead("chat-template", "found", f"Only the {side} garbles: look at the rendered prompt first.")
    return Lead("chat-template", "excluded", "The chat path and the raw completion agree.")


def _detokeniser(seen: Seen) -> Lead:
    if not seen.compared:
        return Lead("detokeniser", "not looked at", "No token ids to compare with a reference's.")
    if seen.same_ids_other_text:
        what = f"{seen.same_ids_other_text} of {seen.compared} answers have the right token ids and a wrong text."
        return Lead("detokeniser", "found", what)
    return Lead("detokeniser", "excluded", f"In {seen.compared} answers the same token ids are the same text.")


def _sampling(seen: Seen) -> Lead:
    defaults = seen.effective.get("sampling_defaults")
    what = "Everything was asked at temperature 0."
    if defaults:
        what += f" Requests that do not say so get the {defaults}'s defaults."
    return Lead("sampling", "excluded", what)


def _dtype(seen: Seen) -> Lead:
    asked = {name: seen.effective.get(name) for name in ("dtype", "kv_cache_dtype", "quantization")}
    told = {name: value for name, value in asked.items() if value}
    if not told:
        return Lead("dtype", "not looked at", "The server does not tell its dtype.")
    shown = ", ".join(f"{name} {value}" for name, value in told.items())
    if told.get("dtype") in ("float16", "half"):
        what = f"{shown}: a model made for bfloat16 overflows in float16. Try the other one."
        return Lead("dtype", "found", what)
    return Lead("dtype", "excluded", shown)


def _max_tokens(seen: Seen) -> Lead:
    if seen.cut:
        what = f"{seen.cut} of {seen.answers} answers were cut at their number of tokens before they had their answer."
        return Lead("max-tokens", "found", what)
    return Lead("max-tokens", "excluded", "No answer was cut before it had what was expected.")
