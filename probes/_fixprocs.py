"""Which code each running server holds: what the files were when it started, by the journal, against what they are."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _proc, servers
from ._fixjournal import clock

Json = Dict[str, Any]
Told = Tuple[str, str]  # (stale|current|unknown, why)

CLOCK_SET_S = 2.0  # two clocks that drift apart by more were not left to themselves
WALL_SLACK_S = 1.0  # start times by the wall clock are known to about a second
TICK_SLACK_S = 0.05


def running(site: str, package: str, changes: Sequence[Json], present: Json) -> Tuple[List[Json], List[Json]]:
    """([{pid, argv, started_at_unix, port, worker_of, code: stale|current|unknown, why}], unknown).

    The servers of the installation in `site`, each followed by its workers (worker_of: the server's pid). changes: as
    the journal has them; present: {path: sha256} now.
    """
    unknown: List[Json] = []
    try:
        found = servers.find(unknown, [package])[0]
        table = {process.pid: process for process in _proc.processes()}
    except Exception as error:
        return [], [{"what": "running servers", "why": "{}: {}".format(type(error).__name__, error)}]
    now = clock()
    rows: List[Json] = []
    for server in found:
        process, place = table.get(server["pid"]), server.get("site_packages")
        if process is None or (place is not None and os.path.realpath(place) != os.path.realpath(site)):
            continue
        if place is None:
            told: Told = (
                "unknown",
                "which installation it runs cannot be read (another user's process)",
            )
        else:
            told = code_of(process, changes, present, now)
        rows.append(_row(process, server.get("port"), None, told))
        rows += [
            _row(worker, None, process.pid, told)
            for worker, told in _workers(process, told, list(table.values()), changes, present, now)
        ]
    return rows, unknown


def _row(process: _proc.Process, port: Optional[int], worker_of: Optional[int], told: Told) -> Json:
    return {
        "pid": process.pid,
        "argv": _proc.hide_argv(process.argv),
        "started_at_unix": _proc.started_unix(process),
        "port": port,
        "worker_of": worker_of,
        "code": told[0],
        "why": told[1],
    }


def _workers(
    parent: _proc.Process,
    above: Told,
    table: Sequence[_proc.Process],
    changes: Sequence[Json],
    present: Json,
    now: Json,
) -> List[Tuple[_proc.Process, Told]]:
    """All below the parent that run the same program. A forked one has its parent's code, whenever it started."""
    found: List[Tuple[_proc.Process, Told]] = []
    for process in table:
        if process.ppid != parent.pid or process.state in "ZX":
            continue
        told = code_of(process, changes, present, now)
        mine, theirs = (_proc.read("/proc/{}/auxv".format(each.pid)) for each in (process, parent))
        if mine and mine == theirs:  # addresses that each exec draws anew
            told = (above[0], "forked from {}: {}".format(parent.pid, above[1]))
        elif not mine and told[0] != above[0]:
            told = ("unknown", "whether it was forked from {} cannot be seen".format(parent.pid))
        if _same_program(process, parent):
            found.append((process, told))
        found += _workers(process, told, table, changes, present, now)
    return found


def _same_program(process: _proc.Process, parent: _proc.Process) -> bool:
    if "resource_tracker" in " ".join(process.argv):  # of multiprocessing; it imports nothing of the engine
        return False
    try:
        return os.path.samefile("/proc/{}/exe".format(process.pid), "/proc/{}/exe".format(parent.pid))
    except OSError:
        return servers.recognise(process.argv) is not None or process.argv[:1] == parent.argv[:1]


def code_of(process: _proc.Process, changes: Sequence[Json], present: Json, now: Json) -> Told:
    """Pure but for the machine's own constants. `changes` in the order of time."""
    if not changes:
        return "current", "this tool changed nothing here"
    ran, when = changes[0]["old"], "before"
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        since, why = _since(process, change["first"], now)
        if since is None:
            return "unknown", why
        if since < 0:
            continue
        since, why = (-1.0, "") if change["last"] is None else _since(process, change["last"], now)
        if since is None or since < 0:
            return "unknown", why or "it started while the files were being changed"
        ran, when = change["new"], "after"
        if ran != (changes[at + 1]["old"] if at + 1 < len(changes) else present):
            return "unknown", "someone else changed the files after us, and when is not known"
        break
    if ran == present:
        return "current", "it started {} our change, and the files are as they were then".format(when)
    return "stale", "it started before the files changed"


def _since(process: _proc.Process, mark: Json, now: Json) -> Tuple[Optional[float], str]:
    """Seconds from a mark of the journal to the start of the process; None, and why, where that cannot be told."""
    if mark.get("boot") and now["boot"]:  # the wall clock does not matter
        if mark["boot"][0] != now["boot"][0]:
            return float("inf"), ""  # the machine was started anew since
        if mark["boot"][1] != now["boot"][1]:
            return None, "the change was made in another time namespace (a container)"
        return _clear(int(process.start) / os.sysconf("SC_CLK_TCK") - mark["up"], TICK_SLACK_S)
    started = _proc.started_unix(process)
    if started is None:
        return None, "its start is not known"
    drift = (now["time"] - now["up"]) - (mark["time"] - mark["up"]) if "up" in mark else 0.0
    if abs(drift) > CLOCK_SET_S or now["time"] < mark["time"]:
        return None, "the host's clock was set since the change, or the host was restarted"
    return _clear(started - mark["time"], WALL_SLACK_S)


def _clear(seconds: float, slack: float) -> Tuple[Optional[float], str]:
    return (seconds, "") if abs(seconds) > slack else (None, "it started at the time of the change")
