"""Two operators at once, and a lock that its holder does not give back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diag.errors import HostProgramFailed, PreconditionFailed
from diag.fixes import transaction
from diag.hosts.transport import connect
from tests.conftest import Sshd
from tests.fixes.crashing import FIX, Rig, doubled

ROUNDS = 150

# Both begin at the same instant, in processes of their own; no waiting for the lock, so that one of them is refused
# whenever they meet.
CROWD = """
import json, os, sys
from probes import _fixjournal, _fixstatus, fixtx
calls, rounds, wait = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
_fixjournal.LOCK_WAIT_S = wait
_fixstatus._processes = lambda *_: ([], [])
fixtx._compile = lambda *_: sys.executable
os.fsync = lambda fd: None

def child(call, start, out):
    os.read(start, 1)
    done = fixtx.run(json.loads(json.dumps(call)))
    os.write(out, json.dumps({"pid": os.getpid(), "act": call["action"], "done": done}).encode() + b"\\n")
    os._exit(0)

for number in range(rounds):
    start, go = os.pipe()
    there, out = os.pipe()
    pids = []
    for call in calls[number % len(calls)]:
        pid = os.fork()
        if pid == 0:
            child(call, start, out)
        pids.append(pid)
    os.write(go, b"x" * len(pids))
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(out)
    with os.fdopen(there) as answers:
        print(json.dumps([json.loads(line) for line in answers]))
    os.close(start), os.close(go)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="diag-two-") as folder, doubled(tmp_path / "bundle"):
        yield Rig.build(Path(folder))


def crowd(rig: Rig, rounds: int, wait_s: float) -> list[list[dict]]:  # type: ignore[type-arg]
    """In turn two that apply, and two that revert."""
    calls = rig.args("apply")["calls"]
    command = [sys.executable, "-c", CROWD, json.dumps([[calls[act]] * 2 for act in calls]), str(rounds), str(wait_s)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env={**os.environ, **rig.env}, cwd=root, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_of_two_at_once_exactly_one_changes_the_files(rig: Rig) -> None:
    met = Counter[str]()
    for round_ in crowd(rig, ROUNDS, 0.0):
        winners = [each for each in round_ if each["done"].get("changed")]
        assert len(winners) == 1, round_
        (loser,) = [each for each in round_ if each not in winners]
        error = loser["done"].get("error")
        met["refused" if error else "nothing to do"] += 1
        if error is not None:
            assert error["kind"] == "precondition"
            assert re.match(r"Another operator, \S+, is changing this installation", error["what"])
            assert f"process {winners[0]['pid']}." in error["next"], round_
    assert met.total() == ROUNDS
    assert met["refused"] > 0
    assert rig.side() == "old"  # the last round reverted


def test_those_who_wait_find_it_done(rig: Rig) -> None:
    for round_ in crowd(rig, 40, 30.0):
        assert sorted(each["done"]["changed"] for each in round_) == [False, True]
        assert len({each["done"]["status"]["state"] for each in round_}) == 1
    assert rig.litter() == []


@pytest.mark.sshd
def test_the_loser_learns_who_and_since_when(rig: Rig, sshd: Sshd) -> None:
    host = rig.host(sshd.host)
    gate = rig.root / "gate"
    with connect(host) as one, connect(host) as two, ThreadPoolExecutor(1) as pool:
        before = transaction.inspect(one, FIX, str(rig.site))
        rig.order(after=30, how="wait", gate=str(gate))
        winner = pool.submit(transaction.apply_files, one, FIX, before, rig.changes())
        while (holder := transaction.inspect(two, FIX, str(rig.site)).standing.holder) is None:
            assert not winner.done()
        rig.order(wait=0.1)
        with pytest.raises(PreconditionFailed) as caught:
            transaction.revert(two, FIX, before)
        assert re.search(r"Another operator, \S+, .* since \d{4}-\d\d-\d\dT\S+Z \(\d+ s\)", caught.value.what)
        assert f"pid: {holder['pid']}" in caught.value.details
        assert "client: 127.0.0.1" in caught.value.details
        with pytest.raises(PreconditionFailed, match="Another operator"):
            transaction.check(two, FIX, transaction.plan(FIX, before))
        gate.touch()
        assert winner.result()["changed"]
        assert transaction.revert(two, FIX, before).changed
    assert rig.side() == "old"


@pytest.mark.sshd
def test_a_stale_lock_ends_with_its_holder(rig: Rig, sshd: Sshd) -> None:
    """One who hangs keeps it, is named with how long, and when it is ended the next one finishes or undoes its work."""
    host = rig.host(sshd.host)
    with connect(host) as one, connect(host) as two, ThreadPoolExecutor(1) as pool:
        before = transaction.inspect(one, FIX, str(rig.site))
        plan = transaction.plan(FIX, before)
        rig.order(after=16, how="wait", gate=str(rig.root / "never"))
        hung = pool.submit(transaction.apply, one, FIX, plan)
        while (standing := transaction.inspect(two, FIX, str(rig.site)).standing).outstanding is None:
            assert not hung.done()
        holder = standing.holder
        assert holder is not None
        assert holder["since_unix"] > 1e9
        os.kill(holder["pid"], signal.SIGSTOP)
        rig.orders.unlink(missing_ok=True)
        rig.order(wait=0.1)
        with pytest.raises(PreconditionFailed, match="Another operator"):
            transaction.revert(two, FIX, before)
        os.kill(holder["pid"], signal.SIGKILL)
        assert isinstance(hung.exception(), HostProgramFailed)
        assert (transaction.inspect(two, FIX, str(rig.site)).standing.holder, rig.side()) == (None, "old")
        assert transaction.apply(two, FIX, plan).recovered == "undone"


def test_an_operator_with_another_home_is_named_by_the_kernel(rig: Rig) -> None:
    """Two state folders share only the package; who holds its lock, /proc/locks knows."""
    call = rig.args("apply")["calls"]["apply"]
    hold = "import fcntl,os,sys\nf=os.open(sys.argv[1],0)\nfcntl.flock(f,2)\nprint(1,flush=True)\ninput()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(rig.site / "pkg")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        code = "import json,sys\nfrom probes import _fixjournal,fixtx\n_fixjournal.LOCK_WAIT_S=0\n"
        code += "print(json.dumps(fixtx.run(json.loads(sys.argv[1]))))"
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", code, json.dumps(call)]
        done = subprocess.run(command, env={**os.environ, **rig.env}, cwd=root, capture_output=True, check=True)
        error = json.loads(done.stdout)["error"]
    finally:
        holder.communicate(b"\n")
    assert "Another operator" in error["what"]
    if Path("/proc/locks").exists():
        assert f"pid: {holder.pid}" in error["details"]
        assert " since 2" in error["what"]
