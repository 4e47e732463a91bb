"""One verify step of speculative decoding, as an attention kernel gets it: the values, and how to make some up.

Shapes, with T tokens in all (the draft trees of the requests, one after another), bs requests, slots of a KV pool:

    q                 (T, heads, Lq)              k, v             (T, kv_heads, Lq), (T, kv_heads, Lv)
    k_buffer          (slots, kv_heads, Lq)       v_buffer         (slots, kv_heads, Lv)
    qo_indptr         (bs + 1,)  first token of each request's tree; the last is T
    kv_indptr         (bs + 1,)  first entry of each request in kv_indices
    kv_indices        (sum of prefix lengths,)    the pool slot of each committed token
    custom_mask       flat, row after row, request after request; a row has prefix + tree cells, true = may attend
    mask_indptr       (bs + 1,)  the first cell of each request in custom_mask

Sizes are in elements, offsets too. Terms are those of SGLang's `extend_attention_fwd`, whose arguments these are.
"""

from __future__ import annotations

import math
import random
from typing import List, NamedTuple, Optional, Sequence

import torch


class VerifyStep(NamedTuple):
    """See the module. skip_prefix_custom_mask: the prefix is attended whatever the mask says of it.

    custom_mask None: causal within the tree. sliding_window_size: a key may be that many positions back; 0 or less:
    any. window_kv_offsets: (bs,) committed tokens that lie before each request's entries in kv_indices, for a mask
    that covers them. k_scale, v_scale: what stored keys and values are multiplied by (fp8 pools).
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    custom_mask: Optional[torch.Tensor]
    mask_indptr: Optional[torch.Tensor]
    max_extend_len: int
    sm_scale: float
    logit_cap: float = 0.0
    skip_prefix_custom_mask: bool = True
    sliding_window_size: int = -1
    window_kv_offsets: Optional[torch.Tensor] = None
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def bs(self) -> int:
        return self.qo_indptr.shape[0] - 1

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def out_shape(self) -> torch.Size:
        return torch.Size((self.q.shape[0], self.q.shape[1], self.v.shape[2]))

    def kv_bytes(self) -> int:
        """What must be read of the pool at least: each committed token's keys and values once, and its index."""
        tokens = int(self.kv_indices.numel())
        each = self.k_buffer[0].numel() * self.k_buffer.element_size()
        each += self.v_buffer[0].numel() * self.v_buffer.element_size()
        return tokens * (each + self.kv_indices.element_size())


