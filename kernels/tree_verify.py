"""Tree-verify attention as a Triton kernel worth running: the KV cache is read once.

`attend(step)` gives what `reference.attend` gives, in the dtype of q. Needs torch and triton; on a CPU it runs in
Triton's interpreter (TRITON_INTERPRET=1).

How it goes. One program takes one request, one KV head and one stretch of the prefix, and all that looks at it: every
query head of the KV group and every row of the draft tree, as one tile of (rows * group) queries. So a key or value
is loaded once, not once for each query head. Short batches have too few such programs to fill a GPU, so the prefix is
split over several; each leaves its softmax-weighted mean and the logarithm of its weight, and a second kernel combines
them. Where nothing is split the first kernel writes the result itself.

The tree itself (k, v, custom_mask) is done by the program of the last stretch. Cells of the mask are read only inside of
it: an offset that points elsewhere is counted in `Attended.stray_cells`, and its cell counts as "may not attend".
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl

from .step import VerifyStep

LOG2_E = 1.4426950408889634


class Plan(NamedTuple):
    """How the work is cut. block_m: queries a program; block_n: keys at a time; splits: stretches of the prefix."""

    block_m: int
    block_n: int
    splits: int
    num_warps: int
    num_stages: int


class Attended(NamedTuple):
    """out: (T, heads, Lv). stray_cells: (bs,) cells of the mask that would have been read outside of it."""

    out: torch.Tensor
    stray_cells: torch.Tensor


@triton.jit
def _allowed(Mask, start, cells, node, stride, column, wanted, Stray, report):
    """The mask's cells at start + node * stride + column, false where `wanted` is; strays counted, never read."""
    offsets = start + node[:, None].to(tl.int64) * stride + column[None, :]
    inside = (offsets >= 0) & (offsets < cells)
    value = tl.load(Mask + offsets, mask=wanted & inside, other=0)
    strays = tl.sum(tl.sum((wanted & (inside == 0)).to(tl.int32), axis=1), axis=0)
    if (strays > 0) & report:
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
def _softer(s, m, norm, acc):
    """Online softmax: the new maximum, weights of these scores, and what went before, rescaled."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    # Rows that have seen nothing yet stay at minus infinity, and must not turn into NaN.
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s - safe[:, None])
    rescale = tl.exp2(m - safe)
    return m_new, norm * rescale + tl.sum(p, axis=1), acc * rescale[:, None], p


@triton.jit
def _verify_kernel(
    Q, K, V, K_Buffer, V_Buffer, Out, Part, Weight, Mask, Stray,
    qo_indptr, kv_indptr, kv_indices, mask_indptr, window_kv_offsets,
    scale, k_scale, v_scale, mask_cells, row_blocks, tokens,
    stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh,
    stride_kbt, stride_kbh, stride_vbt, stride_vbh, stride_ot, stride_oh,
    HEADS: tl.constexpr, GROUP: tl.constexpr, LQ: tl.constexpr, LV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_PE: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, SPLITS: tl.constexpr,
    LOGIT_CAP: tl.constexpr, HAS_MASK: tl.constexpr, PREFIX_MASK: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    WINDOW: tl.constexpr, SCALED: tl.constexpr,
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
    if row_block * BLOCK_M >= width * GROUP:
        return

    row = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    node = row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = node < width
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    is_d = d < LQ
    is_dv = dv < LV
    at_q = (first + node)[:, None].to(tl.int64) * stride_qt + head[:, None] * stride_qh
    q = tl.load(Q + at_q + d[None, :], mask=is_row[:, None] & is_d[None, :], other=0.0)
    q_pe = q
    pe = d
    if BLOCK_PE > 0:
        pe = BLOCK_D + tl.arange(0, BLOCK_PE)
        q_pe = tl.load(Q + at_q + pe[None, :], mask=is_row[:, None], other=0.0)

    start = tl.zeros([], dtype=tl.int64)
    before = 0
    if HAS_MASK:
        start = tl.load(mask_indptr + request).to(tl.int64)
        if HAS_OFFSETS:
            before = tl.load(window_kv_offsets + request)
    stride = (before + prefix + width).to(tl.int64)

    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], dtype=tl.float32)

    stretch = tl.cdiv(tl.cdiv(prefix, SPLITS), BLOCK_N) * BLOCK_N
    low = split * stretch
    high = tl.minimum(low + stretch, prefix)
    n = tl.arange(0, BLOCK_N)
    for at in range(low, high, BLOCK_N):
        column = at + n
        is_key = column < high
        slot = tl.load(kv_indices + entry + column, mask=is_key, other=0).to(tl.int64)
        at_k = slot[:, None] * stride_kbt + kv_head * stride_kbh
        k = tl.load(K_Buffer + at_k + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0).to(q.dtype)
        k_pe = k
        if BLOCK_PE > 0:
            k_pe = tl.load(K_Buffer + at_k + pe[None, :], mask=is_key[:, None], other=0.0).to(q.dtype)
        s = _scores(q, q_pe, k, k_pe, scale * k_scale, LOGIT_CAP, BLOCK_PE > 0)
        if PREFIX_MASK or WINDOW > 0:
            seen = is_row[:, None] & is_key[None, :]
            if WINDOW > 0:
                seen &= (prefix + node)[:, None] <= column[None, :] + WINDOW
            if PREFIX_MASK:
                seen = _allowed(
                    Mask, start + before, mask_cells, node, stride, column, seen, Stray + request, kv_head == 0
                )
            s = tl.where(seen, s, float("-inf"))
        else:
            s = tl.where(is_key[None, :], s, float("-inf"))
        m, norm, acc, p = _softer(s, m, norm, acc)
        at_v = slot[:, None] * stride_vbt + kv_head * stride_vbh
        v = tl.load(V_Buffer + at_v + dv[None, :], mask=is_key[:, None] & is_dv[None, :], other=0.0).to(q.dtype)
        acc = tl.dot(p.to(q.dtype), v, acc, input_precision="ieee")
    if SCALED:
        acc *= v_scale

    if split == SPLITS - 1:
        column = tl.arange(0, BLOCK_E)
        is_key = column < width
        seen = is_row[:, None] & is_key[None, :]
        if WINDOW > 0:
            seen &= node[:, None] <= column[None, :] + WINDOW
        if HAS_MASK:
            seen = _allowed(
                Mask, start + before + prefix, mask_cells, node, stride, column, seen, Stray + request, kv_head == 0
            )
        else:
            seen &= column[None, :] <= node[:, None]
        at_k = (first + column)[:, None].to(tl.int64) * stride_kt + kv_head * stride_kh
        k = tl.load(K + at_k + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0)
        k_pe = k
        if BLOCK_PE > 0:
            k_pe = tl.load(K + at_k + pe[None, :], mask=is_key[:, None], other=0.0)
        s = _scores(q, q_pe, k, k_pe, scale, LOGIT_CAP, BLOCK_PE > 0)
        s = tl.where(seen, s, float("-inf"))
        m, norm, acc, p = _softer(s, m, norm, acc)
        at_v = (first + column)[:, None].to(tl.int64) * stride_vt + kv_head * stride_vh
        v = tl.load(V + at_v + dv[None, :], mask=is_key[:, None] & is_dv[None, :], other=0.0)
        acc = tl.dot(p.to(q.dtype), v, acc, input_precision="ieee")

    mean = acc / tl.where(norm > 0, norm, 1.0)[:, None]
    wanted = is_row[:, None] & is_dv[None, :]
    if SPLITS == 1:
        at_o = (first + node)[:, None].to(tl.int64) * stride_ot + head[:, None] * stride_oh
        tl.store(Out + at_o + dv[None, :], mean.to(Out.dtype.element_ty), mask=wanted)
    else:
        at_p = (split.to(tl.int64) * tokens + first + node) * HEADS + head
        tl.store(Part + at_p[:, None] * LV + dv[None, :], mean, mask=wanted)
        tl.store(Weight + at_p, tl.where(norm > 0, m + tl.log2(norm), float("-inf")), mask=is_row)


@triton.jit
def _combine_kernel(
    Part, Weight, Out, rows, stride_ot, stride_oh,
    HEADS: tl.constexpr, LV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_S: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row (token, head): the weighted mean of the means of its stretches."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    dv = tl.arange(0, BLOCK_DV)
    is_split = s < SPLITS
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


def attend(step: VerifyStep, out: Optional[torch.Tensor] = None, plan: Optional[Plan] = None) -> Attended:
    """Fills `out` (made if not given), a row for each token of each tree. Nothing waits for the device.

    Raises ValueError for shapes that do not fit together.
    """
    _check(step)
    if step.q.dtype == torch.bfloat16 and step.q.device.type == "cpu":
        return _in_float32(step, out, plan)
    plan = plan or planned(step)
    out = torch.empty(step.out_shape, dtype=step.q.dtype, device=step.q.device) if out is None else out
    stray = torch.zeros(step.bs, dtype=torch.int32, device=step.q.device)
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
    row_blocks = triton.cdiv(step.max_extend_len * step.group, plan.block_m)
    unused = step.qo_indptr
    _verify_kernel[(kv_heads * row_blocks, plan.splits, step.bs)](
        step.q, step.k, step.v, step.k_buffer, step.v_buffer, out, part, weight, cells, stray,
        step.qo_indptr, step.kv_indptr, step.kv_indices,
        unused if step.mask_indptr is None else step.mask_indptr,
        unused if step.window_kv_offsets is None else step.window_kv_offsets,
        step.sm_scale, step.k_scale, step.v_scale, cells.numel(), row_blocks, tokens,
        step.q.stride(0), step.q.stride(1), step.k.stride(0), step.k.stride(1), step.v.stride(0), step.v.stride(1),
        step.k_buffer.stride(0), step.k_buffer.stride(1), step.v_buffer.stride(0), step.v_buffer.stride(1),
        out.stride(0), out.stride(1),
        HEADS=heads, GROUP=step.group, LQ=Lq, LV=Lv,
        BLOCK_D=block_d, BLOCK_PE=block_pe, BLOCK_DV=block_dv,
        BLOCK_M=plan.block_m, BLOCK_N=plan.block_n, SPLITS=plan.splits,
        BLOCK_E=max(16, triton.next_power_of_2(step.max_extend_len)),
        LOGIT_CAP=step.logit_cap, HAS_MASK=mask is not None,
        PREFIX_MASK=mask is not None and not step.skip_prefix_custom_mask,
        HAS_OFFSETS=step.window_kv_offsets is not None,
        WINDOW=step.sliding_window_size, SCALED=step.v_scale != 1.0,
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
    if plan.splits > 1:
        _combine_kernel[(tokens * heads,)](
            part, weight, out, tokens * heads, out.stride(0), out.stride(1),
            HEADS=heads, LV=Lv, BLOCK_DV=block_dv, BLOCK_S=triton.next_power_of_2(plan.splits), SPLITS=plan.splits,
            num_warps=4 if block_dv >= 256 else 2,
        )  # fmt: skip
    return Attended(out, stray)


def _in_float32(step: VerifyStep, out: Optional[torch.Tensor], plan: Optional[Plan]) -> Attended:
    """The interpreter holds bfloat16 as whole numbers, and multiplies them as such."""
    names = [name for name in ("q", "k", "v", "k_buffer", "v_buffer") if getattr(step, name).dtype == torch.bfloat16]
    done = attend(step._replace(**{name: getattr(step, name).float() for name in names}), None, plan)
    rounded = done.out.to(step.q.dtype)
    return Attended(rounded if out is None else out.copy_(rounded), done.stray_cells)


def planned(step: VerifyStep) -> Plan:
    """The cut that is used unless another one is given: found by measurement on an H200 (docs/measured.md)."""
    rows = step.max_extend_len * step.group
    Lv = step.v.shape[2]
    wide = step.q.shape[2] > 256 or Lv > 256
    block_m = min(max(16, triton.next_power_of_2(rows)), 32 if wide else 128)
    block_n = 32 if wide else 64
    programs = step.bs * step.k.shape[1] * triton.cdiv(rows, block_m)
    longest = triton.cdiv(int(step.kv_indices.numel()), step.bs)
    splits = splits_for(programs, longest, block_n, _processors(step.q))
    return Plan(block_m, block_n, splits, 8 if block_m >= 128 or wide else 4, 2 if wide else 3)


def splits_for(programs: int, prefix: int, block_n: int, processors: int) -> int:
    """How many stretches: enough programs for two on each processor, none shorter than four blocks of keys."""
    wanted = max(1, (2 * processors) // max(1, programs))
    return max(1, min(wanted, 64, prefix // (4 * block_n)))


def _processors(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def _key_blocks(Lq: int) -> "tuple[int, int]":
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
