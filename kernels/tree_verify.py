"""Tree-verify attention as a Triton kernel worth running: the KV cache is read once.

`attend(step)` gives what `reference.attend` gives, in the dtype of q. Needs torch and triton; on a CPU it runs in
Triton's interpreter (TRITON_INTERPRET=1).

How it goes. One program takes one request, one KV head and one stretch of the prefix, and all that looks at it: every
query head of the KV group and every row of the draft tree, as one tile of (rows * group) queries. So a key or value
is loaded once, not once for each query head. Short batches have too few such programs to fill a GPU, so the prefix is
split over several; each leaves its softmax-weighted mean and the logarithm of its weight, and a second kernel combines
them. Where nothing is split the first kernel writes the result itself.

The tree itself (k, v, custom_mask) is a stretch of its own where the prefix is split. Cells of the mask are read only
inside of it: an offset that points elsewhere is counted in `Attended.stray_cells`; its cell is "may not attend".
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import torch
import triton
import triton.language as tl

from .step import VerifyStep

LOG2_E = 1.4426950408889634


class Plan(NamedTuple):
    """How the work is cut. block_m: queries a program, and block_x more in a second, smaller tile, so that 68 queries
    (17 rows of 4 heads) do not cost as much as 128; block_n: keys at a time; splits: 1, or how many stretches, that of
    the tree counted."""

    block_m: int
    block_n: int
    splits: int
    num_warps: int
    num_stages: int
    block_x: int = 0


class Attended(NamedTuple):
    """out: (T, heads, Lv). stray_cells: (bs,) cells of the mask that would have been read outside of it."""

    out: torch.Tensor
    stray_cells: torch.Tensor


@triton.jit
def _allowed(Mask, start, cells, node, stride, column, wanted, Stray, report):
    """The mask's cells at start + node * stride + column, false where `wanted` is. Strays are never read, and counted
    in the rows that `report` names: those of one head, which read what the others do."""
    offsets = start + node[:, None].to(tl.int64) * stride + column[None, :]
    inside = (offsets >= 0) & (offsets < cells)
    value = tl.load(Mask + offsets, mask=wanted & inside, other=0)
    strays = tl.sum(tl.sum((wanted & (inside == 0) & report[:, None]).to(tl.int32), axis=1), axis=0)
    if strays > 0:
        tl.atomic_add(Stray, strays)
    return wanted & inside & (value != 0)


@triton.jit
def _scores(q, q_pe, k, k_pe, scale, LOGIT_CAP: tl.constexpr, HAS_PE: tl.constexpr):
    """Scores times log2(e), for exp2."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if HAS_PE:
        s += tl.dot(q_pe, tl.trans(k_pe), input_precision="ieee")
    s *= scale
    if LOGIT_CAP > 0:
        # tanh by the logistic function, which both the compiler and the interpreter have
        s = LOGIT_CAP * (2 * tl.sigmoid(2 * s / LOGIT_CAP) - 1)
    return s * 1.4426950408889634


@triton.jit
def _softer(s, v, m, norm, acc):
    """Online softmax: maximum, sum of weights and weighted sum of values after these scores."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    # Rows that have seen nothing yet stay at minus infinity, and must not turn into NaN.
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s - safe[:, None])
    rescale = tl.exp2(m - safe)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
    return m_new, norm * rescale + tl.sum(p, axis=1), acc


@triton.jit
def _start(BLOCK: tl.constexpr, BLOCK_DV: tl.constexpr):
    m = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    return m, tl.zeros([BLOCK], dtype=tl.float32), tl.zeros([BLOCK, BLOCK_DV], dtype=tl.float32)


@triton.jit
def _queries(
    Q, first, width, row, kv_head, stride_qt, stride_qh,
    GROUP: tl.constexpr, LQ: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_PE: tl.constexpr,
):  # fmt: skip
    """node, head and validity of each row of the tile, and its queries, the second part of the head apart."""
    node = row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = node < width
    d = tl.arange(0, BLOCK_D)
    at = (first + node)[:, None].to(tl.int64) * stride_qt + head[:, None] * stride_qh
    q = tl.load(Q + at + d[None, :], mask=is_row[:, None] & (d < LQ)[None, :], other=0.0)
    q_pe = q
    if BLOCK_PE > 0:
        q_pe = tl.load(Q + at + (BLOCK_D + tl.arange(0, BLOCK_PE))[None, :], mask=is_row[:, None], other=0.0)
    return node, head, is_row, q, q_pe


@triton.jit
def _leave(
    m, norm, acc, first, node, head, is_row, split, rows, Out, Part, Weight, stride_ot, stride_oh,
    HEADS: tl.constexpr, LV: tl.constexpr, BLOCK_DV: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The mean, and, where others have a share in the row, the logarithm of its weight."""
    dv = tl.arange(0, BLOCK_DV)
    mean = acc / tl.where(norm > 0, norm, 1.0)[:, None]
    wanted = is_row[:, None] & (dv < LV)[None, :]
    if SPLIT:
        at_p = split.to(tl.int64) * rows + (first + node) * HEADS + head
        tl.store(Part + at_p[:, None] * LV + dv[None, :], mean, mask=wanted)
        tl.store(
            Weight + at_p, tl.where(norm > 0, m + tl.log2(tl.where(norm > 0, norm, 1.0)), float("-inf")), mask=is_row
        )
    else:
        at_o = (first + node)[:, None].to(tl.int64) * stride_ot + head[:, None] * stride_oh
        tl.store(Out + at_o + dv[None, :], mean.to(Out.dtype.element_ty), mask=wanted)


