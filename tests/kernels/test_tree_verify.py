"""tree_verify in Triton's interpreter against the reference: shapes, cuts of the work, and offsets that lead astray."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("the lab extra is not installed", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference, tree_verify
from kernels.step import Shape, made_up
from kernels.tree_verify import Plan

# The interpreter computes by NumPy, which speaks of what a GPU does in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SMALL = Plan(32, 16, 3, 4, 1)
TWO_TILES = Plan(64, 16, 2, 4, 1, 16)
TOLERANCE = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5}


def poisoned(shape: Shape, step) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return torch.full(step.out_shape, float("nan"), dtype=getattr(torch, shape.dtype))


@pytest.mark.parametrize("plan", [None, SMALL], ids=["planned", "split"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 17, 50),
        Shape(3, 8, 70),
        Shape(2, 17, 0),
        Shape(1, 1, 1, heads=1, kv_heads=1),
        Shape(2, 5, 40, heads=6, kv_heads=2, tree="chain"),
        Shape(2, 8, 40, Lq=192, Lv=128),
        Shape(1, 4, 20, heads=8, kv_heads=1, Lq=576, Lv=512),
        Shape(1, 4, 20, Lq=80, Lv=80, dtype="float32"),
        Shape(2, 8, 30, logit_cap=20.0),
        Shape(2, 8, 30, skip_prefix_custom_mask=False),
        Shape(2, 8, 40, sliding_window_size=12),
        Shape(2, 8, 30, dtype="bfloat16"),
        Shape(2, 8, 30, kv_dtype="float8_e5m2"),
        Shape(2, 9, 30, tree="padded"),
    ],
    ids=Shape.label,
)
def test_as_the_reference(shape: Shape, plan: Plan | None) -> None:
    step = made_up(shape, seed=3)
    got = tree_verify.attend(step, poisoned(shape, step), plan)
    assert reference.relative_error(got.out, reference.attend(step)) < TOLERANCE[shape.dtype]
    assert not got.stray_cells.any()


@settings(max_examples=12, deadline=None)
@given(
    bs=st.integers(1, 3),
    width=st.integers(1, 20),
    prefix=st.integers(0, 60),
    group=st.sampled_from([1, 3, 4]),
    splits=st.sampled_from([1, 2, 5]),
    tree=st.sampled_from(["chain", "tree", "padded"]),
    tiles=st.sampled_from([(16, 0), (64, 16)]),
)
def test_however_the_work_is_cut(
    bs: int, width: int, prefix: int, group: int, splits: int, tree: str, tiles: tuple[int, int]
) -> None:
    shape = Shape(bs, width, prefix, heads=group, kv_heads=1, Lq=16, Lv=16, tree=tree, telling=True)
    step = made_up(shape, seed=width)
    plan = Plan(tiles[0], 16, splits, 4, 1, tiles[1])
    got = tree_verify.attend(step, poisoned(shape, step), plan)
    assert reference.relative_error(got.out, reference.attend(step)) < 2e-3


def test_seventeen_rows_of_four_heads_are_a_tile_and_a_small_one() -> None:
    shape = Shape(2, 17, 40, heads=4, kv_heads=1)
    step = made_up(shape, seed=1)
    got = tree_verify.attend(step, poisoned(shape, step), TWO_TILES)
    assert reference.relative_error(got.out, reference.attend(step)) < 1e-3
    assert tree_verify.tiles(68, 128) == (64, 16)
    assert [tree_verify.tiles(rows, 128) for rows in (1, 16, 17, 64, 65, 97, 128, 132, 200)] == [
        (16, 0), (16, 0), (32, 0), (64, 0), (64, 16), (128, 0), (128, 0), (128, 16), (128, 0),
    ]  # fmt: skip


def test_cells_outside_of_the_mask_are_counted_and_not_read() -> None:
    step = made_up(Shape(2, 6, 10, heads=2, kv_heads=1), seed=4)
    cells = step.custom_mask.numel()
    lost = step._replace(mask_indptr=torch.tensor([0, cells - 3, cells]))
    got = tree_verify.attend(lost, poisoned(Shape(2, 6, 10), lost))
    rows = slice(0, 6)
    want = reference.attend(step)
    assert reference.relative_error(got.out[rows], want[rows]) < 1e-3
    # Request 1 reads its tree's cells from cells - 3 + row * 13 + 7 on: the first of them is outside already.
    assert got.stray_cells.tolist() == [0, 36]
    assert torch.isfinite(got.out).all()
    negative = step._replace(mask_indptr=torch.tensor([-1000, int(step.mask_indptr[1]), cells]))
    assert tree_verify.attend(negative).stray_cells.tolist()[0] == 36


def test_stray_cells_add_up_where_they_are_asked_to() -> None:
    step = made_up(Shape(1, 3, 4, heads=1, kv_heads=1), seed=4)
    lost = step._replace(mask_indptr=step.mask_indptr + 10_000)
    total = torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        tree_verify.attend(lost, stray=total)
    assert total.tolist() == [18]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"k": torch.zeros(3, 2, 64)}, "tokens"),
        ({"v_buffer": torch.zeros(10, 2, 32)}, "head sizes"),
        ({"custom_mask": torch.zeros(100, dtype=torch.int32)}, "one byte"),
        ({"q": torch.zeros(4, 3, 64)}, "evenly"),
    ],
    ids=["tokens", "pool", "mask", "heads"],
)
def test_shapes_that_do_not_fit(change: dict[str, torch.Tensor], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        tree_verify.attend(made_up(Shape(1, 4, 5), seed=1)._replace(**change))


@pytest.mark.parametrize(
    ("programs", "prefix", "wanted"), [(8, 8192, 34), (512, 8192, 1), (8, 100, 1), (8, 256, 3), (1, 1 << 20, 65)]
)
def test_a_short_batch_is_split_a_long_one_is_not(programs: int, prefix: int, wanted: int) -> None:
    assert tree_verify.splits_for(programs, prefix, 128, 132) == wanted
