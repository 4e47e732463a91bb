"""One installation of a package on this machine: where it is, which files it has, and what stands in them."""

from __future__ import annotations

import difflib
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import environments, integrity, servers

Json = Dict[str, Any]

NAMES = 5  # how many near names an answer carries


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """args: package (import name), files (paths inside site-packages), python (this interpreter's environment and no
    other), site_packages (this folder). Without these two: the environments of running servers, then the usual places.

    -> {schema: 1, source (see integrity.inspect), python, others: [folders that hold the package, too],
        servers: [{pid, argv}] of this installation, near: {file that is not there: [paths like it]}, unknown}
    """
    package = args["package"]
    unknown: List[Json] = []
    running, interpreters = servers.find(unknown, [package])
    found = _installations(args, package, interpreters)
    if not found:
        return {"error": _not_installed(args, package)}
    base, search, python = found[0]
    files = list(args.get("files") or [])
    source = integrity.inspect(base, search, package, files, False)
    missing = [file["path"] for file in source["files"] if not file["exists"]]
    return {
        "schema": 1,
        "source": source,
        "python": python,
        "others": [other for other, _, _ in found[1:]],
        "servers": [
            {"pid": server["pid"], "argv": server["argv"]}
            for server in running
            if server["site_packages"] in (base, source["site_packages"])
        ],
        "near": {path: near(base, package, path) for path in missing},
        "unknown": unknown + source.pop("unknown"),
    }


def _installations(
    args: Mapping[str, Any], package: str, interpreters: Sequence[environments.Interpreter]
) -> List[Tuple[str, List[str], Optional[str]]]:
    """(folder that it is imported from, search path, interpreter) of each place that has the package."""
    folder, python = args.get("site_packages"), args.get("python")
    if folder:
        return [(folder, [folder], python)] if os.path.isdir(os.path.join(folder, package)) else []
    if python:
        named = environments.named(python)
        every = [named] if named is not None else []
    else:
        every = environments.find(None, interpreters, [package])
    found: Dict[str, Tuple[str, List[str], Optional[str]]] = {}
    for environment in every:
        base = environments.locate(environment, package)
        if base is not None:
            found.setdefault(base, (base, environment["search_path"], environment["python"]))
    return list(found.values())


def _not_installed(args: Mapping[str, Any], package: str) -> Json:
    place = args.get("site_packages") or args.get("python")
    return {
        "kind": "package_not_installed",
        "what": f"{package} is not installed " + (f"for {place}." if place else "where it was looked for."),
        "next": "Name the engine's interpreter: --python PATH, or `python` in the host's inventory entry.",
        "details": [],
    }


def near(base: str, package: str, path: str) -> List[str]:
    """Python files of the package with the same name or one like it, the most alike first."""
    every = []
    for folder, _, names in os.walk(os.path.join(base, package)):
        inside = os.path.relpath(folder, base).replace(os.sep, "/")
        every += [f"{inside}/{name}" for name in names if name.endswith(".py")]
    return alike(every, path)


def alike(every: Sequence[str], path: str) -> List[str]:
    """Of these paths, those with the same file name; where there are none, those that are spelled alike."""
    last = os.path.basename(path)
    same = sorted(other for other in every if os.path.basename(other) == last and last != "__init__.py")
    return same[:NAMES] or difflib.get_close_matches(path, every, n=NAMES, cutoff=0.6)
