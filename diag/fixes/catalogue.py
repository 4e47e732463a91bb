"""The faults that this tool knows: for each, the fix where there is one. One module a fault, one line for it here.

An entry is data and pure functions of the file's text (`diag.fixes.entry`). How to add one: docs/fixes.md.
"""

from __future__ import annotations

import difflib

from diag.errors import UsageError
from diag.fixes import (
    fa_tree_mask_stride,
    graph_mask_buffer_size,
    inject_null_block,
    inject_pinned_count,
    mask_indptr,
    mask_indptr_aiter_graph,
    mask_indptr_wave,
    verify_width_fallback,
    xpu_tree_mask_stride,
)
from diag.fixes.entry import Fix

__all__ = ["FIXES", "INJECTIONS", "Fix", "files", "get"]

FIXES: tuple[Fix, ...] = (
    mask_indptr.FIX,
    mask_indptr_wave.FIX,
    mask_indptr_aiter_graph.FIX,
    fa_tree_mask_stride.FIX,
    xpu_tree_mask_stride.FIX,
    graph_mask_buffer_size.FIX,
    verify_width_fallback.FIX,
)

INJECTIONS: tuple[Fix, ...] = (inject_pinned_count.FIX, inject_null_block.FIX)
"""Faults to make, by the same transaction; no installation is looked through for them."""


def get(fix_id: str) -> Fix:
    """Raises UsageError, which names the nearest ids, for one that is not there."""
    for fix in (*FIXES, *INJECTIONS):
        if fix.id == fix_id:
            return fix
    ids = [fix.id for fix in (*FIXES, *INJECTIONS)]
    near = difflib.get_close_matches(fix_id, ids, n=3, cutoff=0.4) or ids
    raise UsageError(
        f"There is no fix named {fix_id!r}.",
        details=[f"did you mean: {', '.join(near)}"],
        next="See all of them: diag fix list",
    )


def files(package: str) -> list[str]:
    """The files of a package in which faults are known, inside site-packages, each once."""
    return list(dict.fromkeys(fix.file for fix in FIXES if fix.package == package))
