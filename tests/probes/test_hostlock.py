"""The lock of a host: one at a time, gone with its holder, and no door for anybody else."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from probes import _hostlock
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
