"""Faults of the catalogue (`diag fix list`): what is explained is what the catalogue says of them."""

from __future__ import annotations

from diag.explain.entry import Entry
from diag.fixes.catalogue import FIXES, INJECTIONS

ENTRIES = tuple(
    Entry(
        id=fix.id,
        group="fault",
        title=fix.title,
        what=fix.story,
        why=fix.why,
        do=fix.do,
        more=("docs/faults.md", "docs/fixes.md", f"diag/fixes/{fix.id.replace('-', '_')}.py"),
    )
    for fix in (*FIXES, *INJECTIONS)
)
