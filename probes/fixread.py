"""Look at the files of a fix and at where it stands, in one exec; touches nothing."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from . import environments, integrity, servers
from ._fixfiles import Refused, os_refused
from ._fixstatus import status

Json = Dict[str, Any]


def run(args: Json, talk: object = None) -> Json:
    """args: fix, package (import name), files, site_packages or python (of the inventory), each may be null.

    -> {site_packages, python, package, version, files: [integrity.check], looked_at, others, euid,
        status: see `_fixstatus.status`}. Expected failures are returned as {"error": {kind, what, next, details}}.
    """
    try:
        return _read(args)
    except Refused as refused:
        return {"error": refused.error}
    except OSError as error:
        return {"error": os_refused(error).error}


def _read(args: Json) -> Json:
    package = args["package"]
    bases = _places(args)
    chosen = next((place for place in bases if place[0] is not None), None)
    looked = ["{} ({})".format(prefix, "has it" if base else "does not") for base, _, _, prefix in bases]
    if chosen is None:
        raise Refused(
            "package_not_installed",
            "The package {} is not installed in any environment that was found.".format(package),
            "Set `python` for this host in the inventory to the interpreter that runs the server.",
            looked or ["no Python environment was found"],
        )
    base, folders, python, _ = chosen
    document = integrity.inspect(str(base), folders, package, args["files"], False)
    others = sorted({str(place[0]) for place in bases if place[0] not in (None, base)})
    document.update(site_packages=base, python=python, looked_at=looked, others=others, euid=os.geteuid())
    document["status"] = status(dict(args, site_packages=base))
    return document


def _places(args: Json) -> List[Tuple[Optional[str], List[str], Optional[str], str]]:
    """(folder that holds the package or None, search path, interpreter, prefix), most telling first."""
    package = args["package"]
    if args.get("site_packages"):
        base = os.path.expanduser(args["site_packages"])
        there = os.path.isdir(os.path.join(base, package))
        return [(base if there else None, [base], args.get("python"), base)]
    if args.get("python"):
        named = environments.named(args["python"])
        found = [] if named is None else [named]
    else:
        found = environments.find(None, servers.find([], [package])[1], [package])
    return [(environments.locate(each, package), each["search_path"], each["python"], each["prefix"]) for each in found]
