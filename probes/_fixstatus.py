"""Where a fix stands on this host: what the journal says, held against the files. Touches nothing."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from . import _fixprocs
from ._fixfiles import sha256_of
from ._fixjournal import Journal, holder, state_dir

Json = Dict[str, Any]


def status(args: Json) -> Json:
    """What is so now, of args' fix, package, site_packages.

    state: applied, not_applied, outstanding (a transaction did not end), modified (neither old nor new);
    files: [{path, is: original|fixed|other|missing, sha256}] of the latest transaction; journal: path or null;
    outstanding: null or {act, marks, who: {user, pid, client}, time, ...};
    changed_at_unix: of the latest change of ours, or null;
    lock: who holds it now, or null; processes, unknown: see `_fixprocs.running`.
    """
    site = os.path.abspath(os.path.expanduser(args["site_packages"]))
    folder = state_dir()
    journal = Journal(folder, args["fix"], site)
    outstanding, changes = journal.outstanding(), journal.changes()
    files = _files(journal)
    processes, unknown = _processes(site, args, changes, {each["path"]: each["sha256"] for each in files})
    last = changes[-1]["last"] if changes else None
    names = ("act", "id", "time", "who", "version")
    return {
        "state": _state(journal, {each["is"] for each in files}),
        "files": files,
        "journal": journal.path if journal.records else None,
        "outstanding": outstanding and dict({name: outstanding[name] for name in names}, marks=journal.marks()),
        "changed_at_unix": last and last["time"],
        "lock": holder(folder),
        "processes": processes,
        "unknown": unknown,
    }


def _processes(site: str, args: Json, changes: List[Json], present: Json) -> Tuple[List[Json], List[Json]]:
    return _fixprocs.running(site, args["package"], changes, present)


def _state(journal: Journal, seen: "set[str]") -> str:
    if journal.outstanding() is not None:
        return "outstanding"
    if journal.applied() is None or seen == {"original"}:
        return "not_applied"
    return "applied" if seen == {"fixed"} else "modified"


def _files(journal: Journal) -> List[Json]:
    """Each file by the names of the apply that counts: what a forced revert found there is neither."""
    latest, outstanding = journal.last[0], journal.outstanding()
    intent = outstanding if outstanding and outstanding["act"] == "apply" else journal.applied() or latest
    if intent is None:
        return []
    back = intent["act"] == "revert"
    found = []
    for each in intent["files"]:
        names: Dict[Optional[str], str] = {each["pre"]: "original", each["post"]: "fixed"}
        if back:
            names = {each["post"]: "original", each["pre"]: "fixed"}
        seen = sha256_of(each["path"])
        named = "missing" if seen is None else names.get(seen, "other")
        found.append({"path": each["path"], "is": named, "sha256": seen})
    return found
