"""Layer 4 in numbers: how far from what the reference would have written, by the reference's own scores. Pure.

The margin within which two tokens are as good as equal is a property of a host: of its kernels, its precision and the
size of its model's logits. It is measured there, from outputs of healthy runs scored by a healthy run: alone against
together, plain against speculative. Where nothing was measured the constant of `compare` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diag.verdict.compare import MARGIN_NATS, Score

HEADROOM = 2.0
"""The margin is this many times the largest gap of a healthy run: the largest of some hundred tokens is not the largest
there is."""

LEAST_MARGIN_NATS, MOST_MARGIN_NATS = 0.05, 1.0
"""Below the first, a run that happened to have no near tie at all would accuse the next one; a gap above the second is
of no healthy run, and a margin from it would excuse anything. Healthy bfloat16 runs have had 0.56."""

LEAST_TOKENS = 200
"""Tokens of healthy runs below which nothing is calibrated."""

MANY_TOKENS = 2000
"""From so many on the margin may be narrower than the constant: a few hundred tokens may happen to have no near tie,
and the next run has one."""

LEAST_ROUNDED = 48
"""Tokens whose rounding was measured, from which on it says how near a tie can be: every token shows it, near a tie or
not, so a few tell more than many gaps."""


@dataclass(frozen=True)
class Margin:
    """nats: the margin in force. largest_nats: the largest gap of `tokens` tokens in `texts` healthy texts; `why` says
    where it comes from, or why the constant holds."""

    nats: float = MARGIN_NATS
    calibrated: bool = False
    why: str = "the constant: nothing was measured on this host"
    largest_nats: float | None = None
    tokens: int = 0
    texts: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Margin:
        """The inverse of to_json. Raises TypeError for anything else."""
        return cls(**document)


def calibrate(healthy: Iterable[Sequence[Score]], rounding: Sequence[float] = ()) -> Margin:
    """healthy: the scores of each text of runs that are known to be good. rounding: nats between what two healthy
    computations made of the same token, of many tokens; a token that one of them holds best is at most twice the
    largest below the other's best."""
    texts = [scores for scores in healthy if scores]
    tokens = sum(len(scores) for scores in texts)
    if tokens < LEAST_TOKENS:
        return Margin(why=f"the constant: {tokens} tokens of healthy runs, {LEAST_TOKENS} are needed", tokens=tokens)
    largest = max(score.gap_nats for scores in texts for score in scores)
    wanted = min(HEADROOM * largest, MOST_MARGIN_NATS)
    seen = (largest, tokens, len(texts))
    if largest > MOST_MARGIN_NATS:
        why = f"the constant: a gap of {largest:.2f} nats in a run that was to be healthy is no near tie"
        return Margin(MARGIN_NATS, False, why, *seen)
    if len(rounding) >= LEAST_ROUNDED and (narrow := HEADROOM * max(largest, 2 * max(rounding))) < MARGIN_NATS:
        why = f"{HEADROOM:g} times what rounding can do on this host: {max(rounding):.2g} nats a token at most"
        return Margin(max(LEAST_MARGIN_NATS, narrow), True, f"{why}, of {len(rounding)}", *seen)
    if tokens < MANY_TOKENS and wanted <= MARGIN_NATS:
        why = f"the constant: {tokens} tokens of healthy runs on this host, none with a gap above {largest:.2g} nats"
        return Margin(MARGIN_NATS, True, why, *seen)
    times = f"{HEADROOM:g} times" if wanted < MOST_MARGIN_NATS else "the widest that there is, for"
    why = f"{times} the largest gap of {tokens} tokens of healthy runs on this host"
    return Margin(max(LEAST_MARGIN_NATS, wanted), True, why, *seen)


@dataclass(frozen=True)
class Measured:
    """One text by the reference's scores. outside: tokens beyond the margin; first_outside: index of the first of them;
    mean_surprise_nats: mean of -ln p of the tokens, None where p was not reported; worst_at: index of the worst."""

    tokens: int
    outside: int
    share_outside: float
    first_outside: int | None
    mean_gap_nats: float
    worst_gap_nats: float
    worst_at: int
    mean_surprise_nats: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(scores: Sequence[Score], margin_nats: float = MARGIN_NATS) -> Measured | None:
    """None where there is no token."""
    if not scores:
        return None
    outside = [at for at, score in enumerate(scores) if score.gap_nats > margin_nats]
    worst = max(range(len(scores)), key=lambda at: scores[at].gap_nats)
    surprises = [score.surprise_nats for score in scores if score.surprise_nats is not None]
    return Measured(
        tokens=len(scores),
        outside=len(outside),
        share_outside=len(outside) / len(scores),
        first_outside=outside[0] if outside else None,
        mean_gap_nats=sum(score.gap_nats for score in scores) / len(scores),
        worst_gap_nats=scores[worst].gap_nats,
        worst_at=worst,
        mean_surprise_nats=sum(surprises) / len(surprises) if surprises else None,
    )
