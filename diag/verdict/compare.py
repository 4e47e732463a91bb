"""Is this output what the good configuration gave, or a near-tie of it, or garbled?

At temperature 0 a lossless server chooses, at every position, the token its model holds most likely. Two healthy
servers may still part ways where two tokens are as good as equal (bf16, another batch size): a near-tie. So a
text that differs from the reference is scored once more, teacher-forced, token by token, and is healthy only if

    every emitted token is within `margin_nats` of the best token at its place, and
    at the first divergence the reference's own token is within the margin as well.

The second condition is what a broken server cannot talk itself out of: if its prefill is as broken as its decode,
it finds its own tokens excellent, but not the reference's.

Measured on SGLang 0.5.12, H200, bf16, 135M parameters (docs/measured.md): healthy outputs at most 0.125 nats;
a fluent but wrong one 0.32; garbled ones 5.5 to 39.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MARGIN_NATS = 0.25
"""Twice the largest gap seen in a healthy output (0.125), below the smallest in a wrong one (0.32)."""

RULES = 5
"""Version of the rules below and of the suite's judging; a run is not resumed under other rules than it began with."""

How = Literal["alone", "together"]
Kind = Literal["identical", "near_tie", "plausible", "wrong", "garbled", "no_answer"]
"""plausible: no reference, but every token is one the model would choose; wrong: fluent, but not the right answer."""

HEALTHY: frozenset[Kind] = frozenset({"identical", "near_tie", "plausible"})


@dataclass(frozen=True)
class Score:
    """Teacher-forced score of one emitted token. gap_nats: best log-probability minus this token's, >= 0.

    rival_gap_nats: the same for the reference's token at this place; None where it was not asked for or is not
    among the best tokens the server reported (so further away than those). surprise_nats: -ln p of the token itself.
    piece: the token's text, where the server tells it.
    """

    gap_nats: float
    rival_gap_nats: float | None = None
    surprise_nats: float | None = field(default=None, compare=False)
    piece: str = field(default="", compare=False)


_LISTS = ("token_ids", "gaps_nats", "pieces")


@dataclass(frozen=True)
class TextVerdict:
    """One output against its reference.

    diverges_at: index of the first differing token, None if none
    worst_gap_nats, worst_at: the least likely token emitted, and where; None where it was not scored
    token_ids: as the server emitted them
    gaps_nats, pieces: of each of them, its gap and its text; () where they were not scored, or not told
    """

    prompt: str
    how: How
    kind: Kind
    text: str
    reference: str | None
    why: str
    diverges_at: int | None = None
    worst_gap_nats: float | None = None
    worst_at: int | None = None
    accept_length: float | None = None
    token_ids: tuple[int, ...] = ()
    gaps_nats: tuple[float, ...] = ()
    pieces: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.kind in HEALTHY

    def to_json(self) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {**asdict(self), **lists, "healthy": self.healthy}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TextVerdict:
        """The inverse of to_json; older documents have no gaps and pieces. Raises KeyError or TypeError for anything
        else."""
        fields = {name: value for name, value in document.items() if name != "healthy"}
        lists = {name: tuple(fields[name]) for name in _LISTS if name == "token_ids" or name in fields}
        return cls(**{**fields, **lists})


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs; where one is a prefix of the other, the shorter one's length."""
    for at, (token, wanted) in enumerate(zip(tokens, reference)):
        if token != wanted:
            return at
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def ending(references: Iterable[tuple[Sequence[int], bool]]) -> int | None:
    """The token that ends an answer, from answers of the good configuration: (token ids, whether it stopped by itself).

    None where they do not agree on one, or have it elsewhere as well: then it is no end-of-text token, and the server
    does not report that.
    """
    stopped = [ids for ids, by_itself in references if by_itself and ids]
    last = {ids[-1] for ids in stopped}
    if len(last) != 1:
        return None
    (token,) = last
    return None if any(token in ids[:-1] for ids in stopped) else token


def judge_divergence(
    diverges_at: int, scores: Sequence[Score] | None, margin_nats: float = MARGIN_NATS
) -> tuple[Kind, str, int | None]:
    """(kind, why, index of the worst token) for an output that differs from its reference.

    scores: one for each emitted token, or None where the server could not score them: then the divergence itself
    decides.
    """
    if not scores:
        return "garbled", f"differs from the good configuration from token {diverges_at} on", None
    worst = max(range(len(scores)), key=lambda at: scores[at].gap_nats)
    gap = scores[worst].gap_nats
    if gap > margin_nats:
        return "garbled", f"token {worst} is {gap:.1f} nats below the best one there", worst
    rival = scores[diverges_at].rival_gap_nats if diverges_at < len(scores) else None
    if rival is None or rival > margin_nats:
        far = "not among the best" if rival is None else f"{rival:.1f} nats below the best"
        return "garbled", f"at token {diverges_at} the good configuration's choice is {far} here", worst
    return (
        "near_tie",
        f"parts ways at token {diverges_at} between two tokens as good as equal ({rival:.2f} nats)",
        worst,
    )


def judge_alone(
    scores: Sequence[Score] | None, expected: bool | None, margin_nats: float = MARGIN_NATS
) -> tuple[Kind, str, int | None]:
    """(kind, why, index of the worst token) for an output that has no reference.

    scores: by the server's own prefill, which a broken decode or verify step does not reach.
    expected: whether it has what a right answer must have; None where the prompt does not say.
    """
    if scores:
        worst = max(range(len(scores)), key=lambda at: scores[at].gap_nats)
        gap = scores[worst].gap_nats
        if gap > margin_nats:
            return "garbled", f"token {worst} is {gap:.1f} nats below what the model itself holds best there", worst
        if expected is False:
            return "wrong", "reads well, but is not the right answer", worst
        return "plausible", f"every token within {gap:.2f} nats of the model's best", worst
    if expected is False:
        return "wrong", "not the right answer (the server does not report log-probabilities)", None
    if expected is None:
        return "plausible", "nothing to compare with: no expectation, and no log-probabilities", None
    return "plausible", "the right answer (the server does not report log-probabilities)", None
