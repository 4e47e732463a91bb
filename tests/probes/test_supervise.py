"""One server from start to nothing left, with real processes: the nasty ones too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_talk import GONE, FakeTalk
from hypothesis import given
from hypothesis import strategies as st

from probes import _ports, _proc, _serverlog, servers, supervise

HERE = Path(__file__).parent
SERVER = str(HERE / "fake_server.py")
WORKER_NAME = "sglang::scheduler"
linux = pytest.mark.skipif(not _proc.HAS_PROC, reason="without a subreaper only the process group is certain")


def arguments(*options: str, **changes: Any) -> dict[str, Any]:
    return {
        "argv": [sys.executable, SERVER, "{port}", *options],
        "env": {},
        "port": "auto",
        "run_id": f"test-{uuid.uuid4().hex}",
        "ready": {"path": "/health", "deadline_s": 60},
        "stop_grace_s": 0.1,
        **changes,
    }


def workers_of(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("worker ")]


def alive(pid: int) -> bool:
    return any(process.pid == pid and process.state not in "ZX" for process in _proc.processes(False))


def none_carry(run_id: str) -> bool:
    return not _proc.marked(run_id, [process.pid for process in _proc.processes(False)])


def stop_when_ready(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"cmd": "stop"}] if event["event"] == "ready" else []


class StopWhenWorkersAreUp:
    """After `ready`, asks for the log until the workers have said their pids, then has a last word."""

    def __init__(self, count: int, last_word: dict[str, Any]) -> None:
        self.count, self.last_word = count, last_word
        self.workers: list[int] = []
        self.asked = 0

    def __call__(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["event"] == "log":
            self.workers = workers_of(event["lines"])
        if event["event"] not in ("ready", "log"):
            return []
        self.asked += 1
        if self.asked > 10_000:
            raise AssertionError(f"the workers never came up: {event}")
        return [self.last_word] if len(self.workers) == self.count else [{"cmd": "log", "lines": 50}]


@pytest.fixture
def bystander() -> Iterator[int]:
    """Somebody else's worker of the very same name, command line and behaviour."""
    code = f"import runpy; runpy.run_path({SERVER!r})['nasty_worker']({WORKER_NAME!r})"
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    [pid] = workers_of([process.stdout.readline().decode()])
    process.wait()
    yield pid
    os.kill(pid, signal.SIGKILL)
    process.stdout.close()


@linux
def test_nasty_workers_are_gone_ten_times_out_of_ten_and_a_namesake_lives(bystander: int) -> None:
    for _ in range(10):
        laptop = StopWhenWorkersAreUp(2, {"cmd": "stop"})
        args = arguments("--workers", "2", "--name", WORKER_NAME)
        talk = FakeTalk(laptop)
        end = supervise.run(args, talk)
        assert end["stopped"] is True
        assert end["reason"] == "asked"
        assert end["left"] == []
        assert end["port_free"] is True
        assert end["signals"]["KILL"] >= 2
        assert not any(alive(pid) for pid in [*laptop.workers, talk.named("started")[0]["pid"]])
        assert none_carry(args["run_id"])
        assert alive(bystander)


def test_events_tell_the_story() -> None:
    talk = FakeTalk(stop_when_ready)
    end = supervise.run(arguments(), talk)
    assert [event["event"] for event in talk.events if event["event"] != "waiting"] == ["started", "ready"]
    assert talk.events[0]["port"] == end["port"]
    assert end["gpu_memory_mib"] is None or set(end["gpu_memory_mib"]) == {"before", "after"}


@linux
def test_a_server_that_dies_at_once_says_why_and_takes_its_workers_along() -> None:
    args = arguments("--die", "3", "--workers", "1")
    talk = FakeTalk()
    answer = supervise.run(args, talk)
    error = answer["error"]
    assert error["kind"] == "server_died"
    assert "exit code 3" in error["what"]
    assert "Traceback: \x1b[31mno such \x07 device" in error["details"]  # raw: the laptop escapes
    assert answer["stop"]["left"] == []
    assert answer["stop"]["reason"] == "died"
    assert none_carry(args["run_id"])
    assert not any(alive(pid) for pid in workers_of(error["details"]))


@pytest.mark.parametrize("broken", [{"argv": ["/no/such/python"]}, {"cwd": "/no/such/folder"}])
def test_a_command_that_cannot_start_is_an_expected_failure(broken: dict[str, Any]) -> None:
    talk = FakeTalk()
    answer = supervise.run(arguments(**broken), talk)
    assert answer["error"]["kind"] == "server_died"
    assert "/no/such" in answer["error"]["what"]
    assert talk.events == []


