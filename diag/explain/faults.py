"""Faults of the catalogue (`diag fix list`)."""

from __future__ import annotations

from diag.explain.entry import Entry

ENTRIES = (
    Entry(
        id="mask-indptr",
        group="fault",
        title="tree-mask offsets are computed from a server setting instead of the verify step's own width",
        what=(
            "In speculative decoding the target model checks a whole draft tree in one forward pass, under a mask that "
            "says which draft token sees which. The masks of all requests lie one after the other in a flat buffer; "
            "mask_indptr says where each begins. SGLang 0.4.3 to 0.5.16 computes it in the Triton attention backend "
            "from the server setting speculative_num_draft_tokens. A tree of budget 16 has 17 rows. With a setting of "
            "8, requests read their masks at the wrong place and rows 9 to 17 are never computed."
        ),
        why=(
            "The text is garbled and nothing is logged. The fault in the source does no harm while the two numbers are "
            "equal, so a server can run well for months and break when one flag changes. EAGLE, NGRAM and DFLASH keep "
            "them equal; a draft tree whose budget + 1 is not the block size does not."
        ),
        do=(
            "Look at what the running server says: `diag probe host NAME` prints verify-width-mismatch where it bites.",
            "See the patch: diag fix apply NAME mask-indptr --diff",
            "Apply it, restart the server, ask again: diag fix apply NAME mask-indptr, then diag bisect NAME --check",
            (
                "Without a patch: lower the tree budget to speculative_num_draft_tokens - 1, or install SGLang 0.5.17 "
                "or newer. Raising the setting instead can break the draft model's own steps, which take the same "
                "setting."
            ),
        ),
        more=(
            "docs/fixes.md",
            "docs/garbled-server.md",
            "diag/source/detect.py",
        ),
    ),
)
