"""A verify input that does not set num_tokens_per_req silently gets the server's width."""

from __future__ import annotations

from functools import partial

from diag.fixes.entry import Fix
from diag.source import fallback
from diag.source.verify_width import CLASS

FIX = Fix(
    id="verify-width-fallback",
    title="Triton backend: a verify input without num_tokens_per_req silently gets the server's width",
    story=(
        "0.5.21 takes the width of a verify step from `spec_info.num_tokens_per_req`. Its class default is -1, and "
        "where it is not above 0 the backend falls back to the width that graphs are captured with, whatever "
        "`draft_token_num` says. The inputs of the release set both. An algorithm of a fork or a plugin that was "
        "written for 0.5.20 or older sets `draft_token_num` alone. "
        "diag has no patch for it."
    ),
    why=(
        "It is mask-indptr again, for that algorithm only: wrong offsets, garbled text, no message, in a release in "
        "which the fault counts as fixed."
    ),
    do=(
        "In the algorithm's verify input, set num_tokens_per_req = draft_token_num, as EagleVerifyInput does in "
        "__post_init__.",
        "With the algorithms of the release there is nothing to do.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/triton_backend.py",
    cls=CLASS,
    affected="0.5.21 and newer",
    fixed_in="no release yet (0.5.23 has it)",
    backends=("triton",),
    severity="notice",
    detect=partial(fallback.detect, name=CLASS),
)