class Shape(NamedTuple):
    """What a made-up step looks like. tree: chain, tree (random parents), or padded (a random tree in a wider step,
    whose last rows see only the prefix and themselves).

    telling: what the tree's tokens say is loud enough that a single wrong cell of the mask moves a row, however long
    the prefix; without it they drown in its average.
    """

    bs: int
    width: int
    prefix: int
    heads: int = 4
    kv_heads: int = 2
    Lq: int = 64
    Lv: int = 64
    dtype: str = "float16"
    kv_dtype: str = ""
    tree: str = "tree"
    ragged: bool = True
    logit_cap: float = 0.0
    skip_prefix_custom_mask: bool = True
    sliding_window_size: int = -1
    telling: bool = False

    def label(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads of {self.Lq}" + (f"/{self.Lv}" if self.Lv != self.Lq else "")
        kv = f", kv {self.kv_dtype}" if self.kv_dtype else ""
        return f"bs {self.bs}, D {self.width}, prefix {self.prefix}, {heads}, {self.dtype}{kv}, {self.tree}"


def tree_mask(width: int, tree: str, chance: random.Random) -> torch.Tensor:
    """(width, width) bool: row i may attend its ancestors and itself. Node 0 is the root."""
    own = width if tree != "padded" else max(1, width - max(1, width // 3))
    rows: List[List[bool]] = []
    for i in range(width):
        parent = -1 if i == 0 or i >= own else i - 1 if tree == "chain" else chance.randrange(i)
        row = list(rows[parent]) if parent >= 0 else [False] * width
        row[i] = True
        rows.append(row)
    return torch.tensor(rows)


def prefix_lens(shape: Shape) -> List[int]:
    """Of each request: all alike, or, ragged, each a little shorter than the one before."""
    return [max(0, shape.prefix - (3 * i if shape.ragged else 0)) for i in range(shape.bs)]


def made_up(shape: Shape, seed: int = 0, device: str = "cpu", lens: Optional[List[int]] = None) -> VerifyStep:
    """A random step of that shape: slots of the pool in random order, garbage in the slots that nobody owns.

    lens: of the prefix of each request, instead of those that the shape says.
    """
    chance = random.Random(seed)
    made = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    kv_dtype = getattr(torch, shape.kv_dtype) if shape.kv_dtype else dtype

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=made, device=device, dtype=torch.float32)

    lens = prefix_lens(shape) if lens is None else lens
    used = sum(lens)
    slots = used + 64
    order = torch.randperm(slots, generator=made, device=device)[:used]
    tokens = shape.bs * shape.width
    kv_indptr = torch.tensor([0, *_running(lens)], dtype=torch.int32, device=device)
    starts, cells = [0], []
    for length in lens:
        tree = tree_mask(shape.width, shape.tree, chance).to(device)
        before = torch.ones(shape.width, length, dtype=torch.bool, device=device)
        if not shape.skip_prefix_custom_mask:
            before = torch.rand(shape.width, length, generator=made, device=device) < 0.9
        row = torch.cat([before, tree], dim=1).reshape(-1)
        cells.append(row)
        starts.append(starts[-1] + row.numel())
    return VerifyStep(
        q=normal(tokens, shape.heads, shape.Lq).to(dtype),
        k=normal(tokens, shape.kv_heads, shape.Lq).to(dtype),
        v=(normal(tokens, shape.kv_heads, shape.Lv) * (1 + math.sqrt(max(lens)) / 2 * shape.telling)).to(dtype),
        k_buffer=normal(slots, shape.kv_heads, shape.Lq).to(kv_dtype),
        v_buffer=normal(slots, shape.kv_heads, shape.Lv).to(kv_dtype),
        qo_indptr=torch.arange(0, tokens + 1, shape.width, dtype=torch.int32, device=device),
        kv_indptr=kv_indptr,
        kv_indices=order.to(torch.int64),
        custom_mask=torch.cat(cells),
        mask_indptr=torch.tensor(starts, dtype=torch.int64, device=device),
        max_extend_len=shape.width,
        sm_scale=1.0 / math.sqrt(shape.Lq),
        logit_cap=shape.logit_cap,
        skip_prefix_custom_mask=shape.skip_prefix_custom_mask,
        sliding_window_size=shape.sliding_window_size,
        window_kv_offsets=torch.zeros(shape.bs, dtype=torch.int32, device=device)
        if shape.sliding_window_size > 0
        else None,
    )


def _running(lens: Sequence[int]) -> List[int]:
    total, out = 0, []
    for length in lens:
        total += length
        out.append(total)
    return out


def roomy(step: VerifyStep, tokens: int, cells: int, entries: int) -> VerifyStep:
    """The same step in larger memory: a kernel with wrong offsets that goes beyond an end stays inside of ours.

    tokens, cells, entries: how far it may go in q, k and v, in the mask, and in kv_indices. What lies behind the
    mask is random, behind kv_indices is slot 0.
    """
    made = torch.Generator().manual_seed(11)
    q, k, v = (_longer(x, tokens, 0.0) for x in (step.q, step.k, step.v))
    mask = step.custom_mask
    if mask is not None:
        more = torch.rand(max(0, cells - mask.numel()), generator=made) < 0.5
        mask = torch.cat([mask, more.to(mask.device)])[: mask.numel()]
    return step._replace(q=q, k=k, v=v, custom_mask=mask, kv_indices=_longer(step.kv_indices, entries, 0))


def _longer(tensor: torch.Tensor, rows: int, filled: float) -> torch.Tensor:
    """A view of its own first rows in memory of `rows` rows."""
    more = tensor.new_full((max(0, rows - tensor.shape[0]), *tensor.shape[1:]), filled)
    return torch.cat([tensor, more])[: tensor.shape[0]]
