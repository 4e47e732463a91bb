"""Draft trees: shapes, padding, masks and acceptance, against slow and obvious versions of themselves."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="the lab extra is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from diag.lab.engine.draft import propose  # noqa: E402
from diag.lab.engine.tree import DraftTree, accept_greedy, flat_custom_mask, pad_tree  # noqa: E402


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 16) -> DraftTree:
    nodes = draw(st.integers(0, max_nodes))
    parents = [-1] + [draw(st.integers(0, row)) for row in range(nodes)]
    tokens = draw(st.lists(st.integers(0, 5), min_size=nodes + 1, max_size=nodes + 1))
    return DraftTree(tuple(tokens), tuple(parents))


def ancestors(tree: DraftTree, row: int) -> set[int]:
    return {row} if tree.parents[row] < 0 else {row} | ancestors(tree, tree.parents[row])


@given(trees(), st.integers(0, 40), st.integers(0, 6))
def test_a_row_sees_itself_and_its_ancestors_and_padding_sees_nothing(tree: DraftTree, prefix: int, spare: int) -> None:
    width = len(tree.tokens) + spare
    rows = pad_tree(tree, prefix, width)
    for row in range(width):
        seen = set(torch.nonzero(rows.visible[row]).flatten().tolist())
        assert seen == (ancestors(tree, row) if row < len(tree.tokens) else set())
    assert rows.tokens[len(tree.tokens) :].tolist() == [0] * spare
    assert rows.positions[0] == prefix
    for row in range(1, len(tree.tokens)):
        assert rows.positions[row] == rows.positions[tree.parents[row]] + 1


def test_a_tree_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a tree of 3 rows does not fit a verify width of 2"):
        pad_tree(DraftTree((1, 2, 3), (-1, 0, 0)), 5, 2)


@pytest.mark.parametrize("parents", [(-1, 1), (0,), (-1, 0, 5)])
def test_a_parent_after_its_child_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parent"):
        DraftTree(tuple(range(len(parents))), parents)


@given(st.lists(st.tuples(trees(6), st.integers(0, 9)), min_size=1, max_size=4))
def test_the_flat_mask_holds_each_request_where_the_right_offsets_say(batch: list[tuple[DraftTree, int]]) -> None:
    width = 8
    rows = [pad_tree(tree, prefix, width) for tree, prefix in batch]
    prefixes = [prefix for _, prefix in batch]
    flat = flat_custom_mask([r.visible for r in rows], prefixes)
    assert flat.dtype == torch.uint8
    start = 0
    for row, prefix in zip(rows, prefixes, strict=True):
        size = width * (prefix + width)
        block = flat[start : start + size].view(width, prefix + width).bool()
        assert block[:, :prefix].all()
        assert torch.equal(block[:, prefix:], row.visible)
        start += size
    assert start == flat.numel()


@given(trees(), st.lists(st.integers(0, 5), min_size=17, max_size=17))
def test_acceptance_follows_the_target_and_stops_where_no_child_agrees(tree: DraftTree, best: list[int]) -> None:
    accepted, bonus = accept_greedy(tree, best)
    assert accepted[0] == 0
    for parent, child in itertools.pairwise(accepted):
        assert tree.parents[child] == parent
        assert tree.tokens[child] == best[parent]
    assert bonus == best[accepted[-1]]
    children = [r for r in range(1, len(tree.tokens)) if tree.parents[r] == accepted[-1]]
    assert bonus not in [tree.tokens[r] for r in children]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 16), st.integers(1, 4))
@settings(max_examples=60)
def test_the_drafter_keeps_to_its_budget_and_branching(context: list[int], budget: int, topk: int) -> None:
    tree = propose(context, budget=budget, topk=topk)
    assert tree.tokens[0] == context[-1]
    assert tree.nodes <= budget
    siblings: dict[int, list[int]] = {}
    for row in range(1, len(tree.tokens)):
        siblings.setdefault(tree.parents[row], []).append(tree.tokens[row])
    for tokens in siblings.values():
        assert len(tokens) <= topk
        assert len(set(tokens)) == len(tokens)
    assert tree.branches is any(len(tokens) > 1 for tokens in siblings.values())
    assert propose(context, budget=budget, topk=topk) == tree


def test_the_drafter_continues_a_cycle_to_the_whole_budget() -> None:
    tree = propose([1, 2, 3, 4] * 3, budget=6, topk=1)
    assert tree.tokens == (4, 1, 2, 3, 4, 1, 2)
    assert tree.parents == (-1, 0, 1, 2, 3, 4, 5)
    assert not tree.branches
