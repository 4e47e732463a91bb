"""Everything about a host that a diagnosis starts from, in one call."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from . import _leash, _proc, caches, environments, integrity, servers
from .facts import Facts

Json = Dict[str, Any]


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """args: packages (also to be listed), files (paths inside site-packages, to be hashed and sent), python (the
    engine's interpreter, if known), verify_all (hash every file of the engines and of the packages of `files`).

    -> {schema: 1, facts, environments, servers, sources, caches, unknown: [{what, why}]}; the parts are described
    where they are made: facts.run, environments.describe, servers.find, integrity.inspect, caches.find. What could
    not be looked at is in `unknown`, with why; it is never silently absent.
    """
    _leash.tie(talk)
    packages: List[str] = list(args.get("packages") or [])
    slow = Facts()
    unknown: List[Json] = []
    running, interpreters = servers.find(unknown, packages)
    found = environments.find(args.get("python"), interpreters, packages)
    sources = _sources(found, list(args.get("files") or []), bool(args.get("verify_all")))
    for source in sources:
        unknown += source.pop("unknown")
    if args.get("python") and environments.named(args["python"]) is None:
        unknown.append({"what": f"environment of {args['python']}", "why": "no such interpreter, or no site-packages"})
    compiled = caches.find([os.environ, *(server["env"] for server in running)])
    facts = slow.collect()
    _on_gpus(facts["facts"]["gpu_processes"], running)
    return {
        "schema": 1,
        "facts": facts["facts"],
        "environments": found,
        "servers": running,
        "sources": sources,
        "caches": compiled,
        "unknown": facts["unknown"] + unknown,
    }


def _on_gpus(rows: List[Json], running: Sequence[Json]) -> None:
    """Adds what each process on a GPU is: argv, user, server_pid (the server it belongs to; null: none), seen (false:
    the driver's number for it is no process that is visible here, as in a container)."""
    table = {process.pid: process for process in _proc.processes()} if rows else {}
    roots = {server["pid"] for server in running if not server["orphan"]}
    for row in rows:
        pid = at = row["pid"]
        passed: Set[int] = set()
        while at in table and at not in roots and at not in passed:
            passed.add(at)
            at = table[at].ppid
        seen = pid in table
        row.update(seen=seen, server_pid=at if at in roots else None, user=servers.user_of(pid) if seen else None)
        row["argv"] = _proc.hide_argv(table[pid].argv) if seen else None


def _sources(found: Sequence[Json], files: Sequence[str], verify_all: bool) -> List[Json]:
    """Each package that `files` belong to (with verify_all, the engines too), wherever it can be imported from."""
    tops = {path.split("/", 1)[0] for path in files} | (set(environments.ENGINES) if verify_all else set())
    documents = []
    seen: Set[Tuple[str, str]] = set()
    for environment in found:
        for top in sorted(tops):
            base = environments.locate(environment, top)
            if base is not None and (base, top) not in seen:
                seen.add((base, top))
                wanted = [path for path in files if path.split("/", 1)[0] == top]
                documents.append(integrity.inspect(base, environment["search_path"], top, wanted, verify_all))
    return documents
