"""Draft trees: how they are padded, masked and greedily accepted. Pure, shapes in the field's terms.

A tree has the last committed token as its root (row 0) and at most `budget` draft nodes. The verify step is
always D = draft_token_num = budget + 1 rows wide: rows the drafter did not fill are padding, token 0, invisible
to every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

PADDING = -1


@dataclass(frozen=True)
class DraftTree:
    """`tokens[0]` is the root; `parents[i] < i` is the row of node i's parent; the root's parent is -1."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError("a draft tree has a root and one parent for each token")
        if any(parent >= row for row, parent in enumerate(self.parents)):
            raise ValueError("a parent must come before its children")

    @property
    def nodes(self) -> int:
        """Draft nodes, the root not counted."""
        return len(self.tokens) - 1

    @property
    def branches(self) -> bool:
        """True if some node has two children."""
        drafts = self.parents[1:]
        return len(set(drafts)) < len(drafts)

    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths


@dataclass(frozen=True)
class VerifyRows:
    """One request's share of a verify step, all of width D.

    tokens:    [D] int64, token 0 in padding rows
    positions: [D] int64, absolute: prefix length + depth (padding: prefix length)
    visible:   [D, D] bool, row r may see row c: its ancestors and itself; padding rows and columns all False
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    visible: torch.Tensor


def pad_tree(tree: DraftTree, prefix_len: int, draft_token_num: int) -> VerifyRows:
    """Lay a tree out as D = draft_token_num rows. Raises ValueError if it has more."""
    rows = len(tree.tokens)
    if rows > draft_token_num:
        raise ValueError(f"a tree of {rows} rows does not fit a verify width of {draft_token_num}")
    tokens = torch.zeros(draft_token_num, dtype=torch.int64)
    positions = torch.full((draft_token_num,), prefix_len, dtype=torch.int64)
    visible = torch.zeros((draft_token_num, draft_token_num), dtype=torch.bool)
    tokens[:rows] = torch.tensor(tree.tokens)
    positions[:rows] += torch.tensor(tree.depths())
    for row, parent in enumerate(tree.parents):
        if parent >= 0:
            visible[row] = visible[parent]
        visible[row, row] = True
    return VerifyRows(tokens, positions, visible)


def flat_custom_mask(visible: Sequence[torch.Tensor], prefix_lens: Sequence[int]) -> torch.Tensor:
    """SGLang's flat mask: for each request, row after row, [prefix all True | D x D]; uint8.

    Its length is the sum over requests of D * (prefix + D); request i starts at `mask_indptr[i]`.
    """
    parts = []
    for block, prefix_len in zip(visible, prefix_lens, strict=True):
        rows = block.shape[0]
        parts.append(torch.cat([torch.ones(rows, prefix_len, dtype=torch.bool), block], dim=1).flatten())
    return torch.cat(parts).to(torch.uint8)


def accept_greedy(tree: DraftTree, next_tokens: Sequence[int]) -> tuple[list[int], int]:
    """Walk from the root along children that the target itself chose.

    next_tokens[r]: the target's arg-max after row r.
    Returns the accepted rows (the root first) and the bonus token: the target's choice after the last of them.
    """
    children: dict[tuple[int, int], int] = {}
    for row in range(len(tree.tokens) - 1, 0, -1):  # on duplicates the first child wins
        children[tree.parents[row], tree.tokens[row]] = row
    accepted = [0]
    while (child := children.get((accepted[-1], next_tokens[accepted[-1]]))) is not None:
        accepted.append(child)
    return accepted, next_tokens[accepted[-1]]
