"""A wheel laid before an environment over a real SSH server: sent once, checked, held, and gone whatever happens."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag import bundle
from diag.errors import DiagError, PreconditionFailed
from diag.hosts.inventory import Host
from diag.hosts.local import LocalTransport
from diag.hosts.transport import Transport, connect
from diag.serving.overlay import Overlays, interpreter
from tests.bisect.over.wheel_index import build

TOY = {"toy/__init__.py": b"NAME = 'toy'\n", "toy/data.bin": os.urandom(300_000)}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build(tmp_path / "wheels", "toy", "1.0", TOY)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Transport]:
    cache = str(tmp_path / "cache")
    with LocalTransport(Host(name="here", address="local", env={"XDG_CACHE_HOME": cache})) as transport:
        yield transport


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "diag"


def overlays_in(cache: Path) -> list[str]:
    folder = cache / "overlays"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def wait_until(true: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def imported(pythonpath: str, code: str = "import toy; print(toy.__file__)") -> str:
    env = {**os.environ, "PYTHONPATH": pythonpath}
    return subprocess.run([sys.executable, "-B", "-c", code], env=env, capture_output=True, text=True).stdout.strip()


@pytest.mark.sshd
def test_over_ssh(sshd, wheel: Path, tmp_path: Path) -> None:
    host = sshd.host_with(env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    said: list[str] = []
    with connect(host) as transport:
        facts = interpreter(transport, sys.executable, "toy")
        assert facts["version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
        assert facts["installed"] == ""
        with Overlays(transport, "run-1") as overlays:
            laid = overlays.lay(wheel, "toy", python=sys.executable, say=said.append)
            assert laid.version == "1.0"
            assert imported(laid.pythonpath) == laid.origin == f"{laid.folder}/toy/__init__.py"
            sent = len(said)
            assert any("to be sent" in line for line in said)
            overlays.lay(wheel, "toy", python=sys.executable, say=said.append)
            assert not any("to be sent" in line for line in said[sent:])
        assert overlays_in(tmp_path / "cache" / "diag") == []
        with Overlays(transport, "run-2") as overlays:
            overlays.lay(wheel, "toy", python=sys.executable, say=said.append)
            assert not any("to be sent" in line for line in said[sent:])


def test_what_was_sent_before_the_link_was_lost_is_gone_on_with(host: Transport, wheel: Path, cache: Path) -> None:
    from diag.source import wheels

    folder = cache / "wheels" / wheels.sha256(wheel)
    folder.mkdir(parents=True)
    cache.chmod(0o700)
    (folder / f"{wheel.name}.part").write_bytes(wheel.read_bytes()[:200_000])
    said: list[str] = []
    with Overlays(host, "run-1") as overlays:
        laid = overlays.lay(wheel, "toy", python=sys.executable, say=said.append)
    assert laid.version == "1.0"
    first = next(line for line in said if "to be sent" in line)
    assert int(first.split("(")[1].split("%")[0]) > 60


@pytest.mark.parametrize("where", ["part", "whole"])
def test_what_is_damaged_on_the_host_is_not_used(host: Transport, wheel: Path, cache: Path, where: str) -> None:
    from diag.source import wheels

    folder = cache / "wheels" / wheels.sha256(wheel)
    folder.mkdir(parents=True)
    cache.chmod(0o700)
    damaged = bytes(100_000) if where == "part" else bytes(wheel.stat().st_size)
    (folder / (wheel.name + (".part" if where == "part" else ""))).write_bytes(damaged)
    if where == "part":
        with pytest.raises(PreconditionFailed, match="did not arrive as it was sent"), Overlays(host, "r") as overlays:
            overlays.lay(wheel, "toy", python=sys.executable)
    with Overlays(host, "r") as overlays:
        assert overlays.lay(wheel, "toy", python=sys.executable).version == "1.0"


def test_what_somebody_changed_is_laid_out_anew_and_said(host: Transport, wheel: Path) -> None:
    with Overlays(host, "run-1") as overlays:
        laid = overlays.lay(wheel, "toy", python=sys.executable)
        Path(laid.origin).write_text("NAME = 'edited'\n")
        again = overlays.lay(wheel, "toy", python=sys.executable)
        assert again.changed == ("toy/__init__.py",)
        assert imported(again.pythonpath, "import toy; print(toy.NAME)") == "toy"


def test_data_folders_programs_and_the_rest_of_a_wheel(host: Transport, tmp_path: Path) -> None:
    files = {
        "toy-1.1.data/purelib/toy/__init__.py": b"",
        "toy-1.1.data/scripts/toy": b"#!python\n",
        "toy-1.1.data/data/share/x": b"",
        "toy/bin/compiler": b"\x7fELF",
    }
    wheel = build(tmp_path / "wheels", "toy", "1.1", files)
    with Overlays(host, "run-1") as overlays:
        folder = Path(overlays.lay(wheel, "toy", python=sys.executable).folder)
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"toy/__init__.py", "toy/bin/compiler"} <= found
    assert not any("scripts" in name or "share" in name for name in found)


@pytest.mark.parametrize("name", ["../toy/__init__.py", "/tmp/toy/__init__.py", "toy/../../x.py"])
def test_a_wheel_that_would_write_elsewhere_is_refused(host: Transport, tmp_path: Path, name: str, cache: Path) -> None:
    wheel = build(tmp_path / "wheels", "toy", "1.2", {"toy/__init__.py": b"", name: b""})
    with pytest.raises(PreconditionFailed, match="would lie elsewhere"), Overlays(host, "run-1") as overlays:
        overlays.lay(wheel, "toy", python=sys.executable)
    assert overlays_in(cache) == []


def test_no_wheel_and_no_room(host: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a zip archive")
    with pytest.raises(PreconditionFailed, match="not a readable wheel"), Overlays(host, "r") as overlays:
        overlays.lay(wheel, "toy", python=sys.executable)
    probe = bundle.load("probes.overlay")
    monkeypatch.setattr(probe.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(probe.Refused, match="MiB are free"):
        probe._room_for(str(tmp_path), 1 << 30, "it")


def test_two_runs_side_by_side_and_one_name_twice(host: Transport, wheel: Path, cache: Path, monkeypatch) -> None:
    with Overlays(host, "run-1") as one, Overlays(host, "run-2") as two:
        assert two.left_behind == ()  # the other one lives
        assert (
            one.lay(wheel, "toy", python=sys.executable).folder != two.lay(wheel, "toy", python=sys.executable).folder
        )
        hold = bundle.load("probes.overlay_hold")
        monkeypatch.setattr(hold, "CLAIM_S", 0.1)
        again = hold.Held(str(cache), "overlays", "run-1", {}, lambda folder, note: None)
        with pytest.raises(hold.Refused, match="Another diag is at work on run run-1"), again:
            pass
    assert overlays_in(cache) == []


HOLDER = """
import sys
from diag.hosts.inventory import Host
from diag.hosts.local import LocalTransport
from diag.serving.overlay import Overlays
from pathlib import Path
with LocalTransport(Host(name="here", address="local", env={"XDG_CACHE_HOME": sys.argv[1]})) as transport:
    with Overlays(transport, "killed") as overlays:
        overlays.lay(Path(sys.argv[2]), "toy", python=sys.executable)
        print("laid", flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def holder(cache: Path, wheel: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(cache.parent), str(wheel)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "laid\n"
        yield child
        child.kill()


def host_program(cache: Path) -> int:
    """Who holds the lock: the program on the host."""
    inode = next(cache.glob("overlays/*.lock")).stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        if f":{inode} " in line:
            return int(line.split()[4])
    raise AssertionError("nobody holds it")


def test_killed_outright_it_is_gone_all_the_same(wheel: Path, cache: Path) -> None:
    with holder(cache, wheel) as child:
        assert overlays_in(cache) == ["killed", "killed.lock"]
        child.kill()
        wait_until(lambda: overlays_in(cache) == [])


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux tells who holds a lock")
def test_what_a_dead_host_program_left_the_next_run_removes(host: Transport, wheel: Path, cache: Path) -> None:
    with holder(cache, wheel) as child:
        os.kill(host_program(cache), signal.SIGKILL)
        child.kill()
        child.wait()
        assert overlays_in(cache) == ["killed", "killed.lock"]
        with Overlays(host, "next") as overlays:
            assert overlays.left_behind == ("killed",)
            assert overlays_in(cache) == ["next", "next.lock"]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux tells who holds a lock")
def test_a_term_is_a_request_to_clean_up(wheel: Path, cache: Path) -> None:
    with holder(cache, wheel):
        os.kill(host_program(cache), signal.SIGTERM)
        wait_until(lambda: overlays_in(cache) == [])


def test_it_stays_while_a_server_of_the_run_still_ends(wheel: Path, cache: Path) -> None:
    server = subprocess.Popen(["sleep", "1.5"], env={**os.environ, "DIAG_RUN_ID": "killed"})
    with holder(cache, wheel) as child, server:
        child.kill()
        assert overlays_in(cache) == ["killed", "killed.lock"]
        server.wait()
        wait_until(lambda: overlays_in(cache) == [])


def test_wrong_messages_are_refused(tmp_path: Path) -> None:
    probe = bundle.load("probes.overlay")
    store = probe.Store(str(tmp_path / "wheels"))
    for digest, name in (("x" * 64, "a.whl"), ("a" * 63, "a.whl"), ("a" * 64, "../a.whl")):
        with pytest.raises(probe.Refused):
            store.path(digest, name)
    store.begin("a" * 64, "a.whl", 10)
    with pytest.raises(probe.Refused, match="not base64"):
        store.add("&&&")
    with pytest.raises(probe.Refused, match="did not arrive"):
        store.add(base64.b64encode(bytes(10)).decode())


def test_an_interpreter_that_is_none(host: Transport) -> None:
    with pytest.raises(DiagError, match="did not say what it is"):
        interpreter(host, "/bin/false", "toy")
    with pytest.raises(DiagError, match="did not say what it is"):
        interpreter(host, "/no/such/python", "toy")


def test_a_disk_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, overlay = bundle.load("probes.overlay_hold"), bundle.load("probes.overlay")

    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(hold.fcntl, "flock", flock)
    top = tmp_path / "cache"
    top.mkdir(mode=0o700)
    told = overlay.run({"mark": "run-1", "root": str(top)}, None)["error"]
    assert told["what"].endswith("run-1.lock: No locks available")
    assert "XDG_CACHE_HOME" in told["next"]


def test_a_cache_that_others_may_write_to_is_refused(host: Transport, wheel: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(PreconditionFailed, match="only this user may write to"):
        Overlays(host, "run-1")
