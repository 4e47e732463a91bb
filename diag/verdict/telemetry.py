"""Layer 5: what the server itself counted, beside what was asked of it. Pure.

Counters do not say that a text is right. They say whether the path under test was taken at all, and some values of them
are fingerprints: no draft ever accepted, every draft accepted, a setting that is not what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NEVER_ACCEPTED = 1.02
"""Tokens a verify step from which on any draft was accepted: every step gives one token anyway."""

LEAST_ANSWERS = 4

_NAN = re.compile(r"\bnan\b|\binf\b.*logit|detected errors during sampling|not a number", re.IGNORECASE)


@dataclass(frozen=True)
class Sign:
    """severity: notice, worth knowing; suspect, goes with garbled output in known cases."""

    id: str
    severity: Literal["notice", "suspect"]
    what: str


def signs(
    effective: Mapping[str, Any],
    accept_lengths: Sequence[float | None],
    cached_tokens: Sequence[int],
    *,
    cache_asked: bool = False,
) -> list[Sign]:
    """accept_lengths, cached_tokens: of each answer, as the server reports them. cache_asked: prompts were asked again
    that should have come from the prefix cache."""
    found = list(_speculation(effective, [length for length in accept_lengths if length is not None]))
    if cache_asked and not any(cached_tokens):
        off = effective.get("disable_radix_cache")
        why = "it is switched off" if off else "the server reports none, so a fault of the cache could not show"
        found.append(Sign("no-cache-hit", "notice", f"No answer used the prefix cache: {why}."))
    return found


def _speculation(effective: Mapping[str, Any], lengths: list[float]) -> Iterable[Sign]:
    if not effective.get("speculative_algorithm"):
        return
    if len(lengths) < LEAST_ANSWERS:
        yield Sign("no-accept-length", "notice", "The server reports no accept length: speculation may not have run.")
    elif max(lengths) < NEVER_ACCEPTED:
        what = f"No draft was ever accepted in {len(lengths)} answers: wrong logits, a wrong draft model, or no drafts."
        yield Sign("never-accepted", "suspect", what)
    elif (most := _most(effective)) is not None and min(lengths) >= most - 0.01:
        what = f"Every draft was accepted in {len(lengths)} answers ({most} tokens a step): the target may be looping."
        yield Sign("always-accepted", "suspect", what)


def _most(effective: Mapping[str, Any]) -> int | None:
    steps = effective.get("speculative_num_steps")
    return steps + 1 if isinstance(steps, int) and steps > 1 else None


def nan_lines(log: Iterable[str]) -> list[str]:
    """Lines of a server's log that tell of numbers that are none."""
    return [line for line in log if _NAN.search(line)]


def not_as_asked(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> list[Sign]:
    """Settings that are in force with another value than was asked for; what the server does not report is left out."""
    return [
        Sign("not-as-asked", "suspect", f"{name}: asked for {value}, in force is {effective[name]}.")
        for name, value in asked.items()
        if name in effective and str(effective[name]) != str(value)
    ]
