"""Which cells of a tree mask will be misread, given the offsets that a backend computed? At memory speed, in Triton.

`audit(custom_mask, got, right)` takes the flat mask, the offsets as computed and the offsets as they should be, and
counts for every token of every draft tree what an attention kernel that follows `got` does to its row:

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

import itertools
from typing import List, NamedTuple, Optional, Tuple

import torch
import triton
import triton.language as tl

WORD = 8
"""Cells are bytes, and are read and compared by words of eight."""

BLOCK = 512
"""Words at a time."""

CHUNK = 16 * BLOCK
"""Words a program: at most 31 blocks, see the kernel."""


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
        return [tuple(rows[a:b].sum(dim=0).tolist()) for a, b in itertools.pairwise(ends)]

    @property
    def clean(self) -> bool:
        return not any(bool(x.any()) for x in self)


@triton.jit
def _cell(Mask, at, wanted, cells):
    """The cells at these offsets, false where they lie outside of the mask."""
    return (tl.load(Mask + at, mask=wanted & (at >= 0) & (at < cells), other=0) != 0) & wanted


@triton.jit
def _shifted(Words, Last, n_words, index, shift, wanted, TAIL: tl.constexpr):
    """Eight cells from `shift` bits into word `index` on. Words before the mask and behind it are zero."""
    low = tl.load(Words + index, mask=wanted & (index >= 0) & (index < n_words), other=0)
    if TAIL:
        low = tl.where(index == n_words, tl.load(Last), low)
    if shift > 0:
        high = tl.load(Words + index + 1, mask=wanted & (index + 1 >= 0) & (index + 1 < n_words), other=0)
        if TAIL:
            high = tl.where(index + 1 == n_words, tl.load(Last), high)
        # The shift to the right brings in sign bits: cut off.
        low = ((low >> shift) & ((1 << (64 - shift)) - 1)) | (high << (64 - shift))
    return low


@triton.jit
def _audit_kernel(
    Words, Last, Mask, n_words, cells, Right, Got, Length, Seen, Misread,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, TAIL: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Row program_id(0), CHUNK words of it from program_id(1) on. Right, Got: first cell of the row, rightly and as
    computed; Length: its cells; Seen: how many of them the kernel looks at.

    Words are aligned to the right cells; the computed ones lie a fixed number of bits further on in the whole row.
    """
    row = tl.program_id(0)
    right = tl.load(Right + row)
    got = tl.load(Got + row)
    end = right + tl.load(Length + row)
    stop = tl.minimum(right + tl.load(Seen + row), end)  # behind it nothing is looked at
    ahead = got - right
    first = right >> 3
    low = first + tl.program_id(1).to(tl.int64) * CHUNK
    high = tl.minimum(low + CHUNK, (end >> 3) + 1)
    # Bytes are 0 or 1, so differences of up to 31 words add up byte by byte without a carry.
    differ = tl.zeros([BLOCK], dtype=tl.int64)
    for start in range(low, high, BLOCK):
        w = start + tl.arange(0, BLOCK)
        compared = (w * 8 >= right) & (w * 8 + 8 <= stop) & (w < high)
        unread = (w * 8 >= stop) & (w * 8 + 8 <= end) & (w * 8 >= right) & (w < high)
        wanted = tl.load(Words + w, mask=compared | unread, other=0)
        read = _shifted(Words, Last, n_words, w + (ahead >> 3), (ahead & 7) * 8, compared, TAIL)
        differ += wanted ^ tl.where(compared, read, 0)
    # Eight bytes added up in the highest one.
    wrong = tl.sum(((differ * 0x0101010101010101) >> 56) & 0xFF, axis=0)
    if tl.program_id(1) == 0:
        # The words at the row's two ends and where the kernel stops looking are in part somebody else's: cell by cell.
        lane = tl.arange(0, 32)
        word = tl.where(lane < 8, first, tl.where(lane < 16, stop >> 3, end >> 3))
        again = ((lane >= 8) & (word == first)) | ((lane >= 16) & (word == (stop >> 3))) | (lane >= 24)
        whole = (word * 8 >= right) & ((word * 8 + 8 <= stop) | ((word * 8 >= stop) & (word * 8 + 8 <= end)))
        at = word * 8 + lane % 8
        mine = (at >= right) & (at < end) & (again == 0) & (whole == 0)
        wanted_cell = _cell(Mask, at, mine, cells)
        read_cell = _cell(Mask, at + ahead, mine & (at < stop), cells)
        wrong += tl.sum((wanted_cell != read_cell).to(tl.int64), axis=0)
    if ONE:
        tl.store(Misread + row, wrong.to(tl.int32))
    elif wrong > 0:
        tl.atomic_add(Misread + row, wrong.to(tl.int32))


class Rows(NamedTuple):
    """Of each token, (T,): first cell rightly and as computed, cells of the row, and how many are looked at, if any."""

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
    misread = count(custom_mask, rows)
    return Audit(misread, _outside(rows, custom_mask.numel()), rows.not_computed, rows.misattributed)


def count(custom_mask: torch.Tensor, rows: Rows, longest: Optional[int] = None) -> torch.Tensor:
    """(T,) int32: misread cells of each row. longest: cells of the longest row; given, nobody waits for the GPU."""
    if custom_mask.element_size() != 1 or custom_mask.dim() != 1:
        raise ValueError(f"a mask is flat and a cell one byte, not {custom_mask.dtype} of {custom_mask.dim()} axes")
    if custom_mask.dtype != torch.bool:
        custom_mask = custom_mask != 0
    if custom_mask.data_ptr() % WORD != 0:
        custom_mask = custom_mask.clone()
    cells, tokens = custom_mask.numel(), rows.right.shape[0]
    longest = (int(rows.length.max()) if tokens else 0) if longest is None else longest
    chunks = triton.cdiv(longest // WORD + 2, CHUNK)
    # Where one program does a whole row, it says so itself, and nothing need be zero before.
    made = torch.empty if chunks == 1 else torch.zeros
    misread = made(tokens, dtype=torch.int32, device=custom_mask.device)
    n_words = cells // WORD
    words = custom_mask[: n_words * WORD].view(torch.int64) if n_words else rows.right
    if tokens:
        _audit_kernel[(tokens, chunks)](
            words,
            _tail(custom_mask[n_words * WORD :]) if cells % WORD else words,
            custom_mask.view(torch.uint8),
            n_words,
            cells,
            rows.right,
            rows.got,
            rows.length,
            rows.seen,
            misread,
            BLOCK=BLOCK,
            CHUNK=CHUNK,
            TAIL=cells % WORD != 0,
            ONE=chunks == 1,
        )
    return misread


def _outside(rows: Rows, cells: int) -> torch.Tensor:
    """(T,) of the cells that are looked at, how many lie before the mask or behind it."""
    used = torch.minimum(rows.seen, rows.length)
    inside = (rows.got + used).clamp(0, cells) - rows.got.clamp(0, cells)
    return (used - inside).to(torch.int32)


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
