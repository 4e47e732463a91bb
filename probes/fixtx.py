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

from . import environments
from ._fixfiles import Ops, Refused, bytes_of, drop_bytecode, os_refused, put, sha256_of
from ._fixjournal import Journal, Lock, busy, check_private, holder, open_state_dir, operator, state_dir, user
from ._fixstatus import status

Json = Dict[str, Any]

COMPILE_LIMIT_S = 60.0
SPARE_BYTES = 1 << 16
SPARE_INODES = 16
DIFF_LINES, DIFF_WIDTH, DIFF_BYTES = 60, 160, 1 << 20
_CHECK = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


def run(args: Json, talk: object = None, ops: Optional[Ops] = None) -> Json:
    """args: action (status|check|apply|revert|recover), fix, package (import name), site_packages, python.

    apply:   files [{path, pre_sha256, content_b64 (zlib, base64)}], version
    revert:  force: put the originals back although someone else changed the files since; what they wrote is kept
    recover: only end an interrupted transaction
             each -> {changed, recovered: null|finished|undone, kept: [paths of foreign content], status}
    check:   as apply, and touches nothing -> {would: apply|nothing, status}
    status:  see `_fixstatus.status`; touches nothing
    Expected failures are returned as {"error": {kind, what, next, details}}.
    """
    try:
        return _ACTIONS[args["action"]](args, ops or Ops())
    except Refused as refused:
        return {"error": refused.error}
    except OSError as error:
        return {"error": os_refused(error).error}


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
        _check_mount(folder)
        if not os.access(folder, os.W_OK) or (os.geteuid() not in (0, found.st_uid)):
            raise Refused(
                "precondition",
                "{} may not replace {} (owner {}).".format(user(), path, found.st_uid),
                "Use a user of the host who owns it; or set `sudo = true` for this host in the inventory.",
            )
        for place in (folder, journal.folder):
            _enough_space(place, 2 * (len(content) + found.st_size) + SPARE_BYTES)
        plans.append({"path": path, "content": content, "pre": seen, "stat": found})
    return plans


