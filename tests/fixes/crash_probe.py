"""Stands in for probes/fixtx.py on the host of a crash test: the same transaction, struck after a given operation.

Sent by the tests alone (tests/fixes/crashing.py); what `diag` ships has no such door. The orders lie in a file that the
variable DIAG_TEST_ORDERS names: {"after": k, "how": kill|tear|cut|wait, "gate": path, "wait": seconds for the lock}.
"""

# Host-side code, as in probes/.
# ruff: noqa: PTH104, PTH108, PTH110, PTH118, PTH120, PTH123
from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import _fixjournal, _fixstatus
from . import fixtx_real as real  # type: ignore[attr-defined]  # beside it on the host
from ._fixfiles import Ops, sha256_of
from ._fixjournal import holder, state_dir

Json = dict[str, Any]


class Struck(Ops):
    """kill: SIGKILL after operation `after` (from 1); tear: in the middle of it, if it is a write; cut: the connection
    goes after it, and this process lives on; wait: nothing happens. Both then wait for the file `gate`, if given."""

    def __init__(self, after: int = 0, how: str = "kill", gate: str | None = None) -> None:
        super().__init__()
        self.after, self.how, self.gate = after, how, gate
        self.done: list[str] = []

    def write(self, fd: int, data: bytes) -> None:
        torn = self.how == "tear" and len(self.done) + 1 == self.after
        super().write(fd, data[: len(data) // 2] if torn else data)

    def did(self, name: str) -> None:
        self.done.append(name)
        if len(self.done) != self.after:
            return
        if self.how in ("cut", "wait"):
            if self.how == "cut":
                cut()
            while self.gate is not None and not os.path.exists(self.gate):
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def cut() -> None:
    """Kill the sshd process that serves this connection."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        if name.startswith("sshd"):
            os.kill(pid, signal.SIGKILL)
            return
        pid = int(rest.split()[1])
    raise RuntimeError("there is no sshd above this process")


def run(args: Json, talk: Any = None) -> Json:
    if args["action"] == "batch":
        return batch(args)
    if args["action"] == "chain":
        return chain(args, talk)
    orders: Json = {}
    path = os.environ.get("DIAG_TEST_ORDERS", "")
    if args["action"] in ("apply", "revert") and os.path.exists(path):
        with open(path) as file:
            orders = json.load(file)
        os.unlink(path)
    ops = Struck(orders.get("after", 0), orders.get("how", "kill"), orders.get("gate"))
    _fixjournal.LOCK_WAIT_S = orders.get("wait", _fixjournal.LOCK_WAIT_S)
    document: Json = real.run(args, talk, ops)
    return document


# --- many crashes in one exec: a process of its own for each ----------------------------------------------------------


def batch(args: Json) -> Json:
    """args: site (folder), start (its copy and the state's, to begin each time from), act, then: [apply, revert],
    hows, calls {apply, revert}, again: what comes after is killed, too, after these operations (0: it is not).
    -> {"operations": n, "rows": [see `aftermath`]}"""
    quick()
    rows: list[Json] = []
    names = in_child(lambda: counted(args))["names"]
    again = args.get("again", [0])
    for after, name in enumerate(names, 1):
        for how in args["hows"]:
            if how != "tear" or name == "write":
                rows += [dict(one(args, after, how, then, k), name=name) for then in args["then"] for k in again]
    restore(args)
    return {"operations": len(names), "rows": rows}


def one(args: Json, after: int, how: str, then: str, again: int = 0) -> Json:
    restore(args)
    killed = in_child(lambda: real.run(dict(args["calls"][args["act"]]), None, Struck(after, how)))
    row = {"act": args["act"], "after": after, "how": how, "struck": killed.get("signal") == signal.SIGKILL}
    if again:
        second = in_child(lambda: real.run(dict(args["calls"][then]), None, Struck(again)))
        row.update(again=again, struck_again=second.get("signal") == signal.SIGKILL)
    return dict(row, **in_child(lambda: aftermath(args, then)))


def quick() -> None:
    """What these tests do not look at: other processes, and the compiler."""
    _fixstatus._processes = lambda *_: ([], [])
    real._compile = lambda *_: sys.executable


def counted(args: Json) -> Json:
    restore(args)
    ops = Struck()
    document = real.run(dict(args["calls"][args["act"]]), None, ops)
    return {"names": ops.done, "document": document}


def in_child(act: Callable[[], Json]) -> Json:
    """What it returns, from a process of its own; {"signal": n} when that was killed."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(there)
            with os.fdopen(here, "w") as out:
                json.dump(act(), out)
            code = 0
        finally:
            os._exit(code)
    os.close(here)
    with os.fdopen(there) as answer:
        text = answer.read()
    ended = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(ended):
        return {"signal": os.WTERMSIG(ended)}
    return dict(json.loads(text))


def restore(args: Json) -> None:
    """By renames, so that one who watches the files sees no half copy."""
    now = os.path.dirname(args["site"])
    for name in (now + ".new", now + ".old"):
        shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(args["start"], now + ".new")
    if os.path.exists(now):
        os.rename(now, now + ".old")
    os.rename(now + ".new", now)


def aftermath(args: Json, then: str) -> Json:
    """What is there after the strike, what `status` says, and what `then` makes of it."""
    seen, told = hashes(args), _fixstatus.status(dict(args["calls"]["revert"]))
    done = real.run(dict(args["calls"][then]))
    return {
        "seen": seen,
        "state": told["state"],
        "is": [each["is"] for each in told["files"]],
        "lock": told["lock"],
        "then": then,
        "error": done.get("error"),
        "recovered": done.get("recovered"),
        "end": hashes(args),
        "end_state": _fixstatus.status(dict(args["calls"]["revert"]))["state"],
        "litter": [name for _, _, names in os.walk(args["site"]) for name in names if name.endswith(".diag")],
    }


def hashes(args: Json) -> list[str | None]:
    return [sha256_of(os.path.join(args["site"], name)) for name in args["names"]]


# --- one lost connection after the other ------------------------------------------------------------------------------


def chain(args: Json, talk: Any) -> Json:
    """Look at what the strike before left (args: look), send it as an event, begin anew, cut at operation `after`."""
    quick()
    if args.get("look") is not None:
        while holder(state_dir()) is not None:  # the one before lives on without its connection, to its own end
            time.sleep(0.01)
        talk.emit(aftermath(args, args["look"]))
        talk.receive(30)  # a cut connection loses what it has not yet delivered
    restore(args)
    ops = Struck(args["after"], "cut") if args.get("after") else Struck()
    document: Json = real.run(dict(args["calls"][args["act"]]), None, ops)
    return {"names": ops.done, "document": document}
