"""Change files of an installed package as one transaction, and give back the originals to the byte.

Everything is journaled before it is done: whoever comes after a crash, at whatever instruction, finds either a
finished transaction or an outstanding one and knows how to finish or undo it. At every moment each file is wholly
old or wholly new. The order (docs/fixes.md):

    lock - finish what is outstanding - check - `intent` - backups - new files beside the old - compile -
    `committing` - rename each - read back - drop byte code - `committed`

Each line of the journal is "<length> <sha256> <json>", fsynced before the act that it announces.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import subprocess
import sys
import time
import zlib
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._fixfiles import Ops, Refused, bytes_of, drop_bytecode, os_refused, put, sha256_of
from ._fixjournal import Journal, Lock, holder, open_state_dir, state_dir, user

Json = Dict[str, Any]

COMPILE_LIMIT_S = 60.0
SPARE_BYTES = 1 << 16
_CHECK = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


def run(args: Json, talk: object = None, ops: Optional[Ops] = None) -> Json:
    """args: action (read|status|apply|revert|recover), fix, package (import name), files, site_packages or python.

    read:    -> {site_packages, python, package, version, files: [integrity.check], looked_at, others, status}
    apply:   files [{path, pre_sha256, content_b64 (zlib, base64)}], version -> {changed, recovered, status, ...}
    revert, recover: -> {changed, recovered, status}
    status:  -> {state: applied|not_applied|outstanding|modified, files, journal, outstanding, changed_at_unix,
                 lock, processes}; see `status`. Touches nothing.
    Expected failures are returned as {"error": {kind, what, next, details}}.
    """
    try:
        return _ACTIONS[args["action"]](args, ops or Ops())
    except Refused as refused:
        return {"error": refused.error}
    except OSError as error:
        return {"error": os_refused(error).error}


# --- reading -----------------------------------------------------------------------------------------------


def _read(args: Json, ops: Ops) -> Json:
    from . import environments, integrity

    package = args["package"]
    bases = _places(args, environments)
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


def _places(args: Json, environments: Any) -> List[Tuple[Optional[str], List[str], Optional[str], str]]:
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
        from . import servers

        found = environments.find(None, servers.find([], [package])[1], [package])
    return [(environments.locate(each, package), each["search_path"], each["python"], each["prefix"]) for each in found]


# --- checks ------------------------------------------------------------------------------------------------


def _target(site: str, path: str) -> str:
    """The absolute path of a file below its package. Refuses anything that is, or lies behind, a way out."""
    whole = os.path.join(site, path)
    parts = path.split("/")
    package = os.path.realpath(os.path.join(site, parts[0]))
    inside = (os.path.realpath(os.path.dirname(whole)) + "/").startswith(package + "/")
    if os.path.isabs(path) or ".." in parts or len(parts) < 2 or not inside:
        raise Refused("precondition", "{} does not lie inside its package.".format(path), "Nothing was changed.")
    if whole.startswith("/proc/"):
        raise Refused(
            "precondition",
            "{} belongs to a container, seen from outside.".format(whole),
            "Connect to the container itself.",
        )
    return whole


def _check_paths(intent: Json) -> None:
    """The paths of an earlier run still lie where they did."""
    for each in intent["files"]:
        _target(intent["site_packages"], os.path.relpath(each["path"], intent["site_packages"]))


def _regular(path: str) -> os.stat_result:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise Refused("file_not_as_expected", "{} does not exist.".format(path), "Look at the installation.") from None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(
            "file_not_as_expected",
            "{} is not a regular file (a link is not followed).".format(path),
            "Name the environment that holds the file itself.",
        )
    return found


def _check_apply(args: Json, journal: Journal) -> List[Json]:
    """The preconditions; what will be done to each file."""
    version = _version(args["site_packages"], args["package"])
    if args.get("version") is not None and version is not None and version != args["version"]:
        raise Refused(
            "file_not_as_expected",
            "{} is {} now; it was {} when it was read.".format(args["package"], version, args["version"]),
            "Run it again: it reads the new version.",
        )
    plans = []
    for each in args["files"]:
        path = _target(args["site_packages"], each["path"])
        found = _regular(path)
        content = zlib.decompress(base64.b64decode(each["content_b64"]))
        seen = sha256_of(path)
        if seen != each["pre_sha256"]:
            raise Refused(
                "file_not_as_expected",
                "{} changed since it was read.".format(path),
                "Run it again: it reads the file as it is now.",
                ["expected sha256 {}".format(each["pre_sha256"]), "found    sha256 {}".format(seen)],
            )
        folder = os.path.dirname(path)
        if not os.access(folder, os.W_OK) or (os.geteuid() not in (0, found.st_uid)):
            raise Refused(
                "precondition",
                "{} may not replace {} (owner {}).".format(user(), path, found.st_uid),
                "Use a user of the host who owns the environment.",
            )
        for place in (folder, journal.folder):
            _enough_space(place, 2 * (len(content) + found.st_size) + SPARE_BYTES)
        plans.append({"path": path, "content": content, "pre": seen, "stat": found})
    return plans


def _enough_space(folder: str, need: int) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < need:
        raise Refused(
            "precondition",
            "{} has {} bytes free; {} are needed.".format(folder, free, need),
            "Free some space there and run it again.",
        )


def _version(site: str, package: str) -> Optional[str]:
    from . import integrity

    return integrity.owner([site], package)[0]


def _compile(content: bytes, path: str, python: Optional[str]) -> str:
    """With the engine's own interpreter where there is one; it only reads, and writes no byte code."""
    interpreter = python if python and os.access(python, os.X_OK) else sys.executable
    command = [interpreter, "-I", "-S", "-B", "-c", _CHECK, path]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=COMPILE_LIMIT_S)
        said = done.stderr.decode("utf-8", "replace").splitlines()
        good = done.returncode == 0
    except (OSError, subprocess.SubprocessError) as error:
        said, good = [str(error)], False
    if not good:
        raise Refused(
            "precondition",
            "{} does not compile the new {}; the file is unchanged.".format(interpreter, os.path.basename(path)),
            "Set `python` for this host to the interpreter that runs the server.",
            said[-5:],
        )
    return interpreter


