"""The n-gram drafter: what followed the last few tokens before, in this very context.

The longest suffix that occurred earlier proposes; shorter ones fill what is left of the budget. Each node gets at
most `topk` children. Pure, and deterministic: ties go to the more recent occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence

from diag.lab.engine.tree import DraftTree

MAX_NGRAM = 4


def _continuations(context: Sequence[int], suffix: tuple[int, ...]) -> list[int]:
    """Tokens that followed `suffix` earlier in the context, most frequent first, then most recent."""
    n = len(suffix)
    counts: dict[int, list[int]] = {}
    for at in range(len(context) - n):
        if tuple(context[at : at + n]) == suffix:
            follower = counts.setdefault(context[at + n], [0, 0])
            follower[0] += 1
            follower[1] = at
    return sorted(counts, key=lambda token: counts[token], reverse=True)


def _candidates(context: Sequence[int], path: tuple[int, ...], topk: int) -> list[int]:
    """At most `topk` different next tokens after context + path, longest matching suffix first."""
    tail = (*context[-MAX_NGRAM:], *path)[-MAX_NGRAM:]
    found: list[int] = []
    for n in range(len(tail), 0, -1):
        for token in _continuations(context, tail[len(tail) - n :]):
            if token not in found:
                found.append(token)
        if len(found) >= topk:
            break
    return found[:topk]


def propose(context: Sequence[int], *, budget: int, topk: int) -> DraftTree:
    """A tree rooted at the last token of `context`, at most `budget` nodes, at most `topk` children a node.

    Grown best-first by rank: a first choice at depth 3 comes before a fourth choice at depth 1, so that the chain
    of first choices is as deep as it can be and branches fill the rest.
    """
    tokens, parents = [context[-1]], [-1]
    paths: dict[int, tuple[int, ...]] = {0: ()}
    frontier: list[tuple[int, int, int, int]] = []  # (cost, order, parent row, token)
    order = 0

    def expand(row: int, cost: int) -> None:
        nonlocal order
        for rank, token in enumerate(_candidates(context, paths[row], topk)):
            order += 1
            frontier.append((cost + 1 + 3 * rank, order, row, token))

    expand(0, 0)
    while frontier and len(tokens) <= budget:
        best = min(frontier)
        frontier.remove(best)
        cost, _, parent, token = best
        tokens.append(token)
        parents.append(parent)
        row = len(tokens) - 1
        paths[row] = (*paths[parent], token)
        expand(row, cost)
    return DraftTree(tuple(tokens), tuple(parents))
