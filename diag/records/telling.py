"""What a report needs that no trial says: what the plan is about, what the hosts are, and the answer as it was given.

Each is written into the journal by the program that knows it; see diag.bisect.session and docs/reports.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from diag import bundle
from diag.errors import DiagError
from diag.records import store

if TYPE_CHECKING:
    from diag.bisect.link import Link
    from diag.bisect.plan import Plan
    from diag.bisect.space import Space
    from diag.journal import Journal

LOOK_TIMEOUT_S = 60.0
MAX_PROMPT_CHARS = 2000
MAX_REJECTED = 200
MAX_VALUE, MAX_FIELDS, MAX_NESTED = 500, 1000, 3
MAX_FACTS_BYTES = 256 * 1024
MAX_REPORT_BYTES = 2 * 1024 * 1024

Say = Callable[[str], None]


def plan(plan: Plan) -> dict[str, Any]:
    """For the first line of a bisection: its title, factors and rules, and what is asked."""
    suite = plan.suite
    prompts = [] if plan.trial is not None else suite.prompts
    return {
        "title": plan.spec.title,
        "engine": plan.spec.engine if plan.trial is None else None,
        **space(plan.space),
        "suite": {
            "name": suite.name,
            "max_new_tokens": plan.max_new_tokens,
            "prompts": [{"name": p.name, "text": suite.rendered(p)[:MAX_PROMPT_CHARS]} for p in prompts],
        },
    }


def space(space: Space) -> dict[str, Any]:
    """factors: what varied, and how each level reaches the server; derived: rules over them."""
    return {
        "factors": [
            {"name": f.name, "title": f.title, "how": f.how, "target": f.target, "good": f.good, "bad": f.bad}
            for f in space.factors
        ],
        "derived": [{"name": d.name, "title": d.title, "when": d.when.text} for d in space.derived],
    }


def look(links: Mapping[str, Link], left_out: Mapping[str, str], warn: Say) -> dict[str, dict[str, Any]]:
    """By host: the machine, what is installed, what its files hash to. What cannot be read is said, and costs nothing
    else."""
    there = {name: link for name, link in links.items() if name not in left_out}
    if not there:
        return {}
    with ThreadPoolExecutor(len(there)) as pool:
        found = dict(zip(there, pool.map(_look, there.values())))
    for name, error in found.items():
        if isinstance(error, DiagError):
            warn(f"{name} could not be read for the report: {error.what}")
    return {name: bounded(document) for name, document in found.items() if not isinstance(document, DiagError)}


def _look(link: Link) -> dict[str, Any] | DiagError:
    from diag.fixes import catalogue
    from diag.hosts import courier

    try:
        transport = link.transport()
        args = {"files": sorted({fix.file for fix in catalogue.FIXES}), "python": transport.host.python}
        document = courier.call(transport, "host", args, timeout_s=LOOK_TIMEOUT_S)
    except DiagError as error:
        return error
    for source in document["sources"]:
        for file in source["files"]:
            file.pop("content_b64", None)
    return document


def in_force(info: Mapping[str, Any], first: Mapping[str, Any] | None) -> dict[str, Any]:
    """For a trial's details, what the server says of its configuration: whole, or what differs from the `first` one.

    Single values only, of nested ones by a dotted name; lists are states and counters, and large."""
    is_secret = bundle.load("probes._proc").is_secret
    singles = dict(itertools.islice(_singles(info, ""), MAX_FIELDS))
    told = {name: "***" if is_secret(name, str(value)) else value for name, value in singles.items()}
    if first is None:
        return {"server_info": told} if told else {}
    return {"server_info_changed": {name: value for name, value in told.items() if first.get(name) != value}}


def _singles(info: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in info.items():
        if isinstance(value, Mapping) and prefix.count(".") < MAX_NESTED:
            yield from _singles(value, f"{prefix}{name}.")
        elif (
            value is None
            or isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) < MAX_VALUE)
        ):
            yield f"{prefix}{name}", value


def report(journal: Journal, document: Mapping[str, Any]) -> None:
    """The document of `diag bisect --json`, as it was given to the person; its trials have lines of their own.

    The record is brought up to date, so that nobody waits for it later."""
    told = {name: value for name, value in document.items() if name != "trials"}
    told["rejected"] = told.get("rejected", [])[:MAX_REJECTED]
    if len(json.dumps(told)) <= MAX_REPORT_BYTES:
        journal.write("report", document=told)
    store.ask(lambda record: None, journal.folder.parent.parent)


def bounded(document: Mapping[str, Any], most_bytes: int = MAX_FACTS_BYTES) -> dict[str, Any]:
    """The same, without its largest parts where it is larger; `left_out` then names them."""
    kept, left = dict(document), []
    while len(json.dumps(kept)) > most_bytes and (large := _largest(kept)) is not None:
        left.append(large)
        kept = {**{name: value for name, value in kept.items() if name != large}, "left_out": list(left)}
    return kept


def _largest(document: Mapping[str, Any]) -> str | None:
    sized: Sequence[tuple[int, str]] = [
        (len(json.dumps(value)), name) for name, value in document.items() if name != "left_out"
    ]
    return max(sized)[1] if sized else None
