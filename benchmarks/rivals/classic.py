"""Classical searches for a set of settings, from their descriptions.

`ask(S)`: does it fail with S at the failing level?

All get for nothing that everything fails and nothing passes. All but `git_bisect` return the set they accuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Ask = Callable[[frozenset[int]], bool]


def repeated(ask: Ask, times: int) -> Ask:
    """A failure is believed at once, a pass after so many."""
    return lambda subset: any(ask(subset) for _ in range(times))


def ofot(ask: Ask, count: int) -> frozenset[int]:
    """One factor one time: those without which it passes."""
    every = frozenset(range(count))
    return frozenset(f for f in range(count) if not ask(every - {f}))


def ddmin(ask: Ask, count: int) -> frozenset[int]:
    """Zeller and Hildebrandt 2002, with a cache."""
    seen: dict[frozenset[int], bool] = {}

    def fails(subset: frozenset[int]) -> bool:
        if subset not in seen:
            seen[subset] = ask(subset)
        return seen[subset]

    left, parts = list(range(count)), 2
    while len(left) > 1:
        size = len(left) / parts
        chunks = [left[round(i * size) : round((i + 1) * size)] for i in range(parts)]
        chunk = next((c for c in chunks if fails(frozenset(c))), None)
        if chunk is not None:
            left, parts = chunk, 2
            continue
        rests = [[f for f in left if f not in c] for c in chunks] if parts > 2 else []
        rest = next((r for r in rests if fails(frozenset(r))), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return frozenset(left)


def quickxplain(ask: Ask, count: int) -> frozenset[int]:
    """Junker 2004."""

    def explain(base: frozenset[int], grew: bool, left: list[int]) -> frozenset[int]:
        if grew and ask(base):
            return frozenset()
        if len(left) == 1:
            return frozenset(left)
        half = len(left) // 2
        first, second = left[:half], left[half:]
        found_second = explain(base | frozenset(first), True, second)
        found_first = explain(base | found_second, bool(found_second), first)
        return found_first | found_second

    return explain(frozenset(), False, list(range(count)))


def fic_bs(ask: Ask, count: int) -> frozenset[int]:
    """Zhang and Zhang 2011: one member after the other, each by halving, the rest at its good level."""
    found: frozenset[int] = frozenset()
    free = list(range(count))
    while free and not (found and ask(found)):
        candidates, kept = list(free), frozenset[int]()
        # Of `candidates` at least one is needed beside found and kept.
        while len(candidates) > 1:
            half = len(candidates) // 2
            first, second = candidates[:half], candidates[half:]
            if ask(found | kept | frozenset(second)):
                candidates = second
            else:
                kept |= frozenset(second)
                candidates = first
        found |= frozenset(candidates)
        free = [f for f in free if f in kept]
    return found


def git_bisect(ask: Callable[[int], bool], count: int) -> int:
    """The first bad of `count` commits; 0 is good, the last is bad."""
    good, bad = 0, count - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if ask(middle):
            bad = middle
        else:
            good = middle
    return bad


ALL: Sequence[tuple[str, Callable[[Ask, int], frozenset[int]]]] = (
    ("OFOT", ofot),
    ("ddmin", ddmin),
    ("QuickXplain", quickxplain),
    ("FIC_BS", fic_bs),
)
