"""The processes of one run, and their end.

What is ours to stop: every process that carries our mark in its environment or descends from the server. On
Linux this process becomes a child subreaper, so a worker that forks twice, calls setsid and renames itself
(or overwrites its environment, as setproctitle does) still has us as its ancestor; where that is not so, what
is in the server's process group or writes to its output pipe is taken too. Nothing is ever selected by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from . import _proc

KILL_LIMIT_S = 15.0
_PR_SET_CHILD_SUBREAPER = 36


class Owned:
    """The processes of one run. Remembers identities (pid with start time): a reused pid is not touched.

    run_id "": a server that somebody else started. It has no mark, and its output may go where that of others goes,
    so only what descends from it, or is in the process group that it leads, is taken.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.server: Optional[int] = None
        self.known: Set[Tuple[int, str]] = set()
        self.foreign: Set[Tuple[int, str]] = set()
        self.adopts = False

    def adopt_orphans(self) -> None:
        """Become the parent of every orphan below us (Linux). Children we have now are not the server's."""
        self.foreign = {process.key for process in _proc.processes(False) if process.ppid == os.getpid()}
        self.adopts = _subreaper(True)

    def own(self, pid: int) -> None:
        self.server = pid
        self.known = {process.key for process in _proc.processes(False) if process.pid == pid}

    def release(self) -> None:
        if self.adopts:
            _subreaper(False)

    def scan(self, marks: bool = True) -> List[_proc.Process]:
        """What is alive of this run, now; reaps the dead handed to us. `marks`: also read environments."""
        table = _proc.processes(False)
        mine = {process.pid for process in table if process.key in self.known}
        if marks and self.run_id:
            strangers = [process for process in table if process.pid not in mine and process.key not in self.foreign]
            mine |= _proc.marked(self.run_id, [process.pid for process in strangers])
            if not self.adopts:  # a re-parented worker that overwrote its environment still writes to our pipe
                pipes = {pipe for pid in mine for pipe in _proc.outputs(pid)}
                mine |= {process.pid for process in strangers if pipes & _proc.outputs(process.pid)}
        mine.discard(os.getpid())
        grown = True
        while grown:
            more = {process.pid for process in table if self._belongs(process, mine)}
            grown = not more <= mine
            mine |= more
        alive = [process for process in table if process.pid in mine and not self._reap(process)]
        self.known |= {process.key for process in alive}
        return alive

    def _belongs(self, process: _proc.Process, mine: Set[int]) -> bool:
        if process.key in self.foreign or process.pid == os.getpid():
            return False
        if self.adopts:
            return process.ppid in mine or process.ppid == os.getpid()
        return process.ppid in mine or process.group == self.server

    def _reap(self, process: _proc.Process) -> bool:
        """True if it is dead. The server itself is left to Popen, which keeps its exit code."""
        if process.state not in "ZX":
            return False
        if process.ppid == os.getpid() and process.pid != self.server:
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)
        return True


def stop(owned: Owned, grace_s: float) -> Dict[str, Any]:
    """TERM to all, wait, KILL to all, until a look at the process table finds none of them, twice."""
    begun = time.monotonic()
    sent = {"TERM": 0, "KILL": 0}
    told: Set[Tuple[int, str]] = set()
    clear = 0
    while True:
        alive = owned.scan()
        clear = 0 if alive else clear + 1
        waited = time.monotonic() - begun
        if clear == 2 or waited > grace_s + KILL_LIMIT_S:
            break
        name = "TERM" if waited <= grace_s else "KILL"
        for process in alive:
            if name == "KILL" or process.key not in told:
                told.add(process.key)
                sent[name] += _kill(process.pid, signal.SIGTERM if name == "TERM" else signal.SIGKILL)
        time.sleep(0.05)
    left = [
        {"pid": p.pid, "state": p.state, "argv": _proc.hide_argv(p.argv)}
        for p in _proc.processes()
        if p.key in {process.key for process in alive} and p.state not in "ZX"
    ]
    return {"stopped": not left, "signals": sent, "left": left, "seconds": round(time.monotonic() - begun, 3)}


def _kill(pid: int, number: int) -> int:
    try:
        os.kill(pid, number)
    except OSError:  # gone meanwhile, or not ours to signal: the next look tells
        return 0
    return 1


def _subreaper(on: bool) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
