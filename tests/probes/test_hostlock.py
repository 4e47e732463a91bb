"""The lock of a host: one at a time, gone with its holder, and no door for anybody else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probes import _hostlock, hold
from probes._gpulock import GpusLock
from probes._hostlock import HostLock


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "diag"


def test_the_second_is_told_who_has_it_and_for_how_long(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CLIENT", "10.0.0.9 55 22")
    first, second = HostLock(), HostLock()
    assert _hostlock.holder() is None
    assert not state.exists()
    assert first.acquire("bisecting") is None
    who = second.acquire("stopping server 7")
    assert who is not None
    assert (who["doing"], who["client"], who["pid"]) == ("bisecting", "10.0.0.9", __import__("os").getpid())
    assert _hostlock.holder() == who
    assert "from 10.0.0.9" in _hostlock.said(who)
    assert "bisecting for 0 s" in _hostlock.said(who)
    first.release()
    first.release()
    assert _hostlock.holder() is None
    assert list(state.iterdir()) == []
    assert second.acquire("x") is None
    second.release()


def test_of_many_at_once_exactly_one_gets_it(state: Path) -> None:
    def attempt(_: int) -> bool:
        lock = HostLock()
        got = lock.acquire("x") is None
        if got:
            inside.append(1)
            assert len(inside) == 1
            inside.pop()
            lock.release()
        return got

    inside: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(400))) >= 1
    assert _hostlock.holder() is None


def test_a_holder_that_is_killed_frees_it(state: Path) -> None:
    code = "from probes._hostlock import HostLock; l = HostLock(); print(l.acquire('x'), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"None\n"
        who = HostLock().acquire("y")
        assert who is not None
        assert who["pid"] == other.pid
        other.kill()
    lock = HostLock()
    assert lock.acquire("y") is None
    assert json.loads((state / "host.lock").read_text())["doing"] == "y"
    lock.release()


def test_programs_of_one_run_share_it_and_the_last_one_lets_go(state: Path) -> None:
    """Two names of the inventory may be one machine."""
    first, second, other = HostLock(), HostLock(), HostLock()
    assert first.acquire("bisecting", "run-1") is None
    assert second.acquire("bisecting", "run-1") is None
    step = HostLock()
    assert step.acquire("bisecting", "run-1.search") is None  # a step of the same
    step.release()
    for run in ("run-2", None):
        who = other.acquire("bisecting", run)
        assert who is not None
        assert who["run"] == "run-1"
    first.release()
    holder = _hostlock.holder()
    assert holder is not None
    assert holder["run"] == "run-1"
    assert other.acquire("stopping") is not None
    second.release()
    assert _hostlock.holder() is None
    assert list(state.iterdir()) == []
    assert other.acquire("stopping") is None
    assert second.acquire("bisecting", "run-1") is not None
    other.release()


def test_two_runs_at_once_never_hold_it_together(state: Path) -> None:
    def attempt(number: int) -> bool:
        lock = HostLock()
        run = f"run-{number % 2}"
        if lock.acquire("x", run) is not None:
            return False
        with counting:
            inside.append(run)
            together.append(len(set(inside)))
        with counting:
            inside.remove(run)
        lock.release()
        return True

    inside: list[str] = []
    together: list[int] = []
    counting = threading.Lock()
    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(attempt, range(200)))
    assert set(together) == {1}
    assert _hostlock.holder() is None


def got(lock: HostLock, run: str | None) -> bool:
    return lock.acquire(f"at work, {run}", run) is None


def test_sets_of_gpus_are_held_apart_and_the_whole_host_by_nobody_meanwhile(state: Path) -> None:
    first, second, both, whole = GpusLock(["0", "1"]), GpusLock(["2", "3"]), GpusLock(["1", "2"]), HostLock()
    assert got(first, "run-1")
    assert got(second, "run-2")
    assert not got(both, "run-3"), "one of its GPUs is somebody's"
    for run in ("run-3", "run-1", None):
        who = whole.acquire("fixing", run)
        assert who is not None
        assert who["doing"] == "at work, run-1"
    first.release()
    assert not got(both, "run-3")
    holder = _hostlock.holder()
    assert holder is not None
    assert holder["doing"] == "at work, run-2", "who still has some, not who came first"
    second.release()
    assert _hostlock.holder() is None
    assert list(state.iterdir()) == []
    assert got(both, "run-3")
    both.release()


def test_who_has_the_whole_host_lets_only_its_own_run_have_some_gpus(state: Path) -> None:
    """A playbook holds the host while a step of it bisects there."""
    whole, step, other = HostLock(), GpusLock(["0"]), GpusLock(["1"])
    assert got(whole, "run-1")
    assert got(step, "run-1.search")
    assert not got(other, "run-2")
    whole.release()
    step.release()
    assert got(other, "run-2")
    other.release()
    assert list(state.iterdir()) == []


def test_a_set_is_had_again_by_its_own_run(state: Path) -> None:
    """Its connection was lost, and the program that held it does not know yet."""
    old, new = GpusLock(["0"]), GpusLock(["0"])
    assert got(old, "run-1")
    assert got(new, "run-1")
    old.release()
    assert not got(GpusLock(["0"]), "run-2")
    new.release()
    assert list(state.iterdir()) == []


class Laptop:
    """What `hold` talks to: so many messages, then the end of the link, or silence."""

    def __init__(self, messages: int, *, silent: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any] | None] = []
        self._messages, self._silent = messages, silent

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        self.seen.append(_hostlock.holder())
        self._messages -= 1
        if self._messages >= 0:
            return {"cmd": "ping"}
        if self._silent:
            return None
        raise EOFError


@pytest.mark.parametrize("silent", [True, False])
def test_the_host_is_held_until_the_laptop_is_gone(state: Path, silent: bool) -> None:
    laptop = Laptop(2, silent=silent)
    args = {"doing": "bisecting", "run": "run-1", "lease_s": 60}
    assert set(hold.run(args, laptop)) == {"held_s"}  # type: ignore[arg-type]
    assert laptop.events == [{"event": "held"}]
    assert [who and who["doing"] for who in laptop.seen] == ["bisecting"] * 3
    assert _hostlock.holder() is None
    other = HostLock()
    assert other.acquire("mending") is None
    refused = Laptop(0, silent=silent)
    answer = hold.run(args, refused)  # type: ignore[arg-type]
    other.release()
    assert answer["error"]["kind"] == "precondition"
    assert "mending for 0 s" in answer["error"]["what"]
    assert refused.events == []


def test_planted_links_and_open_folders_are_refused(state: Path, tmp_path: Path) -> None:
    state.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (state / "host.lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"host\.lock"):
        HostLock().acquire("x")
    assert victim.read_text() == "precious"
    (state / "host.lock").unlink()
    state.chmod(0o777)
    with pytest.raises(PermissionError, match="only we can write"):
        HostLock().acquire("x")
    state.rmdir()
    state.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        HostLock().acquire("x")
