"""The buffer that holds the tree mask under CUDA graphs is made for the server setting."""

from __future__ import annotations

from functools import partial

from diag.fixes.entry import Fix
from diag.source import detect_flow
from diag.source.verify_width import CLASS

FIX = Fix(
    id="graph-mask-buffer-size",
    title="Triton backend: the tree-mask buffer of the CUDA-graph path is sized by the server setting",
    story=(
        "Under CUDA graphs the mask of a verify step is copied into a buffer that is made once. A verify step of width "
        "D needs D × (length + D) elements a request. Up to 0.4.7.post1 the buffer has one row a request; from 0.4.8 "
        "it has the rows of the captured graph, which is as wide as `speculative_num_draft_tokens`; from 0.5.17 it is "
        "made by `maybe_create_verify_mask` with that setting. mask-indptr was mended in 0.5.17, this was not. "
        "diag has no patch for it."
    ),
    why=(
        "A wider tree at full batch and long context does not fit: the copy fails with an error of shape, or, where a "
        "fork made the graph wider and not the buffer, requests share its end. It cannot be met while the verify step "
        "is as wide as the setting, nor without CUDA graphs."
    ),
    do=(
        "Serve wider trees with --disable-cuda-graph, or set speculative_num_draft_tokens to the widest verify step "
        "where the draft model allows it.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/triton_backend.py",
    cls=CLASS,
    affected="0.4.3 and newer",
    fixed_in="no release yet (0.5.23 has it)",
    backends=("triton",),
    severity="notice",
    detect=partial(detect_flow.detect_buffer, name=CLASS),
    graphs_only=True,
)
