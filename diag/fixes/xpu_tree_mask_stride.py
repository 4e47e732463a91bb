"""The XPU backend reads the draft tree as the FlashAttention backend does."""

from __future__ import annotations

from functools import partial

from diag.fixes.entry import Fix
from diag.source import detect_flow

CLASS = "XPUAttentionBackend"

FIX = Fix(
    id="xpu-tree-mask-stride",
    title="XPU backend: the draft tree is read out of the mask with the server setting as its width",
    story=(
        "The backend for Intel GPUs is a copy of the FlashAttention backend: with --speculative-eagle-topk above 1 it "
        "extracts the draft tree from `spec_info.custom_mask` with rows as wide as the server setting "
        "`speculative_num_draft_tokens`. It has no CUDA-graph path. 0.5.23 takes the width from the verify input for "
        "topk 1, and not for trees. "
        "diag has no patch for it."
    ),
    why="As with fa-tree-mask-stride: a tree that is not as wide as the setting garbles the text without any error.",
    do=("Keep the tree as wide as speculative_num_draft_tokens.",),
    package="sglang",
    file="sglang/srt/layers/attention/xpu_backend.py",
    cls=CLASS,
    affected="0.5.4.post3 and newer",
    fixed_in="no release yet (0.5.23 has it)",
    backends=("intel_xpu", "xpu"),
    severity="fault",
    detect=partial(detect_flow.detect_reads, name=CLASS),
)