def test_a_server_that_never_gets_healthy_is_stopped() -> None:
    args = arguments("--unhealthy", ready={"path": "/health", "deadline_s": 0.6})
    answer = supervise.run(args, FakeTalk())
    assert answer["error"]["kind"] == "server_not_healthy"
    assert "/health" in answer["error"]["what"]
    assert "within 0.6 s" in answer["error"]["what"]  # as it was asked for, not what of it was left
    assert answer["stop"]["left"] == []
    assert answer["stop"]["port_free"] is True
    assert none_carry(args["run_id"])


def test_a_port_in_use_names_its_holder_and_starts_nothing() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        talk = FakeTalk()
        answer = supervise.run(arguments(port=holder.getsockname()[1]), talk)
    assert answer["error"]["kind"] == "port_in_use"
    assert f"pid {os.getpid()}: " in answer["error"]["details"][0]
    assert talk.events == []


@linux
@pytest.mark.parametrize(
    ("last_word", "changes", "reason"),
    [(GONE, {}, "laptop_gone"), ({"cmd": "ping"}, {"lease_s": 0.3}, "lease")],
)
def test_when_the_laptop_is_gone_or_silent_everything_stops(
    last_word: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    laptop = StopWhenWorkersAreUp(1, last_word)
    talk = FakeTalk(laptop)
    # Messages may not be slower than the lease, so before its last word the laptop pings all the time.
    receive, talk.receive = (
        talk.receive,
        lambda timeout_s: (  # type: ignore[method-assign]
            receive(timeout_s) if not talk.messages.empty() or len(laptop.workers) == 1 else {"cmd": "ping"}
        ),
    )
    args = arguments("--workers", "1", **changes)
    end = supervise.run(args, talk)
    assert (end["reason"], end["left"], end["stopped"]) == (reason, [], True)
    assert not alive(laptop.workers[0])
    assert none_carry(args["run_id"])


@pytest.mark.parametrize("step_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2])
def test_a_laptop_that_leaves_at_any_moment_of_a_start_leaves_nothing(step_s: float) -> None:
    args = arguments("--unhealthy", "--workers", "2")
    talk = FakeTalk(lambda event: time.sleep(step_s) or [GONE])
    end = supervise.run(args, talk)
    assert (end["reason"], end["left"], end["port_free"]) == ("laptop_gone", [], True)
    assert none_carry(args["run_id"])
    assert alive(talk.events[0]["pid"]) is False


@pytest.mark.parametrize(
    ("number", "exit_code", "name"), [(signal.SIGUSR1, 7, None), (signal.SIGKILL, None, "SIGKILL")]
)
def test_a_death_after_ready_is_told_and_returned(number: int, exit_code: int | None, name: str | None) -> None:
    def kill_when_ready(event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["event"] == "ready":
            os.kill(talk.named("started")[0]["pid"], number)
        return []

    talk = FakeTalk(kill_when_ready)
    end = supervise.run(arguments(), talk)
    assert (end["died"]["exit_code"], end["died"]["signal"]) == (exit_code, name)
    assert "serving" in end["died"]["log"]
    assert talk.named("died") == [dict(end["died"], event="died")]
    assert (end["reason"], end["stopped"], end["left"]) == ("died", True, [])


def test_a_server_that_floods_its_output_is_never_blocked() -> None:
    talk = FakeTalk(lambda event: [{"cmd": "log", "lines": 1}, {"cmd": "stop"}] if event["event"] == "ready" else [])
    supervise.run(arguments("--flood", str(2 * _serverlog.MEMORY_BYTES)), talk)
    assert talk.named("log") == [{"event": "log", "lines": ["serving"]}]


def test_secrets_of_the_command_and_its_variables_do_not_leave_the_host() -> None:
    talk = FakeTalk(lambda event: [{"cmd": "log", "lines": 99}, {"cmd": "stop"}] if event["event"] == "ready" else [])
    args = arguments("--api-key", "hush-hush", "--name", "of-the-env", env={"HF_TOKEN": "of-the-env"})
    end = supervise.run(args, talk)
    told = json.dumps([talk.events, end])
    assert "api_key='***'" in told  # the server prints its arguments
    assert "hush-hush" not in told
    assert "of-the-env" not in told


def test_variables_are_set_and_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_TEST_UNSET", "still here")
    code = "import os; print({k: v for k, v in os.environ.items() if k.startswith(('DIAG_TEST', 'DIAG_RUN'))})"
    args = arguments(argv=[sys.executable, "-c", code], env={"DIAG_TEST_SET": "a b\n$(c)", "DIAG_TEST_UNSET": None})
    [line] = supervise.run(args, FakeTalk())["error"]["details"]
    assert line == repr({"DIAG_TEST_SET": "a b\n$(c)", "DIAG_RUN_ID": args["run_id"]})


def test_a_run_id_that_could_match_something_else_is_refused() -> None:
    assert supervise.run(arguments(run_id="a b"), FakeTalk())["error"]["kind"] == "usage"


# --- the supervisor's own end ---


@contextlib.contextmanager
def supervisor(args: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """(process, pid of its server, pids of its workers), once all are up."""
    with supervisor_alone(args) as process:
        assert process.stdin is not None
        laptop = StopWhenWorkersAreUp(1, {})
        server = 0
        while len(laptop.workers) < 1:
            event = next_document(process)
            server = event["pid"] if event["event"] == "started" else server
            for message in laptop(event):
                if message:
                    process.stdin.write(json.dumps(message) + "\n")
                    process.stdin.flush()
        yield process, server, laptop.workers


def supervisor_alone(args: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "supervisor_process.py"), json.dumps(args)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def next_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    document: dict[str, Any] = json.loads(process.stdout.readline())
    return document


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signalled_supervisor_stops_the_server_first(number: signal.Signals) -> None:
    args = arguments("--workers", "1")
    with supervisor(args) as (process, server, workers):
        process.send_signal(number)
        end = next_document(process)
    assert (end["reason"], end["stopped"], end["left"]) == ("signal", True, [])
    assert process.returncode == 0
    assert not any(alive(pid) for pid in [server, *workers])


@linux
def test_what_a_killed_supervisor_left_is_found_and_reaped() -> None:
    args = arguments("--workers", "1")
    with supervisor(args) as (process, server, workers):
        process.kill()
    [found] = [entry for entry in servers.run({})["servers"] if entry["run_id"] == args["run_id"]]
    assert found["pid"] == server
    end = supervise.run({"reap": True, "run_id": args["run_id"], "stop_grace_s": 0.3}, FakeTalk())
    assert (end["stopped"], end["left"]) == (True, [])
    assert not any(alive(pid) for pid in [server, *workers])


# --- its log ---


def test_the_log_keeps_its_bound_and_its_end() -> None:
    log = _serverlog.Log(set())
    for at in range(40):
        log.add(b"%d" % at + b"x" * (1 << 20) + b"\n")
    log.add(b"10%\r50%\r100%\r\nlast \xff line")
    assert log.last(2) == ["100%", "last \\xff line"]
    assert len(log._kept) <= _serverlog.MEMORY_BYTES


@given(st.lists(st.binary(max_size=60)), st.integers(0, 9))
def test_log_lines_are_always_printable_text(chunks: list[bytes], count: int) -> None:
    log = _serverlog.Log({"hush"})
    for chunk in chunks:
        log.add(chunk)
    lines = log.last(count)
    assert len(lines) <= count
    assert all("\n" not in line and "hush" not in line and line.encode() for line in lines)


# --- its port ---


def test_a_free_port_leaves_room_for_those_that_an_engine_counts_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.12 takes port + 10000 as well, and refuses to start where that is above 65535."""
    held = [_ports.Reservation(0) for _ in range(50)]
    for one in held:
        one.release()
    assert all(one.port > 1024 and one.port + 10000 < 65536 for one in held)
    assert len({one.port for one in held}) == 50  # servers side by side do not meet
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        monkeypatch.setattr(_ports, "PORTS", range(taken, taken + 2))
        drawn = _ports.Reservation(0)
        drawn.release()
        assert drawn.port == taken + 1


class Somebody:
    """Another program that listens at the port of each server as soon as that is started and before it binds itself,
    at most `times` times; `then` is done after that."""

    def __init__(self, times: int, *options: str, launcher: Sequence[str] = ()) -> None:
        command = [*launcher, sys.executable, SERVER, "-", *options]
        pipe = subprocess.PIPE
        self.processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(times)]
        self.waiting = list(self.processes)

    def takes(self, port: int) -> bool:
        """False if all have one."""
        if not self.waiting:
            return False
        process = self.waiting.pop()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{port}\n")
        process.stdin.flush()
        assert "serving\n" in iter(process.stdout.readline, "")
        return True

    def __enter__(self) -> Somebody:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with process:
                process.kill()


def taking(somebody: Somebody, loaded: Path, at: str = "free") -> FakeTalk:
    """A laptop; the server has loaded its model as soon as `at` happens: no port is left to somebody, or an event."""

    def react(event: dict[str, Any]) -> list[dict[str, Any]]:
        taken = event["event"] == "started" and somebody.takes(event["port"])
        if event["event"] == at or (at == "free" and event["event"] == "started" and not taken):
            loaded.touch()
        return [] if at == "ready" else stop_when_ready(event)

    return FakeTalk(react)


@linux
def test_what_somebody_else_answers_at_the_port_is_no_server_of_ours(tmp_path: Path) -> None:
    """Drawn again; a port that was asked for is told as taken. In a container's name it may be ours."""
    loaded = tmp_path / "loaded"
    with Somebody(1) as somebody:
        talk = taking(somebody, loaded)
        end = supervise.run(arguments("--after", str(loaded)), talk)
        first, second = talk.named("started")
        assert (end["reason"], end["port"], end["left"]) == ("asked", second["port"], [])
        assert first["port"] != second["port"]
        assert not alive(first["pid"])
        assert alive(somebody.processes[0].pid)
    port = first["port"]
    with Somebody(1) as somebody:
        answer = supervise.run(arguments("--after", str(tmp_path / "never"), port=port), taking(somebody, loaded))
        assert (answer["error"]["kind"], answer["stop"]["left"]) == ("port_in_use", [])
        assert f"pid {somebody.processes[0].pid}: " in answer["error"]["details"][0]
    with Somebody(3) as somebody:
        talk = taking(somebody, loaded)
        assert supervise.run(arguments("--after", str(tmp_path / "never")), talk)["error"]["kind"] == "port_in_use"
        assert len(talk.named("started")) == supervise.DRAWS


@linux
def test_a_holder_in_a_namespace_of_its_own_may_be_our_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ports, "becomes_free", _proc.port_is_free)
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no namespaces")
    with Somebody(1, launcher=apart) as somebody:
        end = supervise.run(arguments("--after", str(tmp_path / "never")), taking(somebody, tmp_path / "loaded"))
    assert (end["reason"], end["left"]) == ("asked", [])


@linux
@pytest.mark.parametrize(("options", "at"), [(["--unhealthy"], "waiting"), ([], "ready")])
def test_a_server_that_dies_of_a_port_which_somebody_took_is_no_dead_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], at: str
) -> None:
    """Also where it cannot be seen who: then the server seems ready, and its end tells."""
    monkeypatch.setattr(_ports, "holders", lambda port: [])
    monkeypatch.setattr(_ports, "becomes_free", _proc.port_is_free)  # it will not, and the two seconds are long
    loaded = tmp_path / "loaded"
    with Somebody(1, *options) as somebody:
        talk = taking(somebody, loaded, at)
        end = supervise.run(arguments("--after", str(loaded)), talk)
    if at == "ready":
        assert end["error"]["kind"] == "port_in_use"
        assert "Address already in use" in end["error"]["details"][-1]
        assert talk.named("died") == []
    else:
        assert (end["reason"], len(talk.named("started"))) == ("asked", 2)


@linux
def test_a_port_is_promised_while_its_server_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a supervisor that is another process, maybe in another namespace of them: two servers of one network."""
    port = _ports.Reservation(0)
    port.release()
    args = arguments("--after", str(tmp_path / "never"), "--workers", "1", port=port.port)
    with supervisor_alone(args) as process:
        assert next_document(process)["event"] == "started"
        answer = supervise.run(arguments(port=port.port), FakeTalk())
        assert answer["error"]["kind"] == "port_in_use"
        assert "Another diag" in answer["error"]["details"][0]
        monkeypatch.setattr(_ports, "PORTS", range(port.port, port.port + 2))
        assert supervise.run(arguments(), FakeTalk(stop_when_ready))["port"] == port.port + 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        supervise.run({"reap": True, "run_id": args["run_id"], "stop_grace_s": 0.3}, FakeTalk())
        assert supervise.run(arguments(port=port.port), FakeTalk(stop_when_ready))["reason"] == "asked"
