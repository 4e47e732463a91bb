"""The fault `mask-indptr` in the wave backend, which is a copy of the Triton backend and was never mended."""

from __future__ import annotations

from functools import partial

from diag.fixes import mask_indptr
from diag.fixes.entry import Fix
from diag.source import detect

CLASS = "WaveAttnBackend"

FIX = Fix(
    id="mask-indptr-wave",
    title="Wave backend: tree-mask offsets from the server setting instead of the verify step's own width",
    story=(
        "The wave backend (AMD GPUs, --attention-backend wave) began as a copy of the Triton backend and computes "
        "`mask_indptr`, `qo_indptr` and the longest extend length with the server setting "
        "`speculative_num_draft_tokens`, eager and for CUDA graphs, in every release since it came, 0.5.1. Upstream "
        "mended the Triton backend in 0.5.17 and left this one. The fix is the one of mask-indptr."
    ),
    why=(
        "A draft tree whose width is not the setting garbles the text without any error, as with mask-indptr; a newer "
        "release does not help here."
    ),
    do=(
        "See the patch: diag fix apply NAME mask-indptr-wave --diff",
        "Without a patch: serve with --attention-backend triton on 0.5.17 or newer, or keep the tree as wide as "
        "speculative_num_draft_tokens.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/wave_backend.py",
    cls=CLASS,
    affected="0.5.1 and newer",
    fixed_in="no release yet (0.5.23 has it)",
    backends=("wave",),
    severity="fault",
    detect=partial(detect.detect, name=CLASS),
    mend=partial(mask_indptr.rewrite, name=CLASS),
    oracle=False,
)