# --- the transaction ---------------------------------------------------------------------------------------


def _locked(args: Json, ops: Ops, act: Callable[[Json, Ops, Journal], bool]) -> Json:
    """Run `act` under the lock, after finishing or undoing what is outstanding."""
    args["site_packages"] = os.path.abspath(os.path.expanduser(args["site_packages"]))
    folder = open_state_dir(ops)
    lock = Lock(folder, os.path.join(args["site_packages"], args["package"]))
    try:
        journal = Journal(folder, args["fix"], args["site_packages"])
        recovered = _recover(ops, journal)
        changed = act(args, ops, journal)
    except (OSError, Refused) as error:
        refused = os_refused(error) if isinstance(error, OSError) else error
        refused.error["details"].append("the fix is now: {}".format(status(args)["state"]))
        raise refused from None
    finally:
        lock.release()
    return {"changed": changed, "recovered": recovered, "status": status(args)}


def _apply(args: Json, ops: Ops, journal: Journal) -> bool:
    applied = journal.applied()
    if applied is not None and all(sha256_of(each["path"]) == each["post"] for each in applied["files"]):
        return False
    plans = _check_apply(args, journal)
    if all(plan["pre"] == hashlib.sha256(plan["content"]).hexdigest() for plan in plans):
        return False
    intent = _intent("apply", args, [(plan["path"], plan["pre"], plan["content"], None) for plan in plans])
    for each, plan in zip(intent["files"], plans):
        each["mtime_ns"] = plan["stat"].st_mtime_ns
    journal.add(ops, intent)
    try:
        for at, plan in enumerate(plans):
            put(ops, journal.backup(intent, at), bytes_of(plan["path"]) or b"", plan["path"], None)
        journal.add(ops, {"do": "backed_up"})
        for each, plan in zip(intent["files"], plans):
            put(ops, each["temp"], plan["content"], each["path"], time.time_ns())
            _compile(plan["content"], each["path"], args.get("python"))
        _commit(ops, journal, intent)
    except (OSError, Refused):
        _undo(ops, journal, intent)
        raise
    _drop_backups(ops, journal, keep=intent)
    return True


