"""Servers that nobody holds, or that somebody else runs: refused, or stopped with evidence and proof."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_talk import GONE, FakeTalk

from probes import _hostlock, _proc, reap

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not _proc.HAS_PROC, reason="reads /proc")

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A process that looks like an SGLang server, with its output in a file; run_id: our mark."""
    script = tmp_path / "launch_server.py"
    shutil.copy(HERE / "fake_server.py", script)
    running = []

    def begin(*options: str, run_id: str | None = None, output: Any = None) -> subprocess.Popen[bytes]:
        port = free_port()
        env = {**os.environ, "HF_TOKEN": "canary-in-env"} | ({"DIAG_RUN_ID": run_id} if run_id else {})
        log = (tmp_path / f"{port}.log").open("wb") if output is None else output
        process = subprocess.Popen(
            # The fake takes a bare port, as its first word; the other is for those who look.
            [sys.executable, script, str(port), "--api-key", "canary-in-argv", *options],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running.append(process)
        while _proc.port_is_free(port):
            assert process.poll() is None
            time.sleep(0.01)
        if output is None:
            log.close()
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    return any(process.pid == pid and process.state not in "ZX" for process in _proc.processes(False))


def run(do: str, target: object = None, talk: FakeTalk | None = None, **more: Any) -> dict[str, Any]:
    args = {"do": do, "target": target, "stop_grace_s": 0.3, "lines": 5, **more}
    return reap.run(args, talk or FakeTalk(lambda event: [{"cmd": "stop"}]))


def listed(pid: int) -> dict[str, Any]:
    [found] = [server for server in run("list")["servers"] if server["pid"] == pid]
    return found


def test_one_that_somebody_else_started_is_not_stopped(start: Start) -> None:
    process = start()
    talk = FakeTalk(lambda event: [{"cmd": "stop"}])
    error = run("stop", process.pid, talk)["error"]
    assert error["kind"] == "precondition"
    assert "was not started by diag" in error["what"]
    assert "--adopt" in error["next"]
    assert talk.events == []
    assert process.poll() is None
    assert "canary" not in repr(error)


def test_adopted_it_ends_with_all_that_descends_from_it_and_a_namesake_lives(start: Start) -> None:
    namesake = start("--workers", "0")
    process = start()
    port = listed(process.pid)["port"]
    talk = FakeTalk(lambda event: [{"cmd": "stop"}])
    done = run("stop", process.pid, talk, adopt=True)
    [evidence] = talk.events
    assert (evidence["event"], evidence["server"]["pid"]) == ("evidence", process.pid)
    assert any("serving" in line for line in evidence["log"]["lines"])
    assert [each["pid"] for each in evidence["processes"]] == [process.pid]
    assert "canary" not in repr(evidence)
    assert evidence["nvidia_smi"] or evidence["nvidia_smi_why"]
    assert (done["clean"], done["left"], done["port"], done["port_free"]) == (True, [], port, True)
    process.wait(10)
    assert namesake.poll() is None
    assert _hostlock.holder() is None


def test_what_a_killed_diag_left_is_found_by_its_mark_and_stopped_without_more(start: Start) -> None:
    run_id = f"test-{uuid.uuid4().hex}"
    process = start("--workers", "1", run_id=run_id)
    seen = listed(process.pid)
    said = run("logs", process.pid, lines=50)["log"]["lines"]
    [worker] = [int(line.split()[1]) for line in said if line.startswith("worker ")]
    assert (seen["run_id"], seen["supervised_by"]) == (run_id, None)
    done = run("stop", run_id)
    assert done["stopped"] is True
    assert done["signals"]["TERM"] >= 1
    process.wait(10)
    # The worker has no mark any more and no living parent: it is listed as what it is, an orphan.
    assert listed(worker)["orphan"] is True
    assert run("stop", worker, adopt=True)["clean"] is True
    assert not alive(worker)


def test_one_that_a_running_diag_supervises_is_in_use(tmp_path: Path) -> None:
    run_id = f"test-{uuid.uuid4().hex}"
    code = (
        "import os, subprocess, sys\n"
        "'zlib.decompress(b).decode().split(chr(0))'\n"  # what tells our programs from others
        f"p = subprocess.Popen([sys.executable, {str(HERE / 'fake_server.py')!r}, sys.argv[1]], stdout=2)\n"
        "print(p.pid, flush=True); input(); p.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(free_port())],
        env={**os.environ, "DIAG_RUN_ID": run_id},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        marked = [each for each in run("list")["servers"] if each["run_id"] == run_id]
        assert [each["pid"] for each in marked] == [supervisor.pid]
        assert reap._supervisor(pid) == supervisor.pid
        refusal = reap._not_ours({**marked[0], "supervised_by": supervisor.pid})
        assert refusal is not None
        assert "in use" in refusal["error"]["what"]
        assert alive(pid)
        supervisor.communicate(b"\n")


def test_a_laptop_that_is_gone_before_the_evidence_is_kept_stops_nothing(start: Start) -> None:
    process = start()
    for answer in ([GONE], [{"cmd": "ping"}]):
        error = run("stop", process.pid, FakeTalk(lambda event, answer=answer: answer), adopt=True)["error"]
        assert "nothing was stopped" in error["what"]
        assert process.poll() is None
    assert _hostlock.holder() is None


def test_what_is_no_server_is_never_stopped(start: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for target in (other.pid, 1, os.getpid(), "no-such-run", ""):
            error = run("stop", target, adopt=True)["error"]
            assert "no inference server" in error["what"]
        assert other.poll() is None
        other.communicate(b"\n")


def test_somebody_at_work_is_waited_for(start: Start) -> None:
    process = start(run_id="test-locked")
    lock = _hostlock.HostLock()
    assert lock.acquire("bisecting") is None
    error = run("stop", process.pid)["error"]
    assert "bisecting" in error["what"]
    assert process.poll() is None
    assert run("list")["lock"]["doing"] == "bisecting"
    lock.release()
    assert run("stop", process.pid)["clean"] is True


SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) {apps} ;;
  *memory.used*) {used} ;;
  *) echo "nvidia-smi $*" ;;