@triton.jit
def _verify_kernel(
    Q, K, V, K_Buffer, V_Buffer, Out, Part, Weight, Mask, Stray,
    qo_indptr, kv_indptr, kv_indices, mask_indptr, window_kv_offsets,
    scale, k_scale, v_scale, mask_cells, row_blocks, rows, splits,
    stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh,
    stride_kbt, stride_kbh, stride_vbt, stride_vbh, stride_ot, stride_oh,
    HEADS: tl.constexpr, GROUP: tl.constexpr, LQ: tl.constexpr, LV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_PE: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
    SPLIT: tl.constexpr, STAGES: tl.constexpr,
    LOGIT_CAP: tl.constexpr, HAS_MASK: tl.constexpr, PREFIX_MASK: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    WINDOW: tl.constexpr, SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # Heads of one stretch run side by side: what they read lies side by side.
    kv_head = tl.program_id(0) // row_blocks
    row_block = tl.program_id(0) % row_blocks
    split = tl.program_id(1)
    request = tl.program_id(2)

    first = tl.load(qo_indptr + request)
    width = tl.load(qo_indptr + request + 1) - first
    entry = tl.load(kv_indptr + request)
    prefix = tl.load(kv_indptr + request + 1) - entry
    row = row_block * (BLOCK_M + BLOCK_X) + tl.arange(0, BLOCK_M)
    node, head, is_row, q, q_pe = _queries(
        Q, first, width, row, kv_head, stride_qt, stride_qh, GROUP, LQ, BLOCK_D, BLOCK_PE
    )
    m, norm, acc = _start(BLOCK_M, BLOCK_DV)
    if BLOCK_X > 0:
        row_x = row_block * (BLOCK_M + BLOCK_X) + BLOCK_M + tl.arange(0, BLOCK_X)
        node_x, head_x, is_row_x, q_x, q_pe_x = _queries(
            Q, first, width, row_x, kv_head, stride_qt, stride_qh, GROUP, LQ, BLOCK_D, BLOCK_PE
        )
        m_x, norm_x, acc_x = _start(BLOCK_X, BLOCK_DV)
        report_x = (kv_head == 0) & (row_x % GROUP == 0)

    start = tl.zeros([], dtype=tl.int64)
    before = 0
    if HAS_MASK:
        start = tl.load(mask_indptr + request).to(tl.int64)
        if HAS_OFFSETS:
            before = tl.load(window_kv_offsets + request)
    stride = (before + prefix + width).to(tl.int64)
    report = (kv_head == 0) & (row % GROUP == 0)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    is_d = d < LQ
    is_dv = dv < LV
    pe = d
    if BLOCK_PE > 0:
        pe = BLOCK_D + tl.arange(0, BLOCK_PE)

    # Where the prefix is split, the tree is a stretch of its own, the first: it takes as long as a short one.
    if SPLIT:
        stretch = tl.cdiv(tl.cdiv(prefix, splits - 1), BLOCK_N) * BLOCK_N
        low = tl.maximum(split - 1, 0) * stretch
        stretch = tl.where(split == 0, 0, stretch)
    else:
        stretch = prefix
        low = 0
    high = tl.minimum(low + stretch, prefix)
    n = tl.arange(0, BLOCK_N)
    for at in tl.range(low, high, BLOCK_N, num_stages=STAGES):
        column = at + n
        is_key = column < high
        slot = tl.load(kv_indices + entry + column, mask=is_key, other=0).to(tl.int64)
        at_k = slot[:, None] * stride_kbt + kv_head * stride_kbh
        k = tl.load(K_Buffer + at_k + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0).to(q.dtype)
        k_pe = k
        if BLOCK_PE > 0:
            k_pe = tl.load(K_Buffer + at_k + pe[None, :], mask=is_key[:, None], other=0.0).to(q.dtype)
        at_v = slot[:, None] * stride_vbt + kv_head * stride_vbh
        v = tl.load(V_Buffer + at_v + dv[None, :], mask=is_key[:, None] & is_dv[None, :], other=0.0).to(q.dtype)
        s = _scores(q, q_pe, k, k_pe, scale * k_scale, LOGIT_CAP, BLOCK_PE > 0)
        seen = is_key[None, :] & (node >= 0)[:, None]
        if WINDOW > 0:
            seen &= (prefix + node)[:, None] <= column[None, :] + WINDOW
        if PREFIX_MASK:
            seen = _allowed(
                Mask, start + before, mask_cells, node, stride, column, seen & is_row[:, None], Stray + request, report
            )
        m, norm, acc = _softer(tl.where(seen, s, float("-inf")), v, m, norm, acc)
        if BLOCK_X > 0:
            s_x = _scores(q_x, q_pe_x, k, k_pe, scale * k_scale, LOGIT_CAP, BLOCK_PE > 0)
            seen_x = is_key[None, :] & (node_x >= 0)[:, None]
            if WINDOW > 0:
                seen_x &= (prefix + node_x)[:, None] <= column[None, :] + WINDOW
            if PREFIX_MASK:
                seen_x = _allowed(
                    Mask, start + before, mask_cells, node_x, stride, column, seen_x & is_row_x[:, None],
                    Stray + request, report_x,
                )  # fmt: skip
            m_x, norm_x, acc_x = _softer(tl.where(seen_x, s_x, float("-inf")), v, m_x, norm_x, acc_x)
    if SCALED:
        acc *= v_scale
        if BLOCK_X > 0:
            acc_x *= v_scale

    if split == 0:
        column = tl.arange(0, BLOCK_E)
        is_key = column < width
        at_k = (first + column)[:, None].to(tl.int64) * stride_kt + kv_head * stride_kh
        k = tl.load(K + at_k + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0)
        k_pe = k
        if BLOCK_PE > 0:
            k_pe = tl.load(K + at_k + pe[None, :], mask=is_key[:, None], other=0.0)
        at_v = (first + column)[:, None].to(tl.int64) * stride_vt + kv_head * stride_vh
        v = tl.load(V + at_v + dv[None, :], mask=is_key[:, None] & is_dv[None, :], other=0.0)
        at_mask = start + before + prefix
        s = _scores(q, q_pe, k, k_pe, scale, LOGIT_CAP, BLOCK_PE > 0)
        seen = is_row[:, None] & is_key[None, :]
        if WINDOW > 0:
            seen &= node[:, None] <= column[None, :] + WINDOW
        if HAS_MASK:
            seen = _allowed(Mask, at_mask, mask_cells, node, stride, column, seen, Stray + request, report)
        else:
            seen &= column[None, :] <= node[:, None]
        m, norm, acc = _softer(tl.where(seen, s, float("-inf")), v, m, norm, acc)
        if BLOCK_X > 0:
            s_x = _scores(q_x, q_pe_x, k, k_pe, scale, LOGIT_CAP, BLOCK_PE > 0)
            seen_x = is_row_x[:, None] & is_key[None, :]
            if WINDOW > 0:
                seen_x &= node_x[:, None] <= column[None, :] + WINDOW
            if HAS_MASK:
                seen_x = _allowed(Mask, at_mask, mask_cells, node_x, stride, column, seen_x, Stray + request, report_x)
            else:
                seen_x &= column[None, :] <= node_x[:, None]
            m_x, norm_x, acc_x = _softer(tl.where(seen_x, s_x, float("-inf")), v, m_x, norm_x, acc_x)

    if EARLY:
        # The kernel that combines may be made ready while the last programs of this one end.
        tl.extra.cuda.gdc_launch_dependents()
    _leave(
        m, norm, acc, first, node, head, is_row, split, rows, Out, Part, Weight, stride_ot, stride_oh,
        HEADS, LV, BLOCK_DV, SPLIT,
    )  # fmt: skip
    if BLOCK_X > 0:
        _leave(
            m_x, norm_x, acc_x, first, node_x, head_x, is_row_x, split, rows, Out, Part, Weight, stride_ot, stride_oh,
            HEADS, LV, BLOCK_DV, SPLIT,
        )  # fmt: skip


@triton.jit
def _combine_kernel(
    Part, Weight, Out, rows, splits, stride_ot, stride_oh,
    HEADS: tl.constexpr, LV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_S: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row (token, head): the weighted mean of the means of its stretches."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    dv = tl.arange(0, BLOCK_DV)
    is_split = s < splits
    weight = tl.load(Weight + s * rows + row, mask=is_split, other=float("-inf"))
    most = tl.max(weight, axis=0)
    share = tl.exp2(weight - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(share, axis=0)
    mean = tl.load(
        Part + (s[:, None] * rows + row) * LV + dv[None, :], mask=is_split[:, None] & (dv < LV)[None, :], other=0.0
    )
    out = tl.sum(mean * share[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    at = row // HEADS * stride_ot + row % HEADS * stride_oh
    tl.store(Out + at + dv, out.to(Out.dtype.element_ty), mask=dv < LV)


def attend(
    step: VerifyStep,
    out: Optional[torch.Tensor] = None,
    plan: Optional[Plan] = None,
    stray: Optional[torch.Tensor] = None,
) -> Attended:
    """Fills `out` (made if not given), a row for each token of each tree. Nothing waits for the device.

    stray: (bs,) int32 that stray cells are added to, for who asks again and again; a new one if not given.
    Raises ValueError for shapes that do not fit together.
    """
    _check(step)
    if step.q.dtype == torch.bfloat16 and step.q.device.type == "cpu":
        return _in_float32(step, out, plan, stray)
    plan = plan or planned(step)
    out = torch.empty(step.out_shape, dtype=step.q.dtype, device=step.q.device) if out is None else out
    stray = torch.zeros(step.bs, dtype=torch.int32, device=step.q.device) if stray is None else stray
    tokens, heads, Lq = step.q.shape
    Lv, kv_heads = step.v.shape[2], step.k.shape[1]
    block_d, block_pe = _key_blocks(Lq)
    block_dv = max(16, triton.next_power_of_2(Lv))
    part, weight = out, out  # not touched where nothing is split
    if plan.splits > 1:
        part = torch.empty(plan.splits, tokens, heads, Lv, dtype=torch.float32, device=out.device)
        weight = torch.empty(plan.splits, tokens, heads, dtype=torch.float32, device=out.device)
    mask = step.custom_mask
    cells = step.q.new_empty(0, dtype=torch.uint8) if mask is None else mask.view(torch.uint8)
    row_blocks = triton.cdiv(step.max_extend_len * step.group, plan.block_m + plan.block_x)
    unused = step.qo_indptr
    early = {"launch_pdl": True} if _launches_early(out) else {}
    _verify_kernel[(kv_heads * row_blocks, plan.splits, step.bs)](
        step.q, step.k, step.v, step.k_buffer, step.v_buffer, out, part, weight, cells, stray,
        step.qo_indptr, step.kv_indptr, step.kv_indices,
        unused if step.mask_indptr is None else step.mask_indptr,
        unused if step.window_kv_offsets is None else step.window_kv_offsets,
        step.sm_scale, step.k_scale, step.v_scale, cells.numel(), row_blocks, tokens * heads, plan.splits,
        step.q.stride(0), step.q.stride(1), step.k.stride(0), step.k.stride(1), step.v.stride(0), step.v.stride(1),
        step.k_buffer.stride(0), step.k_buffer.stride(1), step.v_buffer.stride(0), step.v_buffer.stride(1),
        out.stride(0), out.stride(1),
        HEADS=heads, GROUP=step.group, LQ=Lq, LV=Lv,
        BLOCK_D=block_d, BLOCK_PE=block_pe, BLOCK_DV=block_dv,
        BLOCK_M=plan.block_m, BLOCK_X=plan.block_x, BLOCK_N=plan.block_n, SPLIT=plan.splits > 1, STAGES=plan.num_stages,
        BLOCK_E=max(16, triton.next_power_of_2(step.max_extend_len)),
        LOGIT_CAP=step.logit_cap, HAS_MASK=mask is not None,
        PREFIX_MASK=mask is not None and not step.skip_prefix_custom_mask,
        HAS_OFFSETS=step.window_kv_offsets is not None,
        WINDOW=step.sliding_window_size, SCALED=step.v_scale != 1.0, EARLY=bool(early) and plan.splits > 1,
        num_warps=plan.num_warps,
    )  # fmt: skip
    if plan.splits > 1:
        _combine_kernel[(tokens * heads,)](
            part, weight, out, tokens * heads, plan.splits, out.stride(0), out.stride(1),
            HEADS=heads, LV=Lv, BLOCK_DV=block_dv, BLOCK_S=triton.next_power_of_2(plan.splits), EARLY=bool(early),
            num_warps=4 if block_dv >= 256 else 2, **early,
        )  # fmt: skip
    return Attended(out, stray)


def _in_float32(
    step: VerifyStep, out: Optional[torch.Tensor], plan: Optional[Plan], stray: Optional[torch.Tensor]
) -> Attended:
    """The interpreter holds bfloat16 as whole numbers, and multiplies them as such."""
    names = [name for name in ("q", "k", "v", "k_buffer", "v_buffer") if getattr(step, name).dtype == torch.bfloat16]
    done = attend(step._replace(**{name: getattr(step, name).float() for name in names}), None, plan, stray)
    rounded = done.out.to(step.q.dtype)
    return Attended(rounded if out is None else out.copy_(rounded), done.stray_cells)


SHARED_BYTES = 180 << 10
"""Of shared memory, for keys and values on their way: what Hopper has, less what else a program needs."""


def planned(step: VerifyStep) -> Plan:
    """The cut that is used unless another one is given: found by measurement on an H200 (docs/measured.md)."""
    rows = step.max_extend_len * step.group
    head = triton.next_power_of_2(step.q.shape[2]) + triton.next_power_of_2(step.v.shape[2])
    block_m, block_x = tiles(rows, 32 if head > 512 else 128)
    block_n = 32 if head > 512 else 128 if block_m <= 32 else 64
    stages = min(5 if block_n == 64 else 3, max(1, SHARED_BYTES // (block_n * head * step.q.element_size())))
    programs = step.bs * step.k.shape[1] * triton.cdiv(rows, block_m + block_x)
    longest = triton.cdiv(int(step.kv_indices.numel()), step.bs)
    splits = splits_for(programs, longest, block_n, _processors(step.q))
    return Plan(block_m, block_n, splits, 8 if block_m >= 128 or head > 512 else 4, stages, block_x)


def tiles(rows: int, most: int) -> Tuple[int, int]:
    """(block_m, block_x): the smallest power of two that holds the rows, or one and a small one beside it."""
    whole = min(max(16, triton.next_power_of_2(rows)), most)
    for beside in (16, 32):
        if whole // 2 >= 64 and whole // 2 < rows <= whole // 2 + beside:
            return whole // 2, beside
        if whole == most and 64 <= whole < rows <= whole + beside:
            return whole, beside
    return whole, 0


def splits_for(programs: int, prefix: int, block_n: int, processors: int) -> int:
    """1, or the tree's stretch and at least two of the prefix: two programs on each processor, as far as there are
    blocks of keys."""
    wanted = min((2 * processors) // max(1, programs), prefix // block_n, 64)
    return wanted + 1 if wanted >= 2 else 1


def _launches_early(tensor: torch.Tensor) -> bool:
    """Whether a kernel may be made ready while the one before it ends: from Hopper on."""
    return tensor.device.type == "cuda" and torch.cuda.get_device_capability(tensor.device)[0] >= 9


def _processors(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def _key_blocks(Lq: int) -> Tuple[int, int]:
    """(BLOCK_D, BLOCK_PE): a head size that is not a power of two, cut into two where that wastes less."""
    whole = max(16, triton.next_power_of_2(Lq))
    half = whole // 2
    rest = Lq - half
    if half >= 16 and 16 <= rest < half and rest & (rest - 1) == 0:
        return half, rest
    return whole, 0


def _check(step: VerifyStep) -> None:
    tokens, heads, Lq = step.q.shape
    if step.k.shape[0] != tokens or step.v.shape[0] != tokens:
        raise ValueError(f"q has {tokens} tokens, k {step.k.shape[0]}, v {step.v.shape[0]}")
    if heads % step.k.shape[1] != 0:
        raise ValueError(f"{heads} query heads cannot share {step.k.shape[1]} KV heads evenly")
    if step.k.shape[2] != Lq or step.k_buffer.shape[2] != Lq or step.v_buffer.shape[2] != step.v.shape[2]:
        raise ValueError("head sizes of q, k and the pool differ")
    if any(x.stride(-1) != 1 for x in (step.q, step.k, step.v, step.k_buffer, step.v_buffer)):
        raise ValueError("the last dimension of q, k, v and the pool must be dense")
    if step.custom_mask is not None and step.custom_mask.element_size() != 1:
        raise ValueError(f"a cell of the mask is one byte, not {step.custom_mask.dtype}")
