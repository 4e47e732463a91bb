"""Layer 5: what the server itself counted, beside what was asked of it. Pure.

Counters do not say that a text is right. They say whether the path under test was taken at all, and some values of them
are fingerprints: no draft ever accepted, every draft accepted, a setting that is not what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NEVER_ACCEPTED = 1.02
"""Tokens a verify step from which on any draft was accepted: every step gives one token anyway."""

LEAST_ANSWERS = 4

NAN = r"\bnan\b|\binf\b.*logit|detected errors during sampling|not a number"
"""In a line of a server's log, whatever the case."""

_NAN = re.compile(NAN, re.IGNORECASE)
_PASSES = re.compile(r"^sglang:cuda_graph_passes_total(\{[^}]*\})\s+([0-9.e+]+)\s*$", re.MULTILINE)

_TRANSLATED = frozenset({"host", "port", "model_path", "tokenizer_path", "model", "api_key", "log_level"})
"""What a server tells in another form than it was asked in, or what has nothing to do with its arithmetic."""


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


def graph_replays(info: Mapping[str, Any], metrics: str) -> int | None:
    """Decode or verify steps replayed from a captured graph so far; None where the server counts none. By SGLang's
    /metrics (it runs with --enable-metrics), or by the internal states of its configuration page."""
    passes = [float(match[2]) for match in _PASSES.finditer(metrics) if "decode_cuda_graph" in match[1]]
    states = info.get("internal_states")
    counted = [state.get("verify") for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    replays = [counts["graph_replays"] for counts in counted if isinstance(counts, dict) and "graph_replays" in counts]
    found = [int(number) for number in (*passes, *replays) if isinstance(number, int | float)]
    return sum(found) if found else None


def graphs(effective: Mapping[str, Any], replayed: int | None) -> Iterator[Sign]:
    """replayed: graph replays while the suite was asked, None where they are not counted."""
    off = effective.get("disable_cuda_graph")
    if replayed == 0 and off is False:
        what = "Graphs are on, and none was replayed while this was asked: a fault of graph replay could not show."
        yield Sign("no-graph-replay", "notice", what)
    if replayed and off:
        what = f"Graphs are said to be off, and {replayed} were replayed: what is in force is not what is told."
        yield Sign("graph-replay", "suspect", what)


def nan_lines(log: Iterable[str]) -> list[str]:
    """Lines of a server's log that tell of numbers that are none."""
    return [line for line in log if _NAN.search(line)]


def numbers_that_are_none(log: Iterable[str]) -> Iterator[Sign]:
    found = nan_lines(log)
    if found:
        yield Sign("nan", "suspect", f"{len(found)} lines of its log tell of NaN: {found[0].strip()[:160]}")


def watched(stopped: Mapping[str, Any]) -> Iterator[str]:
    """What the supervisor of a server that was started for a trial found in its log. stopped: how the server ended."""
    seen = stopped.get("watched")
    if isinstance(seen, Mapping):
        yield f"{seen.get('lines')} lines of its log tell of NaN: {str(seen.get('first'))[:160]}"


def flags(argv: Sequence[str]) -> dict[str, str]:
    """Settings of a command line by the name that the server tells them by: --page-size 1 is page_size. Flags without a
    value are "True"."""
    found = {}
    for at, word in enumerate(argv):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = argv[at + 1 : at + 2]
            if not equals:
                value = after[0] if after and not after[0].startswith("--") else "True"
            found[name.replace("-", "_")] = value
    return found


def not_as_asked(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> list[Sign]:
    """Settings that are in force with another value than was asked for; what the server does not report is left out."""
    return [
        Sign("not-as-asked", "notice", f"{name}: asked for {value}, in force is {effective[name]}.")
        for name, value in asked.items()
        if name in effective and name not in _TRANSLATED and not _alike(value, effective[name])
    ]


def _alike(asked: Any, told: Any) -> bool:
    if isinstance(told, list | dict):
        return True  # written in one way and told in another: nothing to compare
    if str(asked).lower() == str(told).lower():
        return True
    try:
        return float(asked) == float(told)
    except (TypeError, ValueError):
        return False
