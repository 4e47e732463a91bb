"""The output of a server: bounded, without secrets, and never a reason for the server to stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.verdict.telemetry import NAN
from probes import _serverlog, reap


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "diag"


def drained(log: _serverlog.Log, code: str) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        log.drain(server)
        assert log._thread is not None
        log._thread.join()


def kept(run_id: str) -> bytes:
    return b"".join(Path(path).read_bytes() for path in _serverlog.files(run_id) if Path(path).exists())


def test_a_flood_leaves_its_end_in_two_files_of_bounded_size_that_go_with_the_log(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_serverlog, "FILE_BYTES", 200_000)
    log = _serverlog.Log(set(), "run-1")
    drained(log, "for at in range(100000): print('line', at)")
    paths = [Path(path) for path in _serverlog.files("run-1")]
    assert all(path.stat().st_size < 300_000 for path in paths)
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert kept("run-1").splitlines()[-1] == b"line 99999"
    assert len(kept("run-1")) > 100_000
    assert log.last(1) == ["line 99999"]
    log.close()
    assert list(state.iterdir()) == []


def test_no_secret_is_written_however_it_is_cut() -> None:
    log = _serverlog.Log({"hush-hush"}, "run-1")
    drained(
        log,
        "import os, time\n"
        "for piece in ('key=hush', '-hush\\n', 'é\\xff hush-hush ' * 9, 'end'):\n"
        "    os.write(1, piece.encode('latin-1')); time.sleep(0.02)",
    )
    assert b"hush" not in kept("run-1")
    assert kept("run-1").startswith(b"key=***\n\xe9\xff *** ")
    assert kept("run-1").endswith(b"end")


def test_the_first_error_is_told_where_the_last_lines_do_not_have_it() -> None:
    """As a vLLM whose engine process fails ends with many lines of the one that waited for it."""
    log = _serverlog.Log({"hush-hush"})
    log.add(b"INFO loading\n(EngineCore pid=7) Traceback (most recent call last):\n(EngineCore pid=7)   File x\n")
    assert log.told(2) == log.last(2)
    log.add(b"(EngineCore pid=7) AssertionError: Error in memory profiling, hush-hush.\r\n" + b"(Api pid=1) at\n" * 50)
    log.add(b"(Api pid=1) RuntimeError: Engine core initialization failed.\n")
    first = "first error: AssertionError: Error in memory profiling, ***."
    assert log.told(2) == [first, "(Api pid=1) at", "(Api pid=1) RuntimeError: Engine core initialization failed."]
    assert log.told(60)[0] == "INFO loading"  # it is among them
    plain = _serverlog.Log(set())
    plain.add(b"[2026-11-30 01:00:00] ERROR torch.cuda.OutOfMemoryError: out of memory\n" + b"x\n" * 9)
    assert plain.told(1) == ["first error: torch.cuda.OutOfMemoryError: out of memory", "x"]
    plain = _serverlog.Log(set())
    plain.add(b"no MyError here, Error: no\n" + b"x\n" * 9)
    assert plain.told(1) == ["x"]


@pytest.mark.parametrize("broken", ["a file", "a link", "a full disk"])
def test_what_cannot_be_written_costs_nothing(
    broken: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if broken == "a file":
        state.write_text("where a folder should be")
    elif broken == "a link":
        (state / "logs").mkdir(parents=True)
        Path(_serverlog.files("run-1")[1]).symlink_to(victim)
    else:

        def full(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
    log = _serverlog.Log(set(), "run-1")
    drained(log, "print('said')")
    assert log.last(1) == ["said"]
    assert victim.read_text() == "precious"
    log.close()


def test_old_ones_of_others_go(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "logs").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    for name, age_s in (("old.log", 8 * 86400), ("new.log", 60)):
        path = state / "logs" / name
        path.touch()
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    drained(_serverlog.Log(set(), "run-1"), "pass")
    assert sorted(path.name for path in (state / "logs").iterdir()) == ["new.log", "run-1.log"]


def test_the_log_of_a_server_whose_output_somebody_else_reads_is_that(state: Path) -> None:
    """That of a running diag, or of one that was killed."""
    code = "import sys; print('a\\nb', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as server:
        told: dict[str, Any] = reap.log_of(server.pid, 5, "run-1")
        assert told["lines"] == []
        assert "read it where it was started" in told["why"]
        log = _serverlog.Log(set(), "run-1")
        log.drain(server)
        path = _serverlog.files("run-1")[1]
        while not kept("run-1").endswith(b"b\n"):
            assert server.poll() is None
        assert reap.log_of(server.pid, 1, "run-1") == {"source": path, "lines": ["b"], "why": None}
        assert server.stdin is not None
        server.stdin.close()
        assert log._thread is not None
        log._thread.join()


def test_lines_that_are_worth_telling_are_found_and_hide_secrets() -> None:
    log = _serverlog.Log({"hush"})
    log.add(b"loading nanny\nkey hush: NaN in layer 3\r\nfine\nInf in the logits\n")
    found = log.matching(NAN)
    assert found == ["key ***: NaN in layer 3", "Inf in the logits"]
