"""Servers that nobody holds any more, or that somebody else runs: listed, read, and stopped with proof.

Messages and documents: see `run`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import _hostlock, _proc, _serverlog, servers
from ._owned import Owned, stop
from ._wire import failure

if TYPE_CHECKING:
    from ._wire import Talk

Json = Dict[str, Any]

TAIL_BYTES = 1 << 18
SMI_LIMIT_S = 10.0
SLACK_MIB = 64  # what the driver itself takes and gives back
_APPS = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]


def run(args: Mapping[str, Any], talk: Talk) -> Json:
    """args: do (list|logs|stop), target (a pid or a run id), lines, adopt, stop_grace_s.

    list -> {servers: [as servers.find, and: supervised_by (pid of a living diag program, or null), gpu_memory_mib,
             pids]}, lock: who is at work, or null, unknown}
    logs -> {server, log {source, lines, why}}
    stop -> event evidence {server, log, processes, nvidia_smi, lock}; the laptop keeps it and answers {"cmd": "stop"}
            (its end before that: nothing is done). Then {clean, stopped, signals, left, port, port_free, seconds,
            gpu_memory {before_mib, after_mib, held_mib, back} or null}: clean only if all that can be seen is as it
            should be. gpu_memory.back: null where it cannot be told.
    Errors: precondition, for a target that is not there, is no server, or is somebody else's without `adopt`.
    """
    unknown: List[Json] = []
    found = [_more(server) for server in servers.find(unknown)[0]]
    if args["do"] == "list":
        return {"servers": found, "lock": _hostlock.holder(), "unknown": unknown}
    target = str(args["target"])
    chosen = [server for server in found if target in (str(server["pid"]), server["run_id"])]
    if not chosen:
        return _no_such(target, found)
    lines = int(args.get("lines") or 40)
    if args["do"] == "logs":
        return {"server": chosen[0], "log": log_of(chosen[0]["pid"], lines, chosen[0]["run_id"])}
    return _stop(chosen[0], bool(args.get("adopt")), float(args.get("stop_grace_s", 10)), lines, talk)


def _more(server: Json) -> Json:
    pids = [process.pid for process in _owned(server).scan()]
    held = _held(pids, _apps())
    return dict(server, pids=sorted(pids), supervised_by=_supervisor(server["pid"]), gpu_memory_mib=held)


def _owned(server: Json) -> Owned:
    """Its processes: what carries our mark, what descends from it. Nothing is selected by name."""
    owned = Owned(server["run_id"] or "")
    owned.own(server["pid"])
    return owned


def _supervisor(pid: int) -> Optional[int]:
    """The living program of ours above it, if there is one: then a diag somewhere is using this server."""
    table = {process.pid: process for process in _proc.processes()}
    seen: Set[int] = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        pid = table[pid].ppid
        if pid in table and any("zlib.decompress(b).decode().split(chr(0))" in word for word in table[pid].argv):
            return pid
    return None


def _error(what: str, next: str, details: Sequence[str] = ()) -> Json:
    return failure("precondition", what, next, list(details))


def _no_such(target: str, found: Sequence[Json]) -> Json:
    there = ["pid {}: {}".format(server["pid"], " ".join(server["argv"])[:200]) for server in found]
    return _error(
        "There is no inference server {} here; nothing was stopped.".format(target),
        "Take a pid or a run id of: diag server list",
        there or ["None is running."],
    )


# --- stop -----------------------------------------------------------------------------------------


def _stop(server: Json, adopt: bool, grace_s: float, lines: int, talk: Talk) -> Json:
    refusal = None if adopt else _not_ours(server)
    if refusal is not None:
        return refusal
    owned = _owned(server)  # identities from now on: a pid that is reused while the laptop writes is not touched
    owned.scan()
    lock = _hostlock.HostLock()
    try:
        who = lock.acquire("stopping server {}".format(server["pid"]))
    except OSError as error:
        return _error("The lock of this host cannot be taken: {}.".format(error), "Set XDG_STATE_HOME in env.")
    try:
        if who is not None and not adopt:
            return _busy(who)
        talk.emit(dict(_evidence(server, lines), event="evidence", lock=who))
        try:
            message = talk.receive(None)
        except EOFError:
            message = None
        if message is None or message.get("cmd") != "stop":
            return _error("The evidence could not be kept; nothing was stopped.", "Run it again.")
        return _ended(server, owned, grace_s)
    finally:
        lock.release()


def _busy(who: Json) -> Json:
    return _error(
        "Somebody is at work on this host: {}.".format(_hostlock.said(who)),
        "Wait until that has ended; --adopt does it all the same.",
    )


def _not_ours(server: Json) -> Optional[Json]:
    pid = server["pid"]
    if server["run_id"] is None:
        return _error(
            "Server {} was not started by diag: {} runs it, since {}.".format(
                pid, server["user"] or "somebody", server["started_at_utc"]
            ),
            "If it is yours to stop: --adopt. Its log, its flags and the GPUs' state are saved first.",
            [" ".join(server["argv"])[:400]],
        )
    if server["supervised_by"] is not None:
        return _error(
            "Server {} (run {}) is in use: a diag that is still running supervises it.".format(pid, server["run_id"]),
            "End that diag; it stops its server itself. If it hangs: --adopt.",
            ["its program on this host: pid {}".format(server["supervised_by"])],
        )
    return None


def _evidence(server: Json, lines: int) -> Json:
    """What will be gone after the stop."""
    table = {process.pid: process for process in _proc.processes()}
    of_it = [table[pid] for pid in server["pids"] if pid in table]
    smi, why = _proc.command(["nvidia-smi", "-q"], SMI_LIMIT_S)
    return {
        "server": server,
        "log": log_of(server["pid"], lines, server["run_id"]),
        "processes": [{"pid": p.pid, "ppid": p.ppid, "state": p.state, "argv": _proc.hide_argv(p.argv)} for p in of_it],
        "nvidia_smi": smi[:TAIL_BYTES] or None,
        "nvidia_smi_why": why or None,
        "at_utc": _proc.utc(time.time()),
    }


def _ended(server: Json, owned: Owned, grace_s: float) -> Json:
    apps, before = _apps(), _proc.gpu_memory_mib()
    pids = {process.pid for process in owned.scan()}
    done = stop(owned, grace_s)
    if server["run_id"] and done["stopped"]:
        _serverlog.remove(server["run_id"])  # its end is in the evidence
    pids |= {pid for pid, _ in owned.known}
    port = server["port"]
    port_free = None if port is None else _free_soon(port)
    memory = _settled(before, _held(pids, apps), pids)
    clean = done["stopped"] and port_free is not False and (memory is None or memory["back"] is not False)
    return dict(done, clean=clean, port=port, port_free=port_free, gpu_memory=memory)


def _free_soon(port: int) -> bool:
    for _ in range(50):
        if _proc.port_is_free(port):
            return True
        time.sleep(0.1)
    return False


def _apps() -> Optional[List[Tuple[int, int]]]:
    """(pid, MiB) of each process on a GPU; None where that cannot be asked."""
    said, why = _proc.command(_APPS, SMI_LIMIT_S)
    if why:
        return None
    rows = (re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", line) for line in said.splitlines())
    return [(int(row.group(1)), int(row.group(2))) for row in rows if row]


def _held(pids: "Sequence[int] | Set[int]", apps: Optional[List[Tuple[int, int]]]) -> Optional[int]:
    return None if apps is None else sum(mib for pid, mib in apps if pid in pids)


def _settled(before: Optional[List[int]], held: Optional[int], pids: Set[int]) -> Optional[Json]:
    """The driver frees memory a moment after the last process. Others use the GPUs too: what counts is that none of
    its processes is on a GPU, and that as much came free as they held."""
    if before is None:
        return None
    after: Optional[List[int]] = None
    back: Optional[bool] = None
    for _ in range(20):
        after, left = _proc.gpu_memory_mib(), _apps()
        if after is None or not held:
            # In a container nvidia-smi names processes by numbers that are not ours, or none at all.
            back = None
            break
        freed = sum(before) - sum(after)
        back = not _held(sorted(pids), left) and freed >= held - SLACK_MIB * len(before)
        if back:
            break
        time.sleep(0.5)
    return {"before_mib": before, "after_mib": after, "held_mib": held, "back": back}


# --- its log --------------------------------------------------------------------------------------


def log_of(pid: int, lines: int, run_id: Optional[str] = None) -> Json:
    """{source, lines, why}: the end of the file that its output goes to, of what its supervisor kept, or of its unit's
    journal; secrets hidden."""
    hidden = {value for value in _proc.secrets(_argv(pid), _proc.environment(pid)) if len(value) > 3}
    why = "where its output goes cannot be seen by this user"
    for number in (2, 1):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/{}/fd/{}".format(pid, number))
            why = "its output goes to {}: read it where it was started".format(target.split(":")[0])
            opened = "/proc/{}/fd/{}".format(pid, number)
            if stat.S_ISREG(os.stat(opened).st_mode):
                return {"source": target, "lines": _tail(_end_of(opened), lines, hidden), "why": None}
    files = [path for path in _serverlog.files(run_id) if os.path.exists(path)] if run_id else []
    if files:  # a supervisor of ours reads its output, or did
        return {"source": files[-1], "lines": _tail(b"".join(map(_end_of, files)), lines, hidden), "why": None}
    unit = re.search(r"/([\w@.\\-]+\.service)\s*$", _proc.text(_proc.read("/proc/{}/cgroup".format(pid)) or b""), re.M)
    if unit:
        said, failed = _proc.command(
            ["journalctl", "-u", unit.group(1), "-n", str(lines), "--no-pager", "-o", "cat"], 5
        )
        if said.strip():
            return {"source": unit.group(1), "lines": _tail(said.encode(), lines, hidden), "why": None}
        why = failed or why
    return {"source": None, "lines": [], "why": why}


def _argv(pid: int) -> Tuple[str, ...]:
    return _proc.parse_cmdline(_proc.read("/proc/{}/cmdline".format(pid)) or b"")


def _end_of(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        return file.read(TAIL_BYTES)


def _tail(text: bytes, lines: int, hidden: Set[str]) -> List[str]:
    full = [line.rpartition(b"\r")[2] for line in text.replace(b"\r\n", b"\n").split(b"\n") if line.strip()]
    return [_proc.hide(_proc.text(line[:2000]), hidden) for line in full[-max(1, lines) :]]
