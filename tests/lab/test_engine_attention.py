"""Attention by metadata: equal to a dense computation when the metadata is right, followed literally when it is not."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the lab extra is not installed")

from diag.lab.engine.attention import RequestPlan, attend, plan_decode, plan_extend  # noqa: E402
from diag.lab.engine.tree import DraftTree, flat_custom_mask, pad_tree  # noqa: E402

HEADS, KV_HEADS, DIM, POISON = 6, 2, 8, 777.0


def metadata(prefixes: list[int], width: int, mask: torch.Tensor, *, counted: int | None = None) -> SimpleNamespace:
    """As the backend builds it with `counted` rows a request (right: width)."""
    n = width if counted is None else counted
    lens = torch.tensor(prefixes)
    zero = torch.zeros(1, dtype=torch.int64)
    return SimpleNamespace(
        qo_indptr=torch.arange(0, (len(prefixes) + 1) * n, n),
        kv_indptr=torch.cat([zero, lens.cumsum(0)]),
        kv_indices=torch.randperm(sum(prefixes)),
        custom_mask=mask,
        mask_indptr=torch.cat([zero, (n * (lens + n)).cumsum(0)]),
        max_extend_len=n,
    )


def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float64, head by head, no library call: [rows, H, D]."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(HEADS):
        k, v = keys[:, head // (HEADS // KV_HEADS)].double(), values[:, head // (HEADS // KV_HEADS)].double()
        scores = (q[:, head].double() @ k.T) * DIM**-0.5
        out[:, head] = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
    return out


@pytest.mark.parametrize("prefixes", [[5], [1, 9], [4, 3, 7]])
def test_right_metadata_gives_dense_attention(prefixes: list[int]) -> None:
    torch.manual_seed(len(prefixes))
    width = 5
    tree = DraftTree((1, 2, 3), (-1, 0, 0))
    rows = [pad_tree(tree, prefix, width) for prefix in prefixes]
    mask = flat_custom_mask([r.visible for r in rows], prefixes)
    meta = metadata(prefixes, width, mask)
    total = width * len(prefixes)
    q, k, v = torch.randn(total, HEADS, DIM), torch.randn(total, KV_HEADS, DIM), torch.randn(total, KV_HEADS, DIM)
    pools = torch.randn(2, sum(prefixes), KV_HEADS, DIM)
    out = torch.full_like(q, POISON)
    attend(q, k, v, out, pools[0], pools[1], plan_extend(meta, total), own_rows=True, scaling=DIM**-0.5)
    start = 0
    for i, prefix in enumerate(prefixes):
        own = slice(i * width, (i + 1) * width)
        slots = meta.kv_indices[start : start + prefix]
        start += prefix
        visible = torch.cat([torch.ones(width, prefix, dtype=torch.bool), rows[i].visible], 1)
        want = dense(q[own], torch.cat([pools[0][slots], k[own]]), torch.cat([pools[1][slots], v[own]]), visible)
        assert torch.allclose(out[own].double(), want, atol=1e-5)


def test_too_small_a_count_leaves_rows_unwritten_and_misreads_the_mask() -> None:
    """bs 1, width 17, counted 8: what sglang-sources calls `35 of 64 mask bits wrong, rows 8-16 never computed`."""
    chain = DraftTree(tuple(range(17)), (-1, *range(16)))
    rows = pad_tree(chain, 20, 17)
    mask = flat_custom_mask([rows.visible], [20])
    (plan,) = plan_extend(metadata([20], 17, mask, counted=8), 17)
    assert plan.rows == slice(0, 8)
    wrong = (plan.mask[:, 20:] != rows.visible[:8, :8]).sum()
    assert wrong > 0
    assert torch.equal(plan.mask[0, 20:], rows.visible[0, :8])  # the first row is right: the first token still is
    q, kv = torch.randn(17, HEADS, DIM), torch.randn(2, 17, KV_HEADS, DIM)
    out = torch.full_like(q, POISON)
    pool = torch.randn(2, 20, KV_HEADS, DIM)
    attend(q, kv[0], kv[1], out, pool[0], pool[1], [plan], own_rows=True, scaling=1.0)
    assert (out[8:] == POISON).all()
    assert not (out[:8] == POISON).any()


def test_only_the_mask_offsets_wrong_hurts_from_the_second_request_on() -> None:
    prefixes, width = [6, 6], 5
    rows = [pad_tree(DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 1, 0)), p, width) for p in prefixes]
    mask = flat_custom_mask([r.visible for r in rows], prefixes)
    meta = metadata(prefixes, width, mask)
    meta.mask_indptr = metadata(prefixes, width, mask, counted=3).mask_indptr
    first, second = plan_extend(meta, 10)
    assert torch.equal(first.mask[:, 6:], rows[0].visible)
    assert not torch.equal(second.mask[:, 6:], rows[1].visible)


def test_too_large_a_count_reads_nothing_outside_the_mask() -> None:
    rows = pad_tree(DraftTree((1, 2), (-1, 0)), 4, 4)
    mask = flat_custom_mask([rows.visible], [4])
    (plan,) = plan_extend(metadata([4], 4, mask, counted=9), 4)
    assert plan.rows == slice(0, 4)
    assert plan.mask.shape == (4, 8)


def test_max_extend_len_stops_rows_only_beyond_its_block() -> None:
    mask = torch.ones(70 * 71, dtype=torch.uint8)
    meta = metadata([1], 70, mask)
    meta.max_extend_len = 33
    (plan,) = plan_extend(meta, 70)
    assert plan.rows == slice(0, 64)


def test_decode_reads_the_pool_alone() -> None:
    meta = SimpleNamespace(kv_indptr=torch.tensor([0, 2, 5]), kv_indices=torch.tensor([3, 1, 0, 2, 4]))
    plans = plan_decode(meta)
    assert [p.slots.tolist() for p in plans] == [[3, 1], [0, 2, 4]]
    pool = torch.randn(2, 5, KV_HEADS, DIM)
    q, own = torch.randn(2, HEADS, DIM), torch.full((2, KV_HEADS, DIM), POISON)
    out = torch.full_like(q, POISON)
    attend(q, own, own, out, pool[0], pool[1], plans, own_rows=False, scaling=DIM**-0.5)
    want = dense(q[1:], pool[0][plans[1].slots], pool[1][plans[1].slots], torch.ones(1, 3, dtype=torch.bool))
    assert torch.allclose(out[1:].double(), want, atol=1e-5)


def test_an_empty_plan_writes_nothing() -> None:
    out = torch.full((2, HEADS, DIM), POISON)
    empty = RequestPlan(slice(2, 2), torch.tensor([], dtype=torch.int64), torch.ones(0, 0, dtype=torch.bool))
    x = torch.randn(2, KV_HEADS, DIM)
    attend(torch.randn(2, HEADS, DIM), x, x, out, x, x, [empty], own_rows=True, scaling=1.0)
    assert (out == POISON).all()