def _existing(folder: str) -> str:
    """It, or what is there of the way to it: a state folder may still be to be made."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _check_mount(folder: str) -> None:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        what = "{} is on a file system mounted read-only.".format(folder)
        raise Refused("precondition", what, "Mount it read-write, or use a place that can be changed.")


def _enough_space(folder: str, need: int) -> None:
    disk = os.statvfs(_existing(folder))
    free = disk.f_bavail * disk.f_frsize
    what = "bytes" if free < need else ""
    if disk.f_files and disk.f_favail < SPARE_INODES:  # some file systems do not count them
        what, free, need = "inodes", disk.f_favail, SPARE_INODES
    if what:
        raise Refused(
            "precondition",
            "{} has {} {} free; {} are needed.".format(folder, free, what, need),
            "Free some space there and run it again.",
        )


def _version(site: str, package: str) -> Optional[str]:
    """None where the distribution has another name than the package."""
    wanted = environments.canonical(package)
    return next((version for name, version, _ in environments.distributions(site) if name == wanted), None)


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
    args["kept"] = []
    folder = open_state_dir(ops)
    lock = Lock(folder, os.path.join(args["site_packages"], args["package"]))
    try:
        journal = Journal(folder, args["fix"], args["site_packages"])
        recovered = _recover(args, ops, journal)
        changed = act(args, ops, journal)
    except (OSError, Refused) as error:
        refused = os_refused(error) if isinstance(error, OSError) else error
        refused.error["details"].append("the fix is now: {}".format(status(args)["state"]))
        raise refused from None
    finally:
        lock.release()
    return {"changed": changed, "recovered": recovered, "kept": args["kept"], "status": status(args)}


def _check(args: Json, ops: Ops) -> Json:
    """All that apply would refuse for, without a lock, a folder or a file."""
    site = args["site_packages"] = os.path.abspath(os.path.expanduser(args["site_packages"]))
    folder = state_dir()
    who = holder(folder)
    if who is not None:
        raise busy(who)
    for place in (os.path.dirname(folder), folder):
        if os.path.lexists(place):
            check_private(place)
    _check_mount(_existing(folder))
    if not os.access(_existing(folder), os.W_OK):
        raise Refused("precondition", "{} may not make {}.".format(user(), folder), "Set XDG_STATE_HOME in `env`.")
    journal = Journal(folder, args["fix"], site)
    outstanding = journal.outstanding()
    if outstanding is not None:
        _refuse_foreign(journal, outstanding)
    plans = [] if _is_applied(journal) else _check_apply(args, journal)
    for plan in plans:
        _compile(plan["content"], plan["path"], args.get("python"))
    would = any(plan["pre"] != hashlib.sha256(plan["content"]).hexdigest() for plan in plans)
    return {"would": "apply" if would else "nothing", "status": status(args)}


def _is_applied(journal: Journal) -> bool:
    applied = journal.applied()
    return applied is not None and all(sha256_of(each["path"]) == each["post"] for each in applied["files"])


def _apply(args: Json, ops: Ops, journal: Journal) -> bool:
    if _is_applied(journal):
        return False
    plans = _check_apply(args, journal)
    if all(plan["pre"] == hashlib.sha256(plan["content"]).hexdigest() for plan in plans):
        return False
    intent = _intent("apply", args, [(plan["path"], plan["pre"], plan["content"], None) for plan in plans])
    for each, plan in zip(intent["files"], plans):
        each["mtime_ns"] = plan["stat"].st_mtime_ns
        # So that a later run can tell, line by line, what someone else changed.
        each["content_b64"] = base64.b64encode(zlib.compress(plan["content"], 9)).decode()
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
    _check_paths(applied)
    foreign = [at for at, each in enumerate(applied["files"]) if hashes[at] not in (each["pre"], each["post"])]
    if foreign and not args.get("force"):
        raise _someone_else(journal, applied, foreign[0], "was changed by someone else after the fix was applied")
    originals = [_original(journal, applied, at) for at in range(len(applied["files"]))]
    for at in foreign:
        _keep(args, ops, journal, applied["files"][at]["path"])
    changes = [
        (each["path"], seen, original, each["mtime_ns"])
        for each, seen, original in zip(applied["files"], hashes, originals)
    ]
    intent = _intent("revert", args, changes)
    journal.add(ops, intent)
    try:
        for at, (each, original) in enumerate(zip(intent["files"], originals)):
            put(ops, each["temp"], original, _model(journal, applied, at), each["mtime_ns"])
        _commit(ops, journal, intent)
    except (OSError, Refused):
        if "committing" not in journal.marks():  # else only forward: the next run finishes it
            _undo(ops, journal, intent)
        raise
    _drop_backups(ops, journal, keep=None)
    return True


def _model(journal: Journal, applied: Json, at: int) -> str:
    """Whose owner and mode a reverted file gets: the present one's; the backup has those of the original."""
    path = str(applied["files"][at]["path"])
    return path if os.path.isfile(path) else journal.backup(applied, at)


def _keep(args: Json, ops: Ops, journal: Journal, path: str) -> None:
    """Put what someone else wrote beside the journal before it is replaced."""
    if not os.path.lexists(path):
        return
    _regular(path)
    name = "{}.{}.{}.kept".format(os.path.basename(journal.path), os.path.basename(path), os.urandom(4).hex())
    kept = os.path.join(journal.folder, name)
    put(ops, kept, bytes_of(path) or b"", path, None)
    args["kept"].append(kept)


def _someone_else(journal: Journal, intent: Json, at: int, how: str) -> Refused:
    each = intent["files"][at]
    return Refused(
        "file_not_as_expected",
        "{} {}; it is not overwritten.".format(each["path"], how),
        "Take their changes out of the file again; or `revert --force` puts the original back and keeps what is there "
        "now beside the journal; or reinstall the package.",
        [
            "expected sha256 {}".format(each["post"]),
            "found    sha256 {}".format(sha256_of(each["path"]) or "nothing: the file is gone"),
            "backup   {}".format(journal.backup(intent, at)),
            "journal  {}".format(journal.path),
            *_foreign_diff(each),
        ],
    )


def _foreign_diff(each: Json) -> List[str]:
    """What they changed in what we wrote; bounded."""
    import difflib

    try:
        theirs = bytes_of(each["path"])
    except OSError:
        theirs = None
    if theirs is None or len(theirs) > DIFF_BYTES or "content_b64" not in each:
        return []
    ours = zlib.decompress(base64.b64decode(each["content_b64"]))
    old, new = (text.decode("utf-8", "backslashreplace").splitlines() for text in (ours, theirs))
    lines = list(difflib.unified_diff(old, new, "as the fix wrote it", "as it is now", "", "", 3, ""))
    more = ["... {} more lines".format(len(lines) - DIFF_LINES)] if len(lines) > DIFF_LINES else []
    lines = lines or ["only line ends or a byte order mark differ"]
    return [line[:DIFF_WIDTH] for line in lines[:DIFF_LINES]] + more


