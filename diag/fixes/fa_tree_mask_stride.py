"""FlashAttention reads the draft tree out of the flat mask with rows as long as the server setting."""

from __future__ import annotations

from functools import partial

from diag.fixes.entry import Fix
from diag.source import detect_flow

CLASS = "FlashAttentionBackend"

FIX = Fix(
    id="fa-tree-mask-stride",
    title="FlashAttention backend: the draft tree is read out of the mask with the server setting as its width",
    story=(
        "With --speculative-eagle-topk above 1 the FlashAttention backend (fa3, fa4) extracts the draft tree from "
        "`spec_info.custom_mask`: it computes which elements of the flat mask belong to which draft token, with rows "
        "and requests as wide as the server setting `speculative_num_draft_tokens`, eager and for CUDA graphs. With "
        "topk 1 it reads no mask, but its query and key lengths still come from the setting. In every release since "
        "0.4.6; 0.4.5 took the width from the verify input and read no mask. "
        "diag has no patch for it."
    ),
    why=(
        "Where the verify step is wider than the setting, the tree comes from other requests' rows and the last rows "
        "are never computed. The algorithms of the releases keep both equal; a fork with a tree budget of its own does "
        "not, and sees garbled text without any error."
    ),
    do=(
        "Keep the tree as wide as speculative_num_draft_tokens, or serve with --attention-backend triton on 0.5.17 or "
        "newer.",
        "With a linear draft (--speculative-eagle-topk 1) the mask is not read; the lengths must still be equal.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/flashattention_backend.py",
    cls=CLASS,
    affected="0.4.6 and newer",
    fixed_in="no release yet (0.5.23 has it)",
    backends=("fa3", "fa4", "flashattention"),
    severity="fault",
    detect=partial(detect_flow.detect_reads, name=CLASS),
)
