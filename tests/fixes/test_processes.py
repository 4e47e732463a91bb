"""Which running servers and workers hold which code: real processes, and clocks that jump."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import _fixjournal, _fixprocs, _proc, fixread, fixtx
from tests.fixes.box import Box

# Forks one worker and starts another by exec, at once and again for each line of its input; prints "kind pid".
SERVER = """
import os, subprocess, sys, time

def workers():
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "sglang::scheduler"])
    print("forked", pid, "spawned", child.pid, flush=True)

if __name__ == "__main__":
    workers()
    for line in sys.stdin:
        workers()
"""

pytestmark = pytest.mark.skipif(not _proc.HAS_PROC, reason="start times and forks are read from /proc")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    box = Box(tmp_path / "lib" / "python3.11", {"sglang/mod.py": b"VALUE = 1\n"})
    (box.site / "sglang" / "__init__.py").touch()
    (box.site / "sglang" / "launch_server.py").write_text(SERVER)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.2\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(box.state))
    monkeypatch.setattr(fixtx, "_compile", lambda *_: sys.executable)
    return box


Start = Callable[[], "Server"]


class Server:
    def __init__(self, box: Box) -> None:
        command = [box.site.parents[2] / "bin" / "python", "-m", "sglang.launch_server", "--port", "31998"]
        env = {**os.environ, "PYTHONPATH": str(box.site)}
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self.process.pid
        self.first = self.workers()

    def workers(self) -> tuple[int, int]:
        """Pids of the forked and of the spawned one."""
        assert self.process.stdout is not None
        word = self.process.stdout.readline().split()
        return int(word[1]), int(word[3])

    def more(self) -> tuple[int, int]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.workers()


@pytest.fixture
def start(box: Box) -> Iterator[Start]:
    running: list[Server] = []

    def start() -> Server:
        running.append(Server(box))
        return running[-1]

    yield start
    for server in running:
        os.killpg(server.pid, 9)
        server.process.communicate()


def call(box: Box, action: str, **more: Any) -> dict[str, Any]:
    return box.run(action, package="sglang", **more)


def codes(document: dict[str, Any]) -> dict[int, str]:
    status = document.get("status", document)
    return {each["pid"]: each["code"] for each in status["processes"]}


def apart() -> None:
    """Start times are known to a hundredth of a second."""
    time.sleep(0.1)


def test_servers_and_workers(box: Box, start: Start) -> None:
    old = start()
    forked, spawned = old.first
    assert codes(call(box, "status")) == dict.fromkeys((old.pid, forked, spawned), "current")
    apart()
    done = box.apply(package="sglang")
    assert codes(done) == dict.fromkeys((old.pid, forked, spawned), "stale")
    apart()
    # What a stale server forks has the old code, whenever that is; what it starts anew reads the file.
    late_forked, late_spawned = old.more()
    young = start()
    told = {each["pid"]: each for each in call(box, "status")["processes"]}
    assert {pid: each["code"] for pid, each in told.items()} == {
        **dict.fromkeys((old.pid, forked, spawned, late_forked), "stale"),
        **dict.fromkeys((late_spawned, young.pid, *young.first), "current"),
    }
    assert told[late_forked]["why"] == f"forked from {old.pid}: it started before the files changed"
    assert {each["worker_of"] for each in told.values()} == {None, old.pid, young.pid}
    assert told[old.pid]["port"] == 31998
    apart()

    # Back to the original: who started before the fix runs just that, who started after it does not.
    done = call(box, "revert")
    assert codes(done) == {
        **dict.fromkeys((old.pid, forked, spawned, late_forked), "current"),
        **dict.fromkeys((late_spawned, young.pid, *young.first), "stale"),
    }
    told = {each["pid"]: each for each in done["status"]["processes"]}
    assert told[old.pid]["why"] == "it started before our change, and the files are as they were then"


def test_what_someone_else_wrote_later_makes_it_unknown(box: Box, start: Start) -> None:
    old = start()
    apart()
    box.apply(package="sglang")
    apart()
    young = start()
    box.path("sglang/mod.py").write_bytes(b"mine = 1\n")
    told = codes(call(box, "status"))
    assert (told[old.pid], told[young.pid]) == ("stale", "unknown")


def test_an_outstanding_change_counts_from_its_first_rename(box: Box, start: Start) -> None:
    old = start()
    apart()
    box.apply(package="sglang")
    journal = Path(call(box, "status")["journal"])
    rows = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(rows[:-1]))  # the power went before `committed`
    apart()
    young = start()
    status = call(box, "status")
    assert status["state"] == "outstanding"
    told = codes(status)
    assert (told[old.pid], told[young.pid]) == ("stale", "unknown")
    assert codes(call(box, "recover"))[young.pid] == "unknown"


def test_a_server_of_another_installation_is_not_listed(box: Box, start: Start, tmp_path: Path) -> None:
    start()
    other = Box(tmp_path / "other", {"sglang/mod.py": b"VALUE = 1\n"})
    assert codes(call(other, "status")) == {}


# --- clocks ------------------------------------------------------------------------------------------------


@contextmanager
def clock_set(seconds: float, monkeypatch: pytest.MonkeyPatch, boot: bool = True) -> Iterator[None]:
    """The host's wall clock is set: now, and with it what the kernel says of its start. boot: False: a host that says
    nothing of its start, as macOS."""
    real_time, real_read = time.time, _proc.read

    def read(path: str, limit: int = 1 << 22) -> bytes | None:
        text = real_read(path, limit)
        if path == "/proc/sys/kernel/random/boot_id" and not boot:
            return None
        if path == "/proc/stat" and text is not None:
            lines = [
                b"btime %d" % (int(line.split()[1]) + seconds) if line.startswith(b"btime") else line
                for line in text.splitlines()
            ]
            return b"\n".join(lines)
        return text

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real_time() + seconds)
        patch.setattr(_proc, "read", read)
        yield


JUMPS = (-90_000.0, -3600.0, -30.0, 30.0, 3600.0, 90_000.0)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_makes_no_difference(
    jump: float, box: Box, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start()
    apart()
    box.apply(package="sglang")
    apart()
    with clock_set(jump, monkeypatch):
        young = start()
        told = codes(call(box, "status"))
    assert (told[old.pid], told[young.pid]) == ("stale", "current")
    assert codes(call(box, "status")) == told


def test_where_only_the_wall_clock_is_there_a_jump_is_said(
    box: Box, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start()
    time.sleep(2.1)  # such start times are known to a second
    with clock_set(0, monkeypatch, boot=False):
        box.apply(package="sglang")
        assert codes(call(box, "status"))[old.pid] == "stale"
    for jump in JUMPS:
        with clock_set(jump, monkeypatch, boot=False):
            (told,) = [each for each in call(box, "status")["processes"] if each["pid"] == old.pid]
        assert (told["code"], "clock" in told["why"]) == ("unknown", True), jump


def test_a_clock_that_jumps_while_the_change_is_made(box: Box, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start()
    apart()
    steps = itertools.cycle(JUMPS)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(steps))
    box.apply(package="sglang")
    apart()
    young = start()
    told = codes(call(box, "status"))
    assert (told[old.pid], told[young.pid]) == ("stale", "current")
    assert call(box, "revert")["changed"] is True


def test_after_a_restart_of_the_machine_all_is_current(box: Box, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    now = _fixjournal.clock()
    with monkeypatch.context() as patch:
        before = {**now, "up": now["up"] + 1e6, "boot": ["another start", now["boot"][1]]}
        patch.setattr(_fixjournal, "clock", lambda: before)
        box.apply(package="sglang")
    server = start()
    assert codes(call(box, "status"))[server.pid] == "current"


def test_a_journal_of_before_without_a_second_clock(box: Box, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start()
    with monkeypatch.context() as patch:
        patch.setattr(_fixjournal, "clock", lambda: {"time": time.time() + 5})
        box.apply(package="sglang")
    assert codes(call(box, "status"))[old.pid] == "unknown"  # the change lies in the future
    journal = Path(_fixjournal.Journal(_fixjournal.state_dir(), "demo", str(box.site)).path)
    records = [{**record, "time": time.time() - 5} for record in _fixjournal.records_of(str(journal))[0]]
    journal.write_bytes(b"".join(map(_fixjournal.line_of, records)))
    assert codes(call(box, "status"))[old.pid] == "current"


def test_seen_from_another_time_namespace(box: Box, start: Start) -> None:
    command = ["unshare", "--time", "--fork", "--boottime", "100000"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs the right to make a time namespace")
    old = start()
    apart()
    box.apply(package="sglang")
    code = (
        "import json,sys\nfrom probes import fixtx\n"
        f"print(json.dumps(fixtx.run(dict(action='status',fix='demo',package='sglang',site_packages={str(box.site)!r}))))"
    )
    root = Path(fixread.__file__).parents[1]
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    (told,) = [each for each in json.loads(done.stdout)["processes"] if each["pid"] == old.pid]
    assert (told["code"], "time namespace" in told["why"]) == ("unknown", True)


# --- the judgement by itself -------------------------------------------------------------------------------

NOW = {"time": 1e9, "up": 5000.0, "boot": ["b", "n"]}


def process(up: float) -> _proc.Process:
    return _proc.Process(1, 0, 1, "S", str(round(up * os.sysconf("SC_CLK_TCK"))), ())


def change(first: float, last: float | None, old: str, new: str) -> dict[str, Any]:
    marks = [None if at is None else {**NOW, "up": at} for at in (first, last)]
    return {"first": marks[0], "last": marks[1], "old": {"f": old}, "new": {"f": new}}


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=5), st.integers(0, 60))
def test_the_code_of_a_process_is_what_was_there_when_it_started(contents: list[str], start: int) -> None:
    """Changes at 10, 20, 30 ... take a second each."""
    changes = [
        change(10.0 * at, 10.0 * at + 1, old, new) for at, (old, new) in enumerate(itertools.pairwise(contents), 1)
    ]
    told, why = _fixprocs.code_of(process(start + 0.5), changes, {"f": contents[-1]}, NOW)
    if start % 10 == 0 and 0 < start // 10 <= len(changes):
        assert (told, why) == ("unknown", "it started while the files were being changed")
    else:
        then = contents[min((start // 10), len(changes))]
        assert told == ("current" if then == contents[-1] else "stale"), why


def test_within_the_grain_of_the_clock_nothing_is_claimed() -> None:
    for moment in (9.97, 10.0, 10.03, 10.97, 11.03):
        assert _fixprocs.code_of(process(moment), [change(10, 11, "a", "b")], {"f": "b"}, NOW)[0] == "unknown"


def test_a_gap_in_what_we_know_is_a_gap() -> None:
    changes = [change(10, 11, "a", "b"), change(20, 21, "x", "b")]  # someone changed b to x in between
    told = [_fixprocs.code_of(process(at), changes, {"f": "b"}, NOW)[0] for at in (5, 15, 25)]
    assert told == ["stale", "unknown", "current"]
