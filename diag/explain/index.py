"""All explanations, and the search for one."""

from __future__ import annotations

import difflib

from diag.errors import UsageError
from diag.explain import bisections, errors, faults, findings, machine, playbooks, probing, runs, texts
from diag.explain.entry import Entry, Group

HEADINGS: dict[Group, str] = {
    "fault": "faults of the catalogue",
    "finding": "findings of a host",
    "bisection": "how a bisection ends",
    "text": "what a text is judged to be",
    "rule": "what speaks against a text",
    "sign": "signs in what a server counts and tells",
    "lead": "false leads",
    "playbook": "how a playbook ends, and what becomes of its changes",
    "run": "runs without a verdict, and what is missing in one",
    "error": "errors",
}

ENTRIES: tuple[Entry, ...] = (
    *faults.ENTRIES,
    *findings.ENTRIES,
    *machine.ENTRIES,
    *bisections.ENTRIES,
    *texts.ENTRIES,
    *probing.ENTRIES,
    *playbooks.ENTRIES,
    *runs.ENTRIES,
    *errors.ENTRIES,
)


def get(wanted: str) -> Entry:
    """The entry of an id; case, and `-` for `_`, do not matter. Raises UsageError, which names the nearest ids."""
    for entry in ENTRIES:
        if _plain(entry.id) == _plain(wanted):
            return entry
    near = difflib.get_close_matches(_plain(wanted), [_plain(entry.id) for entry in ENTRIES], n=3, cutoff=0.5)
    ids = [entry.id for entry in ENTRIES if _plain(entry.id) in near]
    raise UsageError(
        f"There is no explanation for {wanted!r}.",
        details=[f"did you mean: {', '.join(ids)}"] if ids else [],
        next="See all of them: diag explain",
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")
