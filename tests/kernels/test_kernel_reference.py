"""The reference against torch's own attention, and where the two cannot be asked the same."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("the lab extra is not installed", allow_module_level=True)

import random

import torch

from kernels import reference
from kernels.step import Shape, made_up, tree_mask


def sdpa(step, i: int, allowed: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Request i by torch's scaled_dot_product_attention, in float64."""
    rows = slice(int(step.qo_indptr[i]), int(step.qo_indptr[i + 1]))
    slots = step.kv_indices[int(step.kv_indptr[i]) : int(step.kv_indptr[i + 1])]
    k = torch.cat([step.k_buffer[slots], step.k[rows]]).double().repeat_interleave(step.group, 1)
    v = torch.cat([step.v_buffer[slots], step.v[rows]]).double().repeat_interleave(step.group, 1)
    q = step.q[rows].double()
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=allowed, scale=step.sm_scale
    )
    return out.transpose(0, 1)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(3, 5, 20, tree="chain"),
        Shape(2, 17, 33, heads=6, kv_heads=2),
        Shape(1, 8, 0),
        Shape(2, 4, 9, Lq=192, Lv=128),
        Shape(2, 9, 14, skip_prefix_custom_mask=False, dtype="bfloat16"),
        Shape(2, 9, 30, sliding_window_size=11),
    ],
    ids=Shape.label,
)
def test_as_torch_attends(shape: Shape) -> None:
    step = made_up(shape, seed=5)
    got = reference.attend(step)
    for i in range(step.bs):
        rows = slice(int(step.qo_indptr[i]), int(step.qo_indptr[i + 1]))
        want = sdpa(step, i, reference.visible(step, i))
        torch.testing.assert_close(got[rows], want.to(got.dtype))


def test_without_a_mask_it_is_causal() -> None:
    step = made_up(Shape(2, 6, 10, tree="chain"), seed=1)
    torch.testing.assert_close(reference.attend(step._replace(custom_mask=None)), reference.attend(step))


def test_a_row_that_may_attend_nothing_is_zero() -> None:
    step = made_up(Shape(1, 4, 3, skip_prefix_custom_mask=False), seed=1)
    out = reference.attend(step._replace(custom_mask=torch.zeros_like(step.custom_mask)))
    assert not out.any()


def test_what_is_stored_smaller_is_scaled() -> None:
    step = made_up(Shape(1, 4, 12), seed=2)
    halved = step._replace(k_buffer=step.k_buffer / 2, v_buffer=step.v_buffer / 4, k_scale=2.0, v_scale=4.0)
    assert reference.relative_error(reference.attend(halved), reference.attend(step)) < 1e-3


def test_the_logit_cap_bounds_what_a_key_can_win() -> None:
    step = made_up(Shape(1, 2, 6), seed=2)
    loud = step._replace(q=step.q * 100)
    capped = reference.attend(loud._replace(logit_cap=1e-6))
    flat = reference.attend(loud._replace(q=torch.zeros_like(step.q)))
    torch.testing.assert_close(capped, flat, atol=1e-5, rtol=1e-4)


def test_offsets_outside_of_the_mask_are_an_error() -> None:
    step = made_up(Shape(2, 5, 4), seed=2)
    with pytest.raises(IndexError, match="request 1 reads cells"):
        reference.attend(step._replace(mask_indptr=step.mask_indptr + 30))


@pytest.mark.parametrize("tree", ["chain", "tree", "padded"])
def test_a_tree_is_closed_under_ancestors(tree: str) -> None:
    mask = tree_mask(13, tree, random.Random(3))
    assert mask.diagonal().all()
    assert not mask.triu(1).any()
    seen_by_the_seen = (mask.int() @ mask.int()) > 0
    assert torch.equal(seen_by_the_seen, mask)
    padded = mask.sum(dim=1) == 1
    assert int(padded.sum()) == (5 if tree == "padded" else 1)


def test_a_nan_is_no_small_error() -> None:
    assert reference.relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
