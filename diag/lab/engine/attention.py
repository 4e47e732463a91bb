"""Attention exactly where the backend's metadata points: the lab's twin of SGLang's `extend_attention_fwd`.

The addressing follows the real kernel (sglang 0.5.12, triton_ops/extend_attention.py), for request i:

    query rows      q[qo_indptr[i] : qo_indptr[i+1]], and as many rows of this step's own K and V
    prefix          pool slots kv_indices[kv_indptr[i] : kv_indptr[i+1]]
    mask of (r, c)  custom_mask[mask_indptr[i] + r * (prefix + extend) + prefix + c]     (0 <= r, c < extend)
    rows computed   at most ceil(max_extend_len / BLOCK_M) * BLOCK_M; others are never written

`extend` is qo_indptr[i+1] - qo_indptr[i]; the row stride comes from the two indptr arrays and only the start from
mask_indptr. Without a custom mask rows are causal. Metadata that is wrong is followed all the same: that is what
the kernel does, and how the text goes wrong. Reads outside the mask count as "not visible" instead of being made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

BLOCK_M = 32
"""Rows a program of the real kernel covers; a too small max_extend_len hurts only beyond a multiple of it."""


@dataclass(frozen=True)
class RequestPlan:
    """What one request of a step reads: `rows` of q/k/v, `slots` of the pool, `mask` [rows, slots + rows] bool."""

    rows: slice
    slots: torch.Tensor
    mask: torch.Tensor


def plan_extend(metadata: Any, num_rows: int) -> list[RequestPlan]:
    """Turn a `ForwardMetadata` of an extend or target-verify step into reads. num_rows: rows that q really has."""
    qo, kv = metadata.qo_indptr.tolist(), metadata.kv_indptr.tolist()
    computed = -(-int(metadata.max_extend_len) // BLOCK_M) * BLOCK_M
    plans = []
    for i in range(len(qo) - 1):
        start, stop = min(qo[i], num_rows), min(qo[i + 1], num_rows)
        extend, prefix = qo[i + 1] - qo[i], kv[i + 1] - kv[i]
        square = _visible_square(metadata, i, extend, prefix)
        present = stop - start
        rows = min(present, computed)
        mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool), square[:rows, :present]], dim=1)
        slots = metadata.kv_indices[kv[i] : kv[i + 1]]
        plans.append(RequestPlan(slice(start, start + rows), slots, mask))
    return plans


def _visible_square(metadata: Any, request: int, extend: int, prefix: int) -> torch.Tensor:
    """[extend, extend] bool: which of this step's own rows each row sees."""
    if metadata.custom_mask is None:
        return torch.ones(extend, extend, dtype=torch.bool).tril()
    flat = metadata.custom_mask
    at = torch.arange(extend)
    index = int(metadata.mask_indptr[request]) + at[:, None] * (prefix + extend) + prefix + at[None, :]
    inside = index < flat.numel()
    return flat[index.clamp(max=flat.numel() - 1)].bool() & inside


def plan_decode(metadata: Any) -> list[RequestPlan]:
    """One query row a request; its own K and V are already among the pool slots."""
    kv = metadata.kv_indptr.tolist()
    plans = []
    for i in range(len(kv) - 1):
        slots = metadata.kv_indices[kv[i] : kv[i + 1]]
        plans.append(RequestPlan(slice(i, i + 1), slots, torch.ones(1, len(slots), dtype=torch.bool)))
    return plans


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    plans: list[RequestPlan],
    *,
    own_rows: bool,
    scaling: float,
) -> None:
    """Writes `out` [T, H, D] for the rows the plans name, and no other.

    q [T, H, D]; k, v [T, Hkv, D] of this step; pools [slots, Hkv, D]; own_rows: whether this step's K and V are
    read besides the pool (extend and verify) or are in it already (decode).
    """
    for plan in plans:
        if plan.rows.start == plan.rows.stop:
            continue
        keys, values = key_pool[plan.slots], value_pool[plan.slots]
        if own_rows:
            own = slice(plan.rows.start, plan.rows.start + plan.mask.shape[1] - len(plan.slots))
            keys, values = torch.cat([keys, k[own]]), torch.cat([values, v[own]])
        out[plan.rows] = F.scaled_dot_product_attention(
            q[plan.rows].transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=plan.mask[None, None],
            scale=scaling,
            enable_gqa=True,
        )[0].transpose(0, 1)
