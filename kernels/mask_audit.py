"""Which cells of a tree mask will be misread, given the offsets that a backend computed? At memory speed, in Triton.

`audit(custom_mask, got, right)` takes the flat mask, the offsets as computed and the offsets as they should be, and counts
for every token of every draft tree what an attention kernel that follows `got` does to its row:

    not_computed   no program of the kernel takes this row: its output stays what it was
    misattributed  the row is computed as a row of another request, or as another row of its own
    misread        cells whose value differs from the right cell's; a cell that is not looked at counts as false
    out_of_range   cells that lie outside of the mask: the kernel reads what happens to be there

The kernel's rule, the same in SGLang from 0.4.3 on: token t belongs to the request whose stretch of qo_indptr holds
it; row r of that request reads cells mask_indptr[request] + r * (prefix + width) + ..., with prefix and width from
kv_indptr and qo_indptr, never from mask_indptr.

Needs torch and triton; on a CPU it runs in Triton's interpreter. Masks of any size; nothing is copied.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import torch
import triton
import triton.language as tl

WORD = 8
"""Cells are bytes, and are read and compared by words of eight."""

BLOCK = 1024
"""Words a program."""


class Offsets(NamedTuple):
    """prefix_lens, qo_indptr, mask_indptr: (bs,), (bs + 1,), (bs,) or more. rows_computed: of each request, how many
    rows the launch covers (`max_extend_len` rounded up to the kernel's block)."""

    prefix_lens: torch.Tensor
    qo_indptr: torch.Tensor
    mask_indptr: torch.Tensor
    rows_computed: int


class Audit(NamedTuple):
    """Each (T,), a number or a truth for each token of each tree; see the module."""

    misread: torch.Tensor
    out_of_range: torch.Tensor
    not_computed: torch.Tensor
    misattributed: torch.Tensor

    def by_request(self, qo_indptr: torch.Tensor) -> List[Tuple[int, int, int, int]]:
        """Sums over the rows of each request, in the order of the fields."""
        ends = qo_indptr.tolist()
        rows = torch.stack([x.long() for x in self], dim=1)
        return [tuple(rows[a:b].sum(dim=0).tolist()) for a, b in zip(ends, ends[1:])]

    @property
    def clean(self) -> bool:
        return not any(bool(x.any()) for x in self)


@triton.jit
def _word(Words, last, n_words, cells, at):
    """Eight cells from cell `at` on, as one integer; cells outside of the mask are zero.

    Two aligned words, shifted together: offsets of rows are not aligned to anything.
    """
    index = at >> 3
    shift = (at & 7) * 8
    low = tl.load(Words + index, mask=(index >= 0) & (index < n_words), other=0)
    high = tl.load(Words + index + 1, mask=(index + 1 >= 0) & (index + 1 < n_words), other=0)
    low = tl.where(index == n_words, last, low)
    high = tl.where(index + 1 == n_words, last, high)
    # Shifting by 64 is undefined, so the aligned case is told apart; the arithmetic shift's sign bits are cut off.
    rest = tl.where(shift == 0, 0, high << ((64 - shift) & 63))
    kept = tl.where(shift == 0, low, (low >> shift) & ((1 << ((64 - shift) & 63)) - 1))
    return kept | rest


@triton.jit
def _ones(word):
    """How many of the eight bytes are 1, for bytes that are 0 or 1: their sum gathers in the highest byte."""
    return ((word * 0x0101010101010101) >> 56) & 0xFF


@triton.jit
def _first_cells(count):
    """A word with ones in its first `count` cells, 0 to 8."""
    count = tl.minimum(tl.maximum(count, 0), 8)
    return tl.where(count == 8, 0x0101010101010101, 0x0101010101010101 & ((1 << ((count * 8) & 63)) - 1))


@triton.jit
def _audit_kernel(Words, Last, n_words, cells, Right, Got, Length, Seen, Misread, Stray, BLOCK: tl.constexpr):
    """Row program_id(0), words from program_id(1) * BLOCK on. Right, Got: first cell of the row, rightly and as
    computed; Length: its cells; Seen: how many of them the kernel looks at."""
    row = tl.program_id(0)
    length = tl.load(Length + row)
    at = (tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * 8
    if tl.program_id(1).to(tl.int64) * BLOCK * 8 < length:
        right = tl.load(Right + row)
        got = tl.load(Got + row)
        seen = tl.load(Seen + row)
        last = tl.load(Last)
        wanted = _word(Words, last, n_words, cells, right + at) & _first_cells(length - at)
        read = _word(Words, last, n_words, cells, got + at) & _first_cells(tl.minimum(seen, length) - at)
        wrong = tl.sum(_ones(wanted ^ read), axis=0)
        # By arithmetic: how many of these cells, as computed, lie before the mask or behind it.
        low = tl.minimum(tl.maximum(-got - at, 0), 8)
        high = tl.minimum(tl.maximum(got + at + 8 - cells, 0), 8)
        used = tl.minimum(tl.maximum(tl.minimum(seen, length) - at, 0), 8)
        stray = tl.sum(tl.minimum(low, used) + tl.maximum(high - (8 - used), 0), axis=0)
        if wrong > 0:
            tl.atomic_add(Misread + row, wrong)
        if stray > 0:
            tl.atomic_add(Stray + row, stray)


class Rows(NamedTuple):
    """Of each token, (T,): first cell rightly and as computed, cells of the row, and how many are looked at (0: none)."""

    right: torch.Tensor
    got: torch.Tensor
    length: torch.Tensor
    seen: torch.Tensor
    not_computed: torch.Tensor
    misattributed: torch.Tensor


def rows_of(got: Offsets, right: Offsets, *, whole_rows: bool) -> Rows:
    """What the kernel does to each row, without looking at the mask. whole_rows: the prefix's cells are read too."""
    device = right.qo_indptr.device
    tokens = int(right.qo_indptr[-1])
    t = torch.arange(tokens, device=device)
    owner, node = _owner(right.qo_indptr, t)
    width = (right.qo_indptr[1:] - right.qo_indptr[:-1]).long()[owner]
    prefix = right.prefix_lens.long()[owner]
    taken_by, as_node = _owner(got.qo_indptr, t)
    bs = right.qo_indptr.shape[0] - 1
    known = (t < int(got.qo_indptr[-1])) & (as_node < got.rows_computed)
    taker = taken_by.clamp(max=bs - 1)
    got_width = (got.qo_indptr[1:] - got.qo_indptr[:-1]).long()[taker]
    got_prefix = got.prefix_lens.long()[taker]
    before = torch.zeros_like(prefix) if whole_rows else prefix
    got_before = torch.zeros_like(prefix) if whole_rows else got_prefix
    length = width if not whole_rows else prefix + width
    looked_at = got_width if not whole_rows else got_prefix + got_width
    return Rows(
        right=right.mask_indptr.long()[owner] + node * (prefix + width) + before,
        got=got.mask_indptr.long()[taker] + as_node * (got_prefix + got_width) + got_before,
        length=length,
        seen=torch.where(known, looked_at, torch.zeros_like(looked_at)),
        not_computed=~known,
        misattributed=known & ((taker != owner) | (as_node != node)),
    )


def _owner(qo_indptr: torch.Tensor, t: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Of each token: the request whose stretch holds it, and the row it is there."""
    ends = qo_indptr.long()
    owner = (torch.searchsorted(ends, t, right=True) - 1).clamp(min=0, max=ends.shape[0] - 2)
    return owner, t - ends[owner]


def audit(custom_mask: torch.Tensor, got: Offsets, right: Offsets, *, whole_rows: bool = False) -> Audit:
    """custom_mask: flat, one byte a cell (bool, or integers of which any but 0 is true).

    Raises ValueError for a mask of wider cells.
    """
    rows = rows_of(got, right, whole_rows=whole_rows)
    misread, stray = count(custom_mask, rows)
    return Audit(misread, stray, rows.not_computed, rows.misattributed)


def count(custom_mask: torch.Tensor, rows: Rows, longest: Optional[int] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """(misread, out_of_range), each (T,) int32. longest: cells of the longest row; given, nothing waits for the device."""
    if custom_mask.element_size() != 1 or custom_mask.dim() != 1:
        raise ValueError(f"the mask is flat and a cell is one byte, not {custom_mask.dtype} of {custom_mask.dim()} axes")
    if custom_mask.dtype != torch.bool:
        custom_mask = custom_mask != 0
    if custom_mask.data_ptr() % WORD != 0:
        custom_mask = custom_mask.clone()
    cells = custom_mask.numel()
    n_words = cells // WORD
    words = custom_mask[: n_words * WORD].view(torch.int64) if n_words else rows.right
    last = _tail(custom_mask[n_words * WORD :])
    tokens = rows.right.shape[0]
    misread = torch.zeros(tokens, dtype=torch.int32, device=custom_mask.device)
    stray = torch.zeros(tokens, dtype=torch.int32, device=custom_mask.device)
    if tokens:
        longest = int(rows.length.max()) if longest is None else longest
        block = min(BLOCK, triton.next_power_of_2(triton.cdiv(longest, WORD)))
        _audit_kernel[(tokens, triton.cdiv(triton.cdiv(longest, WORD), block))](
            words, last, n_words, cells, rows.right, rows.got, rows.length, rows.seen, misread, stray, BLOCK=block
        )
    return misread, stray


def _tail(cells: torch.Tensor) -> torch.Tensor:
    """(1,) int64: the last, incomplete word."""
    whole = torch.zeros(WORD, dtype=torch.bool, device=cells.device)
    whole[: cells.numel()] = cells
    return whole.view(torch.int64)


def plainly(custom_mask: torch.Tensor, got: Offsets, right: Offsets, *, whole_rows: bool = False) -> Audit:
    """The same, cell by cell, in plain Python: what `audit` is tested against."""
    rows = rows_of(got, right, whole_rows=whole_rows)
    mask = [bool(cell) for cell in custom_mask.tolist()]
    misread, stray = [], []
    for at, as_got, length, seen in zip(*(x.tolist() for x in rows[:4])):
        wrong = outside = 0
        for column in range(length):
            wanted = mask[at + column]
            read = False
            if column < seen:
                inside = 0 <= as_got + column < len(mask)
                outside += not inside
                read = inside and mask[as_got + column]
            wrong += wanted is not read
        misread.append(wrong)
        stray.append(outside)
    made = [torch.tensor(x, dtype=torch.int32) for x in (misread, stray)]
    return Audit(made[0], made[1], rows.not_computed, rows.misattributed)
