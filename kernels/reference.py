"""Tree-verify attention in plain torch: slow, small, and what everything else is compared with.

`attend(step)` gives (T, heads, Lv). Every row of a draft tree attends the committed tokens of its request and, of
the tree, what the custom mask says. In float64 unless asked otherwise. A row that may attend nothing is zero.
"""

from __future__ import annotations

import torch

from .step import VerifyStep


def attend(step: VerifyStep, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """(T, heads, Lv) in `dtype`. Raises IndexError where an offset points outside of the mask or the pool."""
    out = torch.zeros(step.out_shape, dtype=dtype, device=step.q.device)
    qo, kv = step.qo_indptr.tolist(), step.kv_indptr.tolist()
    for i in range(step.bs):
        rows = slice(qo[i], qo[i + 1])
        out[rows] = _one(step, i, rows, slice(kv[i], kv[i + 1]), dtype)
    return out


def _one(step: VerifyStep, i: int, rows: slice, entries: slice, dtype: torch.dtype) -> torch.Tensor:
    """One request: (D, heads, Lv)."""
    slots = step.kv_indices[entries].long()
    k = torch.cat([step.k_buffer[slots].to(dtype) * step.k_scale, step.k[rows].to(dtype)])
    v = torch.cat([step.v_buffer[slots].to(dtype) * step.v_scale, step.v[rows].to(dtype)])
    q = step.q[rows].to(dtype).unflatten(1, (-1, step.group))  # query heads by the KV head that they share
    scores = torch.einsum("mkgd,nkd->kgmn", q, k) * step.sm_scale
    if step.logit_cap > 0:
        scores = step.logit_cap * torch.tanh(scores / step.logit_cap)
    allowed = visible(step, i).to(scores.device)
    scores = scores.masked_fill(~allowed, float("-inf"))
    # A row without anything to attend has no softmax: it is zero, not NaN.
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return torch.einsum("kgmn,nkd->mkgd", weights, v).flatten(1, 2)


def visible(step: VerifyStep, i: int) -> torch.Tensor:
    """(D, prefix + D) bool: what each row of request i's tree may attend."""
    width = int(step.qo_indptr[i + 1] - step.qo_indptr[i])
    prefix = int(step.kv_indptr[i + 1] - step.kv_indptr[i])
    allowed = torch.ones(width, prefix + width, dtype=torch.bool, device=step.q.device)
    if step.custom_mask is None or step.mask_indptr is None:
        allowed[:, prefix:] = torch.ones(width, width, dtype=torch.bool, device=allowed.device).tril()
    else:
        before = int(step.window_kv_offsets[i]) if step.window_kv_offsets is not None else 0
        start, stride = int(step.mask_indptr[i]), before + prefix + width
        if start < 0 or start + width * stride > step.custom_mask.numel():
            raise IndexError(
                f"request {i} reads cells {start} to {start + width * stride} of a mask of {step.custom_mask.numel()}"
            )
        cells = step.custom_mask[start : start + width * stride].view(width, stride).bool()
        allowed[:, prefix:] = cells[:, before + prefix :]
        if not step.skip_prefix_custom_mask:
            allowed[:, :prefix] = cells[:, before : before + prefix]
    if step.sliding_window_size > 0:
        # Rows of a tree stand one after another behind the prefix, as the kernels count them.
        row = torch.arange(width, device=allowed.device)[:, None] + prefix
        key = torch.arange(prefix + width, device=allowed.device)[None, :]
        allowed &= row <= key + step.sliding_window_size
    return allowed


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| over everything, in float64; infinite where got has a NaN."""
    difference = (got.double() - want.double()).norm()
    if not bool(torch.isfinite(difference)):
        return float("inf")
    return float(difference / want.double().norm().clamp_min(1e-30))
