"""Is an installed package what its wheel was? Files against dist-info/RECORD, by sha256."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _proc
from .environments import canonical, distributions

Json = Dict[str, Any]

CONTENT_BYTES = 4 << 20  # larger files come back without their content
NAMES = 200  # how many names a list carries at most; counts are always whole


class Entry(NamedTuple):
    """One line of RECORD. sha256: hex, or None where none is recorded (RECORD itself, *.pyc)."""

    sha256: Optional[str]
    size_bytes: Optional[int]


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """{"site_packages", "package" (import name), "files": [...], "verify_all": bool} -> one source document."""
    folder = args["site_packages"]
    return inspect(folder, [folder], args["package"], args.get("files") or [], bool(args.get("verify_all")))


def parse_record(record: str) -> Dict[str, Entry]:
    """RECORD (PEP 376/627: csv of path, algorithm=urlsafe base64 without padding, size) by path."""
    found = {}
    try:
        for row in csv.reader(record.splitlines()):
            if row and row[0]:
                checksum, size = [*row[1:], "", ""][:2]
                found[row[0]] = Entry(_sha256(checksum), int(size) if size.isdecimal() else None)
    except csv.Error:  # what was read until there still counts; the rest is not listed
        pass
    return found


def _sha256(checksum: str) -> Optional[str]:
    algorithm, _, value = checksum.partition("=")
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return None
    return digest.hex() if algorithm == "sha256" and len(digest) == 32 else None


def owner(folders: Sequence[str], top: str) -> Tuple[Optional[str], Optional[str], Optional[str]]:
    """(version, site-packages folder, dist-info folder) of the distribution that installed package `top`."""
    every = [(folder, *found) for folder in folders for found in distributions(folder)]
    for folder, name, version, info in every:
        if name == canonical(top):
            return version, folder, info
    for folder, _, version, info in every:  # e.g. package sgl_kernel of distribution sglang-kernel
        if f"\n{top}/".encode() in b"\n" + (_proc.read(f"{info}/RECORD", 1 << 26) or b""):
            return version, folder, info
    return None, None, None


def inspect(base: str, folders: Sequence[str], top: str, files: Sequence[str], verify_all: bool) -> Json:
    """One package of one environment.

    base: the folder it is imported from; folders: site-packages, where its dist-info is looked for;
    files: paths relative to site-packages.
    -> {site_packages, package, version, imported_from, files: [see `check`], unknown: [{what, why}],
        record_checked: null or {files, edited: [...], missing: [...], unlisted: [...] (*.py that RECORD does not
        know), counts: {edited, missing, unlisted}, seconds}}
    """
    version, site, info = owner(folders, top)
    raw = _proc.read(f"{info}/RECORD", 1 << 26) if info else None
    record = parse_record(_proc.text(raw or b""))
    unknown = []
    if not record:
        why = "it was not installed from a wheel here" if info is None else "RECORD is missing or empty"
        unknown.append({"what": f"integrity of {top} in {base}", "why": why})
    checked = []
    for path in files:
        if os.path.isabs(path) or ".." in path.split("/"):
            unknown.append({"what": path, "why": "only paths inside site-packages are read"})
        else:
            checked.append(check(base, path, record.get(path)))
    whole = verify(site, top, record) if verify_all and site is not None and record else None
    return {
        "site_packages": site or base,
        "package": top,
        "version": version,
        "imported_from": base,
        "files": checked,
        "record_checked": whole,
        "unknown": unknown,
    }


def check(base: str, path: str, entry: Optional[Entry]) -> Json:
    """{path, exists, sha256, record_sha256, integrity: pristine|edited|missing|unlisted, size_bytes, mtime_unix,
    content_b64 (zlib, base64; null if too large)}"""
    recorded = entry.sha256 if entry is not None else None
    answer: Json = {"path": path, "exists": False, "record_sha256": recorded, "content_b64": None}
    answer.update(sha256=None, size_bytes=None, mtime_unix=None)
    answer["integrity"] = "missing" if entry is not None else "unlisted"
    try:
        with open(os.path.join(base, path), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        return answer if isinstance(error, FileNotFoundError) else dict(answer, why=str(error.strerror))
    digest = hashlib.sha256(content).hexdigest()
    answer.update(exists=True, sha256=digest, size_bytes=len(content), mtime_unix=status.st_mtime)
    if recorded is not None:
        answer["integrity"] = "pristine" if digest == recorded else "edited"
    else:
        answer["integrity"] = "unlisted"
    if len(content) <= CONTENT_BYTES:
        answer["content_b64"] = base64.b64encode(zlib.compress(content)).decode("ascii")
    return answer


def verify(site: str, top: str, record: Mapping[str, Entry]) -> Json:
    """Every recorded file of a distribution, hashed by threads (hashing leaves the interpreter lock)."""
    begun = time.monotonic()
    paths = [path for path, entry in record.items() if entry.sha256 is not None]
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        digests = pool.map(_digest, (os.path.join(site, path) for path in paths), chunksize=64)
        states = {path: _state(digest, record[path]) for path, digest in zip(paths, digests)}
    named: Dict[str, List[str]] = {
        "edited": sorted(path for path, state in states.items() if state == "edited"),
        "missing": sorted(path for path, state in states.items() if state == "missing"),
        "unlisted": _unlisted(site, top, record),
    }
    return {
        "files": len(paths),
        **{state: names[:NAMES] for state, names in named.items()},
        "counts": {state: len(names) for state, names in named.items()},
        "seconds": round(time.monotonic() - begun, 3),
    }


def _state(digest: Optional[str], entry: Entry) -> str:
    if digest is None:
        return "missing"
    return "pristine" if digest == entry.sha256 else "edited"


def _digest(path: str) -> Optional[str]:
    try:
        with open(path, "rb", buffering=0) as file:
            whole = hashlib.sha256()
            while True:
                chunk = file.read(1 << 20)
                if not chunk:
                    return whole.hexdigest()
                whole.update(chunk)
    except OSError:
        return None


def _unlisted(site: str, top: str, record: Mapping[str, Entry]) -> List[str]:
    found = []
    for folder, _, names in os.walk(os.path.join(site, top)):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), site)
            if name.endswith(".py") and path not in record:
                found.append(path)
    return sorted(found)