def _revert(args: Json, ops: Ops, journal: Journal) -> bool:
    applied = journal.applied()
    if applied is None:
        return False
    hashes = [sha256_of(each["path"]) for each in applied["files"]]
    if all(seen == each["pre"] for seen, each in zip(hashes, applied["files"])):
        return False
    for seen, each in zip(hashes, applied["files"]):
        if seen != each["post"]:
            raise Refused(
                "file_not_as_expected",
                "{} was changed by someone else after the fix was applied; it is not overwritten.".format(each["path"]),
                "Reinstall the package, or put the original back by hand; it is the backup named here.",
                [
                    "expected sha256 {}".format(each["post"]),
                    "found    sha256 {}".format(seen or "nothing: the file is gone"),
                    "backup   {}".format(journal.backup(applied, applied["files"].index(each))),
                ],
            )
    _check_paths(applied)
    originals = [_original(journal, applied, at) for at in range(len(applied["files"]))]
    changes = [
        (each["path"], each["post"], original, each["mtime_ns"]) for each, original in zip(applied["files"], originals)
    ]
    intent = dict(_intent("revert", args, changes), of=applied["id"])
    journal.add(ops, intent)
    try:
        for each, (path, _, original, mtime_ns) in zip(intent["files"], changes):
            put(ops, each["temp"], original, path, mtime_ns)
        _commit(ops, journal, intent)
    except (OSError, Refused):
        if "committing" not in journal.marks():  # else only forward: the next run finishes it
            _undo(ops, journal, intent)
        raise
    _drop_backups(ops, journal, keep=None)
    return True


def _intent(act: str, args: Json, changes: List[Tuple[str, str, bytes, Optional[int]]]) -> Json:
    """What will be done, with every name that will be used: a later run must find all of them."""
    number = os.urandom(8).hex()
    files = [
        {
            "path": path,
            "pre": pre,
            "post": hashlib.sha256(content).hexdigest(),
            "temp": os.path.join(os.path.dirname(path), ".{}.{}.diag".format(os.path.basename(path), number)),
            "mtime_ns": mtime_ns,
        }
        for path, pre, content, mtime_ns in changes
    ]
    who = {"user": user(), "pid": os.getpid(), "client": os.environ.get("SSH_CLIENT", "").split(" ")[0]}
    about = {name: args.get(name) for name in ("fix", "package", "version", "site_packages")}
    return dict(about, do="intent", act=act, id=number, files=files, who=who)


def _commit(ops: Ops, journal: Journal, intent: Json) -> None:
    journal.add(ops, {"do": "committing"})
    _rename_all(ops, intent)
    journal.add(ops, {"do": "committed"})


def _rename_all(ops: Ops, intent: Json) -> None:
    """Every file becomes the new one; those that already are stay."""
    for each in intent["files"]:
        if sha256_of(each["path"]) != each["post"]:
            ops.rename(each["temp"], each["path"])
        ops.sync_folder(os.path.dirname(each["path"]))
        seen = sha256_of(each["path"])
        if seen != each["post"]:
            raise Refused("file_not_as_expected", "{} reads back as {}.".format(each["path"], seen))
        drop_bytecode(ops, each["path"])


def _original(journal: Journal, applied: Json, at: int) -> bytes:
    backup = journal.backup(applied, at)
    data = bytes_of(backup)
    if data is None or hashlib.sha256(data).hexdigest() != applied["files"][at]["pre"]:
        raise Refused(
            "precondition",
            "The backup {} is {}.".format(backup, "gone" if data is None else "damaged"),
            "Reinstall the package at the same version.",
        )
    return data


def _drop_backups(ops: Ops, journal: Journal, keep: Optional[Json]) -> None:
    """Backups that no transaction needs any more."""
    start = os.path.basename(journal.path) + "."
    kept = None if keep is None else start + keep["id"] + "."
    for name in os.listdir(journal.folder):
        if name.startswith(start) and name.endswith(".orig") and not (kept and name.startswith(kept)):
            ops.remove(os.path.join(journal.folder, name))


# --- after a crash -----------------------------------------------------------------------------------------


def _recover(ops: Ops, journal: Journal) -> Optional[str]:
    """Finish or undo an outstanding transaction; "finished", "undone", or None when there was none."""
    intent = journal.outstanding()
    if intent is None:
        _drop_backups(ops, journal, keep=journal.applied())
        return None
    foreign = [each for each in intent["files"] if sha256_of(each["path"]) not in (each["pre"], each["post"])]
    if foreign:
        raise Refused(
            "file_not_as_expected",
            "{} was changed by someone else while a fix was half done; it is not touched.".format(foreign[0]["path"]),
            "Reinstall the package, then remove the journal named here.",
            ["found sha256 {}".format(sha256_of(foreign[0]["path"])), "journal {}".format(journal.path)],
        )
    _check_paths(intent)
    if "committing" in journal.marks() and _ready(ops, journal, intent):
        _rename_all(ops, intent)
        journal.add(ops, {"do": "committed"})
        _drop_backups(ops, journal, keep=intent if intent["act"] == "apply" else None)
        return "finished"
    _undo(ops, journal, intent)
    return "undone"


