"""The fault `mask-indptr` in the CUDA-graph path of the aiter backend; its eager path is right."""

from __future__ import annotations

from functools import partial

from diag.fixes.entry import Fix
from diag.source import detect_flow

CLASS = "AiterAttnBackend"

FIX = Fix(
    id="mask-indptr-aiter-graph",
    title="Aiter backend: tree-mask offsets of the CUDA-graph path from the server setting",
    story=(
        "The aiter backend (AMD GPUs) has tree-mask offsets of its own since 0.5.10. Its eager path takes the width "
        "from the verify input. Its CUDA-graph path sets `max_q_len` to the server setting "
        "`speculative_num_draft_tokens` and computes the mask offsets from that, up to 0.5.16; 0.5.17 derives the "
        "width from the rows of the batch (`input_ids.shape[0] // batch_size`). "
        "diag has no patch for it."
    ),
    why=(
        "Small batches run under CUDA graphs and large ones eager, so the same request can be right in a full server "
        "and wrong in an idle one. The captured graph is as wide as the setting, too, so mending these lines alone "
        "would not make a wider tree run."
    ),
    do=(
        "Serve with --disable-cuda-graph (the eager path is right), or install SGLang 0.5.17 or newer.",
        "Or keep the tree as wide as speculative_num_draft_tokens.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/aiter_backend.py",
    cls=CLASS,
    affected="0.5.10 to 0.5.16",
    fixed_in="0.5.17",
    backends=("aiter",),
    severity="fault",
    detect=partial(detect_flow.detect_graph_stores, name=CLASS),
    graphs_only=True,
)
