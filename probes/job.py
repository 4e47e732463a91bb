"""What runs in a job of a queueing system, and all that runs there: start a server, ask it a script, stop it, write
down what came. Nobody listens meanwhile; the laptop may be gone. See `run`.

One process on each node of the job. Rank 0 asks; the others hold their part of the server until rank 0 is done, or
until it dies. Whatever ends this process, the servers end too: by itself, by a guard beside it that outlives it, and
by the job's last step, which runs this program again with DIAG_JOB=reap.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any, Dict, List, Mapping, Optional

from . import _jobfiles, _proc, host, supervise
from ._owned import Owned, stop
from ._script import Asker
from ._serverlog import remove

Json = Dict[str, Any]

FOREVER_S = 1e9
TOLD_S = 1.0
GUARD_GRACE_S = 5.0
FIRST_PORT, PORTS = 20000, 9000


def run(args: Mapping[str, Any], talk: object) -> Json:
    """args: run_id (the mark of this job's processes), argv, env, ready, script (see _script.py), facts (what
    probes/host.py is asked, or null), stop_grace_s, log_lines; in the environment DIAG_JOB_FOLDER. Filled in, in argv:
    {port}, {rank}, {nnodes}, {head} (address of rank 0), {head_port}.

    -> {ended: done | signal | reaped}, for the job's log. What counts is written to the job's folder: result.json.gz
    {job, restart, nodes, node, began_unix, server: as `_Desk.told`, ranks [facts of each]}, or ended.json
    where it was told to stop before that; while it runs progress.json.
    """
    grace_s = float(args.get("stop_grace_s", 10))
    if os.environ.get("DIAG_JOB") == "reap":
        stopped = stop(Owned(str(args["run_id"])), grace_s)
        remove(str(args["run_id"]))
        return dict(stopped, ended="reaped")
    guard = _guarded(str(args["run_id"]))
    try:
        stop(Owned(str(args["run_id"])), grace_s)  # of an earlier start of this job, on a node that came back
        with supervise.Signals() as signals:
            return {"ended": _Rank(args, signals).work()}
    finally:
        if guard is not None:
            os.write(guard, b"done")
            os.close(guard)


def _guarded(run_id: str) -> Optional[int]:
    """A process of its own session that stops what we leave behind when we are killed. -> where to tell it that
    nothing is left; None where it could not be made."""
    read_fd, write_fd = os.pipe()
    try:
        child = os.fork()
    except OSError:
        return None
    if child:
        os.close(read_fd)
        os.waitpid(child, 0)
        return write_fd
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.dup2(read_fd, 3)
        os.closerange(4, 256)  # the job's own output among them, or the step would never end
        told = b""
        while True:
            more = os.read(3, 16)
            if not more:
                break
            told += more
        if told != b"done":
            stop(Owned(run_id), GUARD_GRACE_S)
    finally:
        os._exit(0)


class _Rank:
    """One node's share of the job."""

    def __init__(self, args: Mapping[str, Any], signals: supervise.Signals) -> None:
        env = os.environ
        self.args, self.signals = args, signals
        self.began_unix = time.time()
        self.folder = env["DIAG_JOB_FOLDER"]
        self.rank = int(env.get("SLURM_PROCID") or 0)
        self.nnodes = int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or 1)
        self.job = str(env.get("SLURM_JOB_ID") or "")
        self.restart = int(env.get("SLURM_RESTART_COUNT") or 0)
        self.node = env.get("SLURMD_NODENAME") or socket.gethostname()
        self.nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or self.node
        self.fills = {
            "{rank}": str(self.rank),
            "{nnodes}": str(self.nnodes),
            "{head}": env.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1",
            "{head_port}": str(FIRST_PORT + (int(self.job or 0) * 13 + self.restart) % PORTS),
        }

    def work(self) -> str:
        if self.nnodes > 1 and self.args.get("facts"):
            _jobfiles.write(self._path("facts", self.rank), host.run(self.args["facts"]))
        told = self._serve()
        ended = "done" if self.signals.caught is None else "signal"
        if self.rank == 0 and ended == "done":
            self._write(told)
        elif self.rank == 0:
            _jobfiles.write(os.path.join(self.folder, "ended.json"), {"ended": ended, "restart": self.restart})
        return ended

    def _serve(self) -> Json:
        desk = _Desk(self, self.args.get("script") or [])
        talk: Any = desk  # what a supervisor wants of a line to the laptop
        ready = dict(self.args["ready"])
        asked = {
            "argv": [self._filled(str(word)) for word in self.args["argv"]],
            "env": self.args.get("env") or {},
            "port": "auto",
            "run_id": self.args["run_id"],
            "ready": ready if self.rank == 0 else dict(ready, deadline_s=FOREVER_S),
            "lease_s": FOREVER_S,
            "stop_grace_s": self.args.get("stop_grace_s", 10),
            "log_lines": self.args.get("log_lines", 40),
        }
        # Ranks that another one has left do not wait for it to come back.
        ended = supervise.serve(asked, talk, self.signals, draws=1 if self.nnodes > 1 else supervise.DRAWS)
        if self.rank and ended.get("reason") != "asked":
            _jobfiles.write(self._path("died", self.rank), {"node": self.node, "ended": ended})
        if self.rank == 0 and self.nnodes > 1:
            _jobfiles.write(self._path("over"), {})
        return dict(desk.told(), ended=ended)

    def _filled(self, word: str) -> str:
        for placeholder, value in self.fills.items():
            word = word.replace(placeholder, value)
        return word

    def is_over(self) -> bool:
        """For the ranks that do not ask."""
        return self.rank > 0 and os.path.exists(self._path("over"))

    def fallen(self) -> Optional[Json]:
        """For the one that asks: the end of another rank's part, if it has ended."""
        if self.rank or self.nnodes == 1:
            return None
        found = (_jobfiles.read(self._path("died", rank)) for rank in range(1, self.nnodes))
        return next((one for one in found if one is not None), None)

    def _write(self, told: Json) -> None:
        facts = [_jobfiles.read(self._path("facts", rank)) for rank in range(self.nnodes)] if self.nnodes > 1 else []
        document = {
            "schema": 1,
            "job": self.job,
            "restart": self.restart,
            "nodes": self.nodes,
            "node": self.node,
            "began_unix": self.began_unix,
            "server": told,
            "ranks": facts,
        }
        _jobfiles.write(os.path.join(self.folder, "result.json.gz"), document)

    def progress(self, document: Json) -> None:
        if self.rank == 0:
            with contextlib.suppress(OSError):
                _jobfiles.write(os.path.join(self.folder, "progress.json"), dict(document, node=self.node))

    def _path(self, *parts: object) -> str:
        """Of a file that ranks tell each other by; a job that is started again has others."""
        return os.path.join(self.folder, "-".join(str(part) for part in (*parts, self.restart)) + ".json")


