"""Start one inference server and own it until the laptop says stop, or is gone.

Messages and documents: see `run`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from . import _ports, _proc
from ._owned import Owned, stop
from ._serverlog import Log, remove
from ._wire import failure

if TYPE_CHECKING:
    from ._wire import Talk

Json = Dict[str, Any]

DRAWS = 3  # of a port, where somebody else was quicker on it
TICK_S = 0.1  # this much later than it happened, at most, is it noticed that a server is ready, or dead
SCAN_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def run(args: Mapping[str, Any], talk: Talk) -> Json:
    """Supervise one server. Times in seconds.

    args:     argv, env (null unsets), cwd, port (int or "auto"; "{port}" in argv is replaced), run_id,
              ready {path, deadline_s}, lease_s, stop_grace_s, log_lines, watch (a regular expression without
              groups that count, for lines of its log that are worth telling); or
              {"reap": true, run_id, stop_grace_s}: stop what a supervisor that was killed left running
    events:   started {pid, port, started_at_unix} (again, where somebody took the port meanwhile) ·
              waiting {elapsed_s, last_log} · ready {after_s} · log {lines} · died {as below}
    messages: ping · log {lines} · stop. Silence longer than lease_s, or the end of the link, is a stop.
    returns:  {stopped, reason: asked|laptop_gone|lease|signal|died, signals: {TERM, KILL: how many were sent},
              left: [{pid, state, argv}], port, port_free, seconds, gpu_memory_mib: {before, after} or null};
              with watched: {lines, first} if lines matched `watch`;
              with died: {exit_code, signal, after_s, log} if the server ended by itself after it was ready.
              Errors port_in_use, server_died, server_not_healthy: {error, stop: {the same}}; all is gone then.
    """
    run_id = str(args["run_id"])
    if not re.fullmatch(r"[\w.:-]+", run_id):
        return failure(
            "usage",
            f"The run id {run_id!r} has characters that are not allowed.",
            "Use letters, digits, . _ -",
        )
    grace_s = float(args.get("stop_grace_s", 10))
    if args.get("reap"):
        stopped = stop(Owned(run_id), grace_s)
        remove(run_id)
        return dict(stopped, reason="asked")
    with Signals() as signals:
        return serve(args, talk, signals)


def serve(args: Mapping[str, Any], talk: Talk, signals: Signals, draws: int = DRAWS) -> Json:
    """One server from its port to its end; args and what is returned as in `run`.

    draws: how many ports are tried, within the deadline, where the port is "auto" and somebody else takes it before the
    server is ready.
    """
    began = time.monotonic()
    wanted = 0 if args["port"] == "auto" else int(args["port"])
    deadline_s = float(args["ready"].get("deadline_s", 300))
    for _ in range(1 if wanted else draws):
        try:
            reserved = _ports.Reservation(wanted)
        except _ports.Taken as taken:
            return _port_in_use(wanted, "is in use on this host; no server was started", list(taken.args))
        supervisor = Supervisor(args, reserved.port, talk, signals, until=began + deadline_s)
        try:
            ended = supervisor.run(float(args.get("stop_grace_s", 10)))
        finally:
            reserved.release()
        meanwhile = ended.get("error", {}).get("kind") == "port_in_use" and not supervisor.ready
        if not meanwhile or time.monotonic() - began > deadline_s:
            break
    return ended


def _port_in_use(port: int, how: str, details: List[str]) -> Json:
    return failure(
        "port_in_use",
        f"Port {port} {how}.",
        'Take another port (or "auto"), or stop the process that holds it.',
        details,
    )


class Supervisor:
    """One server's life: started, waited for, watched, stopped."""

    def __init__(self, args: Mapping[str, Any], port: int, talk: Talk, signals: Signals, until: float) -> None:
        """until: of `time.monotonic`, when it must be ready."""
        self.talk, self.signals, self.port, self.until = talk, signals, port, until
        self.run_id = str(args["run_id"])
        self.argv = [word.replace("{port}", str(port)) for word in args["argv"]]
        self.env: Dict[str, Optional[str]] = dict(args.get("env") or {})
        self.cwd: Optional[str] = args.get("cwd")
        self.deadline_s = float(args["ready"].get("deadline_s", 300))
        self.path = str(args["ready"]["path"])
        self.lease_s = float(args.get("lease_s", 60))
        self.log_lines = int(args.get("log_lines", 40))
        self.watch: Optional[str] = args.get("watch")
        self.log = Log({value for value in _proc.secrets(self.argv, self.env) if len(value) > 3}, self.run_id)
        self.owned = Owned(self.run_id)
        self.ready = False

    def run(self, grace_s: float) -> Json:
        memory_mib = _proc.gpu_memory_mib()
        self.begun = self.heard = time.monotonic()
        try:
            try:
                self.server = self._start()
            except (OSError, ValueError) as error:
                return self._not_started(error)
            reason = self._watch()
        finally:  # also when something unexpected happened: first of all nothing may be left
            stopped = stop(self.owned, grace_s)
            self.owned.release()
            self.log.close()
        stopped.update(reason=reason, port=self.port)
        stopped["port_free"] = reason != "taken" and _ports.becomes_free(self.port)
        stopped["gpu_memory_mib"] = _settled(memory_mib)
        watched = self.log.matching(self.watch) if self.watch else []
        if watched:
            stopped["watched"] = {"lines": len(watched), "first": watched[0]}
        return self._outcome(reason, stopped)

    def _start(self) -> subprocess.Popen[bytes]:
        env = dict(os.environ, PYTHONUNBUFFERED="1")
        for name, value in self.env.items():
            env.pop(name, None)
            if value is not None:
                env[name] = str(value)
        env[_proc.MARK] = self.run_id
        self.owned.adopt_orphans()
        server = subprocess.Popen(
            self.argv,
            env=env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.owned.own(server.pid)
        self.log.drain(server)
        now = time.time()
        self.talk.emit({"event": "started", "pid": server.pid, "port": self.port, "started_at_unix": now})
        return server

    def _watch(self) -> str:
        """Until there is a reason to stop; which."""
        health = Health(self.port, self.path)
        said = scanned = self.begun
        try:
            while True:
                if self.server.poll() is not None:
                    return "died"
                if self.signals.caught is not None:
                    return "signal"
                now = time.monotonic()
                if not self.ready:
                    if health.answered.is_set():
                        if self._is_answered_by_a_stranger():
                            return "taken"
                        self.ready = True
                        self.talk.emit({"event": "ready", "after_s": round(now - self.begun, 3)})
                    elif now > self.until:
                        self.health_said = health.last
                        return "not_healthy"
                    elif now - said >= 1:
                        said = now
                        self.talk.emit(self._waiting(now))
                if now - scanned > SCAN_S:
                    scanned = now
                    self.owned.scan(marks=False)
                reason = self._listen(now)
                if reason is not None:
                    return reason
        finally:
            health.stop()

    def _is_answered_by_a_stranger(self) -> bool:
        """Holders first: one that our server starts in between is ours all the same."""
        return bool(_ports.strangers(_ports.holders(self.port), self.owned.scan()))

    def _waiting(self, now: float) -> Json:
        last = self.log.last(1)
        return {
            "event": "waiting",
            "elapsed_s": round(now - self.begun, 1),
            "last_log": last[0][:300] if last else "",
        }

    def _listen(self, now: float) -> Optional[str]:
        """One message from the laptop, if any; a reason to stop, if any."""
        try:
            message = self.talk.receive(TICK_S)
        except EOFError:
            return "laptop_gone"
        if message is None:
            return "lease" if now - self.heard > self.lease_s else None
        self.heard = now
        if message.get("cmd") == "log":
            self.talk.emit({"event": "log", "lines": self.log.last(int(message.get("lines", self.log_lines)))})
        return "asked" if message.get("cmd") == "stop" else None

    def _outcome(self, reason: str, stopped: Json) -> Json:
        tail = self.log.told(self.log_lines)
        command = " ".join(_proc.hide_argv(self.argv))
        if reason == "taken" or self._was_in_the_way(reason, stopped):
            how = f"was taken by somebody else while the server was starting there: {command}"
            return dict(_port_in_use(self.port, how, _ports.told(_ports.holders(self.port)) + tail), stop=stopped)
        if reason == "died":
            died = _death(self.server.returncode, time.monotonic() - self.begun, tail)
            if self.ready:
                self.talk.emit(dict(died, event="died"))
                return dict(stopped, died=died)
            how = f"exit code {died['exit_code']}" if died["signal"] is None else f"signal {died['signal']}"
            what = f"The server ended with {how} before it was healthy: {command}"
            return dict(
                failure("server_died", what, "Its last lines, above, usually name the cause.", tail),
                stop=stopped,
            )
        if reason == "not_healthy":
            what = (
                f"The server ran but did not answer {self.path} with 200 within {self.deadline_s:g} s "
                f"({self.health_said}): {command}"
            )
            next = "Raise the deadline if its last lines, above, show progress. It has been stopped."
            return dict(failure("server_not_healthy", what, next, tail), stop=stopped)
        return stopped

    def _was_in_the_way(self, reason: str, stopped: Json) -> bool:
        """Nothing of ours is left, and still somebody listens: where that is no container of ours, it was in our
        server's way. One that ended by itself may have been met by somebody whom we cannot see."""
        if reason not in ("died", "not_healthy") or stopped["left"] or stopped["port_free"]:
            return False
        found = _ports.holders(self.port)
        return bool(_ports.strangers(found, ())) or (reason == "died" and not found)

    def _not_started(self, error: Exception) -> Json:
        what = f"The server could not be started: {_proc.hide(str(error), self.log.hidden)}"
        return failure("server_died", what, "Check the command, the working folder and the interpreter's path.")


def _death(code: int, after_s: float, log: List[str]) -> Json:
    name: Optional[str] = None
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
    return {
        "exit_code": code if code >= 0 else None,
        "signal": name,
        "after_s": round(after_s, 3),
        "log": log,
    }


# --- after the stop -------------------------------------------------------------------------------


def _settled(before: Optional[List[int]]) -> Optional[Json]:
    """GPU memory before the start and after the stop; the driver frees it a moment after the last process.
    Others use the GPUs too, so a difference is reported, not judged."""
    if before is None:
        return None
    after = _proc.gpu_memory_mib()
    for _ in range(5):
        if after is None or all(now <= then + 64 for now, then in zip(after, before)):
            break
        time.sleep(1)
        after = _proc.gpu_memory_mib()
    return {"before": before, "after": after}


# --- the parts around it --------------------------------------------------------------------------


class Health:
    """Asks the server, in a thread so that the laptop is heard meanwhile. `answered` is set by a 200."""

    def __init__(self, port: int, path: str) -> None:
        self.answered = threading.Event()
        self.last = "it was never reachable"
        self._done = threading.Event()
        threading.Thread(target=self._ask, args=(port, path), daemon=True).start()

    def _ask(self, port: int, path: str) -> None:
        while not self._done.is_set():
            try:
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as link:
                    link.request("GET", path)
                    status = link.getresponse().status
                if status == 200:
                    self.answered.set()
                    return
                self.last = f"last answer: HTTP {status}"
            except (OSError, http.client.HTTPException) as error:
                self.last = f"last try: {error or type(error).__name__}"
            self._done.wait(TICK_S)

    def stop(self) -> None:
        self._done.set()


class Signals:
    """TERM, HUP and INT to us become a reason to stop the server first (a main thread can catch them)."""

    def __init__(self) -> None:
        self.caught: Optional[int] = None
        self._before: Dict[signal.Signals, Any] = {}

    def _note(self, number: int, _frame: object) -> None:
        self.caught = number

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
