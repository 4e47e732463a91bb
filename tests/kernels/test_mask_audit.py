"""mask_audit in the interpreter, against the same count made cell by cell, and against the story's numbers."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("the lab extra is not installed", allow_module_level=True)

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import mask_audit
from kernels.mask_audit import Audit, Offsets

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def offsets(prefix_lens: list[int], width: int, rows_computed: int = 1 << 20) -> Offsets:
    """Of a step of that width, by plain arithmetic."""
    sizes = [width * (length + width) for length in prefix_lens]
    return Offsets(
        torch.tensor(prefix_lens),
        torch.arange(0, len(prefix_lens) * width + 1, width),
        torch.tensor([0, *itertools.accumulate(sizes)]),
        rows_computed,
    )


lens = st.lists(st.integers(0, 40), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(
    prefix_lens=lens,
    width=st.sampled_from([1, 3, 8, 17]),
    setting=st.sampled_from([1, 5, 8, 20]),
    wrong=st.sampled_from(["nothing", "everything", "mask_indptr", "qo_indptr", "shifted"]),
    shift=st.integers(-80, 80),
    rows_computed=st.sampled_from([4, 16, 1 << 20]),
    whole_rows=st.booleans(),
    seed=st.integers(0, 99),
    as_bytes=st.booleans(),
)
def test_as_counted_cell_by_cell(
    prefix_lens: list[int],
    width: int,
    setting: int,
    wrong: str,
    shift: int,
    rows_computed: int,
    whole_rows: bool,
    seed: int,
    as_bytes: bool,
) -> None:
    right, told = offsets(prefix_lens, width), offsets(prefix_lens, setting)
    got = right._replace(rows_computed=rows_computed)
    if wrong in ("everything", "qo_indptr"):
        got = got._replace(qo_indptr=told.qo_indptr)
    if wrong in ("everything", "mask_indptr"):
        got = got._replace(mask_indptr=told.mask_indptr)
    if wrong == "shifted":
        got = got._replace(mask_indptr=right.mask_indptr + shift)
    mask = torch.rand(int(right.mask_indptr[-1]), generator=torch.Generator().manual_seed(seed)) < 0.6
    given_mask = mask.to(torch.uint8) * 7 if as_bytes else mask
    found = mask_audit.audit(given_mask, got, right, whole_rows=whole_rows)
    want = mask_audit.plainly(mask, got, right, whole_rows=whole_rows)
    for name, mine, other in zip(Audit._fields, found, want):
        assert mine.tolist() == other.tolist(), name
    if wrong == "nothing" and rows_computed > width:
        assert found.clean


def causal(prefix_lens: list[int], width: int) -> torch.Tensor:
    tree = torch.ones(width, width, dtype=torch.bool).tril()
    return torch.cat([torch.cat([torch.ones(width, n, dtype=torch.bool), tree], 1).reshape(-1) for n in prefix_lens])


def test_the_story_of_one_request() -> None:
    """Server's count 8, verify step 17 wide: nine rows are never computed, whatever the mask says."""
    right, got = offsets([7], 17), offsets([7], 8, rows_computed=64)
    found = mask_audit.audit(causal([7], 17), got, right)
    assert found.not_computed.tolist() == [False] * 8 + [True] * 9
    assert not found.misattributed.any()
    assert found.by_request(right.qo_indptr)[0][2] == 9


def test_offsets_of_the_mask_alone_are_silent_for_one_request_and_not_for_two() -> None:
    right = offsets([7, 19], 17)
    got = right._replace(mask_indptr=offsets([7, 19], 8).mask_indptr)
    one, two = mask_audit.audit(causal([7, 19], 17), got, right).by_request(right.qo_indptr)
    assert one == (0, 0, 0, 0)
    assert two[0] > 0


def test_rows_longer_than_one_program() -> None:
    length = 8 * mask_audit.CHUNK + 5
    right = offsets([length], 2)
    mask = torch.rand(int(right.mask_indptr[-1]), generator=torch.Generator().manual_seed(1)) < 0.5
    got = right._replace(mask_indptr=right.mask_indptr + 3)
    found = mask_audit.audit(mask, got, right, whole_rows=True)
    rows = [mask[i * (length + 2) : (i + 1) * (length + 2)] for i in range(2)]
    wide = torch.cat([mask, torch.zeros(3, dtype=torch.bool)])
    read = [wide[3 + i * (length + 2) : 3 + (i + 1) * (length + 2)] for i in range(2)]
    assert found.misread.tolist() == [int((a != b).sum()) for a, b in zip(rows, read)]
    assert found.out_of_range.tolist() == [0, 3]


def test_a_mask_that_is_not_aligned_is_read_all_the_same() -> None:
    right = offsets([9, 4], 5)
    whole = torch.rand(int(right.mask_indptr[-1]) + 3, generator=torch.Generator().manual_seed(2)) < 0.5
    got = right._replace(mask_indptr=right.mask_indptr + 1)
    assert mask_audit.audit(whole[3:], got, right).misread.tolist() == (
        mask_audit.plainly(whole[3:], got, right).misread.tolist()
    )


@pytest.mark.parametrize("mask", [torch.zeros(10, dtype=torch.int32), torch.zeros(2, 5, dtype=torch.bool)])
def test_other_masks_are_refused(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="one byte"):
        mask_audit.audit(mask, offsets([0], 1), offsets([0], 1))