class _Desk:
    """In the place of a laptop: hears what the supervisor says, has the script asked when the server is ready, and
    says stop when that is done."""

    def __init__(self, rank: _Rank, script: List[Mapping[str, Any]]) -> None:
        self._rank, self._script = rank, script
        self._begun = self._told_at = time.monotonic()
        self._over = threading.Event()
        self._ready_after_s: Optional[float] = None
        self._exchanges: List[Json] = []
        self._failed: Optional[str] = None
        self._fallen: Optional[Json] = None
        self._looked_at = 0.0
        self._port = 0

    def told(self) -> Json:
        """{asked: whether all of the script was, ready_after_s or null, total_s, exchanges [as Asker.ask], failed: why
        asking failed, or null, fallen: the end of another rank, or null}"""
        return {
            "asked": self._over.is_set() and self._failed is None and self._fallen is None,
            "ready_after_s": self._ready_after_s,
            "total_s": round(time.monotonic() - self._begun, 3),
            "exchanges": self._exchanges,
            "failed": self._failed,
            "fallen": self._fallen,
        }

    # what a supervisor wants of a line to the laptop

    def emit(self, event: Json) -> None:
        phase = event.get("event")
        if phase == "started":
            self._port = int(event["port"])
        if phase == "ready" and self._rank.rank == 0:
            self._ready_after_s = float(event["after_s"])
            threading.Thread(target=self._ask, daemon=True).start()
        if time.monotonic() - self._told_at > TOLD_S or phase in ("started", "ready"):
            self._say(str(phase), str(event.get("last_log") or ""))

    def receive(self, timeout_s: Optional[float]) -> Optional[Json]:
        if self._over.wait(timeout_s) or self._rank.is_over():
            return {"cmd": "stop"}
        if time.monotonic() - self._looked_at > TOLD_S:
            self._looked_at = time.monotonic()
            self._fallen = self._rank.fallen()
        return {"cmd": "stop"} if self._fallen is not None else None

    # asking

    def _ask(self) -> None:
        try:
            asker = Asker(self._port, self._over)
            self._exchanges = asker.ask(self._script, lambda what: self._say("asking", what))
        except Exception as error:  # whatever it is, the server must not wait for ever
            self._failed = "{}: {}".format(type(error).__name__, error)
        self._over.set()

    def _say(self, phase: str, said: str) -> None:
        self._told_at = time.monotonic()
        elapsed = round(self._told_at - self._begun, 1)
        last = _proc.text(said.encode("utf-8", "backslashreplace"))[:300]
        self._rank.progress({"phase": phase, "elapsed_s": elapsed, "said": last})