def _intent(act: str, args: Json, changes: List[Tuple[str, Optional[str], bytes, Optional[int]]]) -> Json:
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
    who = dict(operator(), pid=os.getpid())
    about = {name: args.get(name) for name in ("fix", "package", "version", "site_packages")}
    return dict(about, do="intent", act=act, id=number, files=files, who=who)


def _commit(ops: Ops, journal: Journal, intent: Json) -> None:
    for each in intent["files"]:  # compiling took its time
        if sha256_of(each["path"]) != each["pre"]:
            raise Refused("file_not_as_expected", "{} changed just now.".format(each["path"]), "Run it again.")
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


def _recover(args: Json, ops: Ops, journal: Journal) -> Optional[str]:
    """Finish or undo an outstanding transaction; "finished", "undone", or None when there was none."""
    intent = journal.outstanding()
    if intent is None:
        _drop_backups(ops, journal, keep=journal.applied())
        return None
    foreign = _foreign(journal, intent)
    if foreign and not args.get("force"):
        _refuse_foreign(journal, intent)
    _check_paths(intent)
    for path in foreign:
        _keep(args, ops, journal, path)
    forward = not foreign or intent["act"] == "revert"
    if "committing" in journal.marks() and forward and _ready(ops, journal, intent):
        _rename_all(ops, intent)
        journal.add(ops, {"do": "committed"})
        _drop_backups(ops, journal, keep=intent if intent["act"] == "apply" else None)
        return "finished"
    _undo(ops, journal, intent, bool(foreign))
    return "undone"


def _foreign(journal: Journal, intent: Json) -> List[str]:
    """Files that are neither old nor new. Before `committing` ours is not yet in the way of theirs."""
    if "committing" not in journal.marks():
        return []
    return [each["path"] for each in intent["files"] if sha256_of(each["path"]) not in (each["pre"], each["post"])]


def _refuse_foreign(journal: Journal, intent: Json) -> None:
    foreign = _foreign(journal, intent)
    if foreign:
        base = intent if intent["act"] == "apply" else journal.applied() or intent
        at = [each["path"] for each in base["files"]].index(foreign[0])
        raise _someone_else(journal, base, at, "was changed by someone else while the fix was half done")


def _ready(ops: Ops, journal: Journal, intent: Json) -> bool:
    """Whether each file can become the new one. What a revert needs can be made again from the backups."""
    for at, each in enumerate(intent["files"]):
        if each["post"] in (sha256_of(each["path"]), sha256_of(each["temp"])):
            continue
        if intent["act"] == "apply":
            return False
        ops.remove(each["temp"])
        applied = journal.applied() or {}
        put(ops, each["temp"], _original(journal, applied, at), _model(journal, applied, at), each["mtime_ns"])
    return True


def _undo(ops: Ops, journal: Journal, intent: Json, force: bool = False) -> None:
    """Every file is the old one again; what was made for the transaction is removed. Never for a revert that began
    to rename: what it replaced is kept nowhere. force: what someone else wrote is replaced, too (it was kept)."""
    began = intent["act"] == "apply" and "committing" in journal.marks()
    for at, each in enumerate(intent["files"]):
        ops.remove(each["temp"])
        seen = sha256_of(each["path"])
        if began and (seen == each["post"] or (force and seen != each["pre"])):
            model = _model(journal, intent, at)
            put(ops, each["temp"], _original(journal, intent, at), model, each["mtime_ns"])
            ops.rename(each["temp"], each["path"])
            drop_bytecode(ops, each["path"])
        ops.sync_folder(os.path.dirname(each["path"]))
    journal.add(ops, {"do": "rolled_back"})
    _drop_backups(ops, journal, keep=journal.applied())


_ACTIONS: Dict[str, Callable[[Json, Ops], Json]] = {
    "status": lambda args, ops: status(args),
    "check": _check,
    "apply": lambda args, ops: _locked(args, ops, _apply),
    "revert": lambda args, ops: _locked(args, ops, _revert),
    "recover": lambda args, ops: _locked(args, ops, lambda *_: False),
}