def _ready(ops: Ops, journal: Journal, intent: Json) -> bool:
    """Whether each file can become the new one. What a revert needs can be made again from the backups."""
    for at, each in enumerate(intent["files"]):
        if each["post"] in (sha256_of(each["path"]), sha256_of(each["temp"])):
            continue
        if intent["act"] == "apply":
            return False
        ops.remove(each["temp"])
        put(ops, each["temp"], _original(journal, journal.applied() or {}, at), each["path"], each["mtime_ns"])
    return True


def _undo(ops: Ops, journal: Journal, intent: Json) -> None:
    """Every file is the old one again; what was made for the transaction is removed. Never for a revert that began
    to rename: what it replaced is kept nowhere."""
    for at, each in enumerate(intent["files"]):
        ops.remove(each["temp"])
        if intent["act"] == "apply" and sha256_of(each["path"]) == each["post"]:
            put(ops, each["temp"], _original(journal, intent, at), each["path"], each["mtime_ns"])
            ops.rename(each["temp"], each["path"])
            drop_bytecode(ops, each["path"])
        ops.sync_folder(os.path.dirname(each["path"]))
    journal.add(ops, {"do": "rolled_back"})
    _drop_backups(ops, journal, keep=journal.applied())


# --- status ------------------------------------------------------------------------------------------------


def status(args: Json) -> Json:
    """What is so now; touches nothing.

    state: applied, not_applied, outstanding (a transaction did not end), modified (neither old nor new);
    files: [{path, is: original|fixed|other|missing, sha256}] of the latest transaction; journal: path or null;
    outstanding: null or {act, marks, who: {user, pid, client}, time, files, ...};
    changed_at_unix: of the latest change of ours, or null;
    lock: who holds it now, or null; processes: [{pid, argv, started_at_unix, code: stale|current|unknown}].
    """
    site = os.path.abspath(os.path.expanduser(args["site_packages"]))
    folder = state_dir()
    journal = Journal(folder, args["fix"], site)
    intent, _ = journal.last
    applied, outstanding = journal.applied(), journal.outstanding()
    files = [_file_status(each, (intent or {}).get("act")) for each in (intent or {}).get("files", [])]
    seen = {each["is"] for each in files}
    if outstanding is not None:
        state = "outstanding"
    elif applied is None or seen == {"original"}:
        state = "not_applied"
    else:
        state = "applied" if seen == {"fixed"} else "modified"
    changed = journal.changed_between()
    processes, unknown = _processes(site, args, changed)
    return {
        "state": state,
        "files": files,
        "journal": journal.path if journal.records else None,
        "outstanding": outstanding and dict(outstanding, marks=journal.marks()),
        "changed_at_unix": changed[1] if changed else None,
        "lock": holder(folder),
        "processes": processes,
        "unknown": unknown,
    }


def _file_status(each: Json, act: Optional[str]) -> Json:
    seen = sha256_of(each["path"])
    names = {each["pre"]: "original", each["post"]: "fixed"}
    if act == "revert":
        names = {each["post"]: "original", each["pre"]: "fixed"}
    return {"path": each["path"], "is": names.get(seen or "", "other") if seen else "missing", "sha256": seen}


def _processes(site: str, args: Json, changed: Optional[Tuple[float, float]]) -> Tuple[List[Json], List[Json]]:
    """Running servers of this installation, and whether they started before the files changed."""
    unknown: List[Json] = []
    try:
        from . import servers

        running = servers.find(unknown, [args["package"]])[0]
    except Exception as error:
        return [], [{"what": "running servers", "why": "{}: {}".format(type(error).__name__, error)}]
    found = []
    for server in running:
        place = server.get("site_packages")
        if place is not None and os.path.realpath(place) != os.path.realpath(site):
            continue
        age = _age(server.get("started_at_unix"), changed) if place is not None else "unknown"
        found.append(dict({name: server.get(name) for name in ("pid", "argv", "started_at_unix", "port")}, code=age))
    return found, unknown


def _age(started: Optional[float], changed: Optional[Tuple[float, float]]) -> str:
    """Start times are known to about a second."""
    if started is None:
        return "unknown"
    if changed is None or started > changed[1] + 1:
        return "current"
    return "stale" if started < changed[0] - 1 else "unknown"


_ACTIONS: Dict[str, Callable[[Json, Ops], Json]] = {
    "read": _read,
    "status": lambda args, ops: status(args),
    "apply": lambda args, ops: _locked(args, ops, _apply),
    "revert": lambda args, ops: _locked(args, ops, _revert),
    "recover": lambda args, ops: _locked(args, ops, lambda *_: False),
}
