"""The fixes that this tool has: for each, the fault that it mends, in which file, and how.

A fix is data and two pure functions of the file's text. How to add one: docs/fixes.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diag.errors import UsageError

if TYPE_CHECKING:
    from diag.source.detect import Detection


@dataclass(frozen=True)
class Fix:
    """id: what the person types. package: the distribution's import name. file: inside site-packages.
    affected, fixed_in: releases of the package, for a person; what counts is what `detect` says of the file.
    detect: the state of the fault in a text. rewrite: the mended text, or FileNotAsExpected."""

    id: str
    title: str
    story: str
    package: str
    file: str
    affected: str
    fixed_in: str
    detect: Callable[[str], Detection]
    rewrite: Callable[[str], str]


# Detectors load libcst (a third of a second): only when one is used.
def _detect_mask_indptr(text: str) -> Detection:
    from diag.source.detect import detect

    return detect(text)


def _rewrite_mask_indptr(text: str) -> str:
    from diag.fixes.mask_indptr import rewrite

    return rewrite(text)


FIXES: tuple[Fix, ...] = (
    Fix(
        id="mask-indptr",
        title="Triton backend: tree-mask offsets from the server setting instead of the verify step's own width",
        story=(
            "In speculative decoding the target model checks a whole draft tree in one forward pass, under a mask that "
            "says which draft token may see which. The masks of all requests lie one after the other in a flat buffer; "
            "`mask_indptr` holds where each begins, `qo_indptr` where each request's rows begin. Both must be computed "
            "with the number of rows that this verify step really has, `draft_token_num`. SGLang 0.4.3 to 0.5.16 "
            "computes them with the server setting `speculative_num_draft_tokens`. A tree of budget 16 has 17 rows; "
            "with a setting of 8 every request reads its mask at a wrong place and rows 9 to 17 are never computed, so "
            "the text is garbled without any error. The fix takes the width from the verify input, in the eager and "
            "in the CUDA-graph path, and falls back to the setting where there is none (graph capture)."
        ),
        package="sglang",
        file="sglang/srt/layers/attention/triton_backend.py",
        affected="0.4.3 to 0.5.16",
        fixed_in="0.5.17",
        detect=_detect_mask_indptr,
        rewrite=_rewrite_mask_indptr,
    ),
)


def get(fix_id: str) -> Fix:
    """Raises UsageError, which names the nearest ids, for one that is not there."""
    for fix in FIXES:
        if fix.id == fix_id:
            return fix
    ids = [fix.id for fix in FIXES]
    near = difflib.get_close_matches(fix_id, ids, n=3, cutoff=0.4) or ids
    raise UsageError(
        f"There is no fix named {fix_id!r}.",
        details=[f"did you mean: {', '.join(near)}"],
        next="See all of them: diag fix list",
    )
