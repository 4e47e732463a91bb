"""A server that ends at once because its own command line is wrong: which flag, and whose. Pure.

The messages are those of Python's argparse, which SGLang, vLLM and most others parse their flags with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.bisect.space import Space

_UNKNOWN = re.compile(r"error: (?:unrecognized arguments|no such option): (.+)")
_WRONG_LEVEL = re.compile(r"error: (?:argument|option) ((?:-{1,2}[\w-]+)(?:/-{1,2}[\w-]+)*): (.+)")


@dataclass(frozen=True)
class Refusal:
    """why: what the engine does not take, in one sentence; next: what to do."""

    why: str
    next: str


def read(log: Sequence[str], space: Space) -> Refusal | None:
    """None where the log does not say that the command line was refused."""
    for line in reversed(log):
        if (unknown := _UNKNOWN.search(line)) is not None:
            flags = [word for word in unknown[1].split() if word.startswith("-")] or [unknown[1].strip()]
            return Refusal(
                f"This version of the engine does not know {_and(_whose(flags, space))}.",
                "Leave it out of the plan, or use an engine that has it; the flags of this one: its --help.",
            )
        if (wrong := _WRONG_LEVEL.search(line)) is not None:
            (whose,) = _whose([wrong[1].split("/")[-1]], space)
            return Refusal(f"The engine refuses a level of {whose}: {wrong[2].strip()}", "Correct it in the plan.")
    return None


def _whose(flags: Sequence[str], space: Space) -> Iterator[str]:
    owners = {word.split("=")[0]: factor.name for factor in space.factors for word in factor.words}
    for flag in flags:
        name = owners.get(flag.split("=")[0])
        yield f"{flag} (factor '{name}')" if name is not None else f"{flag} (in the plan's command)"


def _and(words: Iterator[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