esac
"""


@pytest.mark.parametrize(
    ("apps", "used", "clean", "back"),
    [
        # It held 5000 MiB; after its end they are free, and somebody else's are not.
        ("kill -0 {pid} && echo {pid}, 5000; echo 1, 900", "kill -0 {pid} && echo 6000 || echo 1000", True, True),
        # Its process is gone, its memory is not.
        ("kill -0 {pid} && echo {pid}, 5000; true", "echo 6000", False, False),
        # The driver still names it.
        ("echo {pid}, 5000", "kill -0 {pid} && echo 6000 || echo 1000", False, False),
        # In a container: the driver's process ids are others.
        ("echo 999999, 5000", "kill -0 {pid} && echo 6000 || echo 1000", True, None),
    ],
)
def test_gpu_memory_is_part_of_the_proof(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apps: str, used: str, clean: bool, back: bool | None
) -> None:
    process = start(run_id="test-memory")
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI.format(apps=apps.format(pid=process.pid), used=used.format(pid=process.pid)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(reap.time, "sleep", lambda s, real=time.sleep: real(min(s, 0.02)))
    _reaped_in_the_background(process)
    done = run("stop", process.pid)
    assert (done["stopped"], done["clean"], done["gpu_memory"]["back"]) == (True, clean, back)


def _reaped_in_the_background(process: subprocess.Popen[bytes]) -> None:
    """As its parent would: kill -0 finds a zombie, too."""
    import threading

    threading.Thread(target=process.wait, daemon=True).start()


def test_its_log_is_read_where_it_is_a_file_and_is_named_where_it_is_not(start: Start, tmp_path: Path) -> None:
    process = start("--flood", "1000")
    log = run("logs", process.pid, lines=3)["log"]
    assert log["why"] is None
    assert log["source"].endswith(".log")
    assert len(log["lines"]) == 3
    assert log["lines"][-1] == "serving"
    args = run("logs", process.pid, lines=500)["log"]["lines"][0]
    assert "api_key='***'" in args
    piped = start(output=subprocess.PIPE)
    told = run("logs", piped.pid)["log"]
    assert (told["lines"], told["source"]) == ([], None)
    assert "goes to pipe" in told["why"]
    assert piped.stdout is not None
    piped.stdout.close()
