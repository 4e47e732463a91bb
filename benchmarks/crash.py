"""Crashes of a fix, by the hundred, over a real OpenSSH server: a table of what was done and what came of it.

    python benchmarks/crash.py [--second 4] [--laptop 5]

The fix changes two files. Struck is after every single operation on the disk, of apply and of revert: the program on
the host is killed there, or in the middle of a write, or its connection is cut; with --second N also again, after every
N-th operation of what was to put it right; with --laptop N through everything that `diag fix` does, for every N-th
operation (1: each). After each strike: is each file wholly old or wholly new, does `fix status` say what is so, and do
apply and revert each run to completion? A thread reads the files all the while. Needs sshd; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diag.errors import HostProgramFailed, LinkLost
from diag.fixes import transaction
from diag.hosts import courier
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from tests import conftest
from tests.fixes import crashing
from tests.fixes.crashing import FIX, Rig, Watch

Row = Mapping[str, Any]


@contextmanager
def real_sshd(folder: Path) -> Iterator[Host]:
    server = conftest._start(conftest._sshd_binary(), folder, "")
    try:
        if not conftest._ready(server):
            raise SystemExit(f"sshd did not start: {server.log.read_text()}")
        yield server.host
    finally:
        for pid in server.session_pids():
            conftest._kill(pid)
        server.process.kill()
        server.process.wait()


def killed(rig: Rig, host: Host, act: str, hows: Sequence[str], again: Sequence[int]) -> tuple[int, list[Row]]:
    """Each crash is a process of its own on the host, all in one exec; (operations of `act`, a row each)."""
    args = {"action": "batch", "hows": hows, "then": ["apply", "revert"], "again": again, **rig.args(act)}
    with connect(rig.host(host)) as transport:
        document = courier.call(transport, "fixtx", args, timeout_s=1800)
    rows = [row for row in document["rows"] if row["struck"] and row.get("struck_again", True)]
    return document["operations"], rows


def from_the_laptop(rig: Rig, host: Host, act: str, how: str, operations: Sequence[int]) -> Iterator[Row]:
    """All that a person runs: the struck command, status, and the command that puts it right."""
    host = rig.host(host)
    rig.restore("apply")
    with connect(host) as transport:
        before = transaction.inspect(transport, FIX, str(rig.site))
    for after in operations:
        for then in ("apply", "revert"):
            rig.restore(act)
            rig.order(after=after, how=how)
            try:
                with connect(host) as transport:
                    _do(transport, act, rig, before)
                continue  # one operation fewer than last time: nothing was struck
            except (LinkLost, HostProgramFailed):
                pass
            with connect(host) as transport:
                while (seen := transaction.inspect(transport, FIX, str(rig.site)).standing).holder is not None:
                    pass
                row = {"act": act, "how": how, "after": after, "then": then, "state": seen.state, "lock": None}
                row["seen"] = [crashing.sha(content) for content in rig.contents()]
                _do(transport, then, rig, before)
                end = transaction.inspect(transport, FIX, str(rig.site)).standing.state
            row.update(end=[crashing.sha(content) for content in rig.contents()], end_state=end, error=None)
            yield {**row, "litter": rig.litter()}


def _do(transport: Any, act: str, rig: Rig, before: transaction.Installed) -> None:
    if act == "apply":
        transaction.apply_files(transport, FIX, before, rig.changes())
    else:
        transaction.revert(transport, FIX, before)


class Table:
    """Rows as they come, and the sums."""

    def __init__(self) -> None:
        self.faults = self.looks = 0
        self.found = Counter[str]()
        print(f"{'fault':34} {'of':7} {'ops':>4} {'faults':>7}  {'status then':44} {'s':>6}")

    def add(self, kind: str, act: str, operations: int, rows: Sequence[Row], seconds: float) -> None:
        states = Counter(row["state"] for row in rows)
        said = ", ".join(f"{states[state]} {state}" for state in sorted(states))
        print(f"{kind:34} {act:7} {operations:4} {len(rows):7}  {said:44} {seconds:6.1f}", flush=True)
        self.faults += len(rows)
        for row in rows:
            for problem in crashing.problems(row):
                print(f"  {problem}")
                self.found[_sort(problem)] += 1

    def close(self, torn: int) -> None:
        if torn:
            self.found["half-written files"] += torn
        kinds = ("half-written files", "untrue statuses", "not put right")
        sums = ", ".join(f"{self.found[kind]} {kind}" for kind in kinds)
        print(f"\n{self.faults} injected faults, {self.looks} looks at the files in between: {sums}.")


def _sort(problem: str) -> str:
    if "half written" in problem:
        return "half-written files"
    return "untrue statuses" if ": status " in problem or "the lock" in problem else "not put right"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--second", type=int, default=4, metavar="N")
    parser.add_argument("--laptop", type=int, default=5, metavar="N")
    options = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    table = Table()
    with (
        tempfile.TemporaryDirectory(prefix="diag-crash-") as folder,
        tempfile.TemporaryDirectory(prefix="diag-crash-", dir=memory) as root,
        crashing.doubled(Path(folder) / "bundle"),
        real_sshd(Path(folder)) as host,
    ):
        rig = Rig.build(Path(root))
        rig.prepare(host)
        with Watch(rig) as watch:
            for act in ("apply", "revert"):
                strike(table, rig, host, act, options)
        table.looks = watch.looks
        table.close(len(watch.torn))


def strike(table: Table, rig: Rig, host: Host, act: str, options: argparse.Namespace) -> None:
    began = time.perf_counter()

    def told(kind: str, count: int, rows: Sequence[Row]) -> None:
        nonlocal began
        table.add(kind, act, count, rows, time.perf_counter() - began)
        began = time.perf_counter()

    count, rows = killed(rig, host, act, ["kill"], [0])
    told("killed after an operation", count, rows)
    told("killed in the middle of a write", count, killed(rig, host, act, ["tear"], [0])[1])
    if options.second:
        second = range(1, 60, options.second)
        told("killed, and what puts it right too", count, killed(rig, host, act, ["kill"], list(second))[1])
    told("connection cut", count, crashing.cut_off(rig, host, act, range(1, count + 1)))
    if options.laptop:
        some = range(1, count + 1, options.laptop)
        for how in ("kill", "cut"):
            told(f"all of diag fix, {how}", count, list(from_the_laptop(rig, host, act, how, some)))


if __name__ == "__main__":
    main()
