"""One exec, one program, one answer: and never a success that is not one."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.errors import FileNotAsExpected, HostProgramFailed, LinkLost, NoPythonOnHost, PortInUse
from diag.hosts import courier
from diag.hosts.courier import Conversation, End, Event, call, converse, error_from
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect

if TYPE_CHECKING:
    from conftest import Sshd

ROOT = Path(__file__).parents[2]
Probe = Callable[[str], str]
ECHO = "def run(args, talk):\n    return {'args': args}\n"


def test_arguments_go_there_and_a_document_comes_back(transport: Transport, probe: Probe) -> None:
    args = {"text": "'\"$(id)`\n\0é\udcff", "number": 1.5, "none": None, "list": [True]}
    assert call(transport, probe(ECHO), args) == {"args": args}


def test_a_large_document(transport: Transport, probe: Probe) -> None:
    name = probe("import os\ndef run(args, talk):\n    return {'x': os.urandom(2_000_000).hex()}\n")
    assert len(call(transport, name)["x"]) == 4_000_000


def test_a_large_argument(transport: Transport, probe: Probe) -> None:
    assert len(call(transport, probe(ECHO), {"x": os.urandom(1_000_000).hex()})["args"]["x"]) == 2_000_000


def test_relative_imports_and_what_the_program_sees(transport: Transport, probe: Probe) -> None:
    name = probe("""
        import sys
        from . import _wire
        def run(args, talk):
            return {"name": __name__, "wire": _wire.__name__, "path": "" in sys.path, "argv": sys.argv}
        """)
    assert call(transport, name) == {
        "name": "_diag_host.probes.tried",
        "wire": "_diag_host.probes._wire",
        "path": False,
        "argv": ["-c"],
    }


def test_events_come_in_order_before_the_end(transport: Transport, probe: Probe) -> None:
    name = probe("""
        def run(args, talk):
            for number in range(5):
                talk.emit({"number": number})
            return {"done": True}
        """)
    seen: list[dict[str, object]] = []
    assert call(transport, name, on_event=seen.append) == {"done": True}
    assert seen == [{"number": number} for number in range(5)]


def test_what_the_program_or_its_children_print_is_not_taken_for_an_answer(transport: Transport, probe: Probe) -> None:
    name = probe("""
        import os, subprocess
        def run(args, talk):
            print("\\x1eend 2 " + "0" * 64)
            os.write(1, b"\\x1eend")
            subprocess.run(["sh", "-c", "cat; echo from a child"], check=True)
            return {"ok": 1}
        """)
    assert call(transport, name) == {"ok": 1}


def test_an_exception_shows_where_it_was_raised(transport: Transport, probe: Probe) -> None:
    name = probe("def run(args, talk):\n    return 1 / args['zero']  # here\n")
    with pytest.raises(HostProgramFailed, match="ZeroDivisionError") as caught:
        call(transport, name, {"zero": 0})
    text = str(caught.value)
    assert 'probes/tried.py", line 2' in text
    assert "return 1 / args['zero']" in text


@pytest.mark.parametrize("returned", ["None", "[1]", "{'x': object()}", "{'x': {1, 2}}"])
def test_a_result_that_is_not_a_document_is_a_failure(transport: Transport, probe: Probe, returned: str) -> None:
    with pytest.raises(HostProgramFailed, match="TypeError"):
        call(transport, probe(f"def run(args, talk):\n    return {returned}\n"))


def test_a_syntax_error_in_a_probe_is_a_failure(transport: Transport, probe: Probe) -> None:
    name = probe("import no_such_module\ndef run(args, talk):\n    return {}\n")
    with pytest.raises(HostProgramFailed, match="no_such_module"):
        call(transport, name)


def test_an_expected_failure_becomes_the_error_of_its_kind(transport: Transport, probe: Probe) -> None:
    name = probe("""
        from ._wire import failure
        def run(args, talk):
            return failure("port_in_use", "Port 30000 is taken.", "Choose another.", ["by pid 7"])
        """)
    with pytest.raises(PortInUse) as caught:
        call(transport, name)
    assert caught.value.to_json() == {
        "kind": "port_in_use",
        "what": "Port 30000 is taken.",
        "next": "Choose another.",
        "details": ["by pid 7"],
        "exit_code": 5,
    }


def test_errors_of_unknown_kind_or_form_are_still_errors() -> None:
    assert type(error_from({"kind": "new", "what": "x"}, "here")) is HostProgramFailed
    assert type(error_from("text", "here")) is HostProgramFailed
    assert type(error_from({"kind": "file_not_as_expected", "what": "x"}, "here")) is FileNotAsExpected


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os._exit(7)", "os.write(talk._write_fd, b'\\x1eend 9 ')"]
)
def test_a_program_that_ends_midway_is_never_a_success(transport: Transport, probe: Probe, ending: str) -> None:
    name = probe(f"""
        import os, sys
        def run(args, talk):
            talk.emit({{"begun": True}})
            os.write(2, b"last words\\n")
            {ending}
            os._exit(0)
        """)
    seen: list[dict[str, object]] = []
    with pytest.raises(HostProgramFailed, match="ended without an answer") as caught:
        call(transport, name, on_event=seen.append)
    assert seen == [{"begun": True}]
    assert "last words" in caught.value.details


def test_the_limit_holds_on_the_host_and_ends_what_it_started(
    transport: Transport, probe: Probe, tmp_path: Path
) -> None:
    name = probe("""
        import os, subprocess
        def run(args, talk):
            try:
                subprocess.run(["sh", "-c", 'echo $$ > "$0"; exec sleep 60', args["pid"]])
            except Exception:
                return {"swallowed": True}
        """)
    with pytest.raises(HostProgramFailed, match=r"not done within 0.5 s"):
        call(transport, name, {"pid": str(tmp_path / "pid")}, timeout_s=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_that_never_answers_is_given_up(
    transport: Transport, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "GRACE_S", 0.2)
    name = probe("""
        import signal, time
        def run(args, talk):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            try:
                while True:
                    talk.receive(60)
            except EOFError:
                import os
                os._exit(0)
        """)
    with pytest.raises(HostProgramFailed, match=r"did not answer within 0.2 s"):
        call(transport, name, timeout_s=0.2)


def test_environment_of_the_inventory_is_set_without_showing_in_a_command(probe: Probe, tmp_path: Path) -> None:
    host = Host(name="here", address="local", env={"DIAG_SECRET": "canary'\n$x"})
    name = probe("""
        import os
        def run(args, talk):
            with open("/proc/self/cmdline" if os.path.exists("/proc/self/cmdline") else os.devnull) as file:
                return {"value": os.environ["DIAG_SECRET"], "cmdline": file.read()}
        """)
    with connect(host) as transport:
        document = call(transport, name)
    assert document["value"] == "canary'\n$x"
    assert "canary" not in document["cmdline"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
def test_a_name_of_an_interpreter_is_never_run_as_shell(text: str) -> None:
    host = Host(name="here", address="local", helper_python=f"/nowhere/{text}")
    with connect(host) as transport, pytest.raises(NoPythonOnHost):
        call(transport, "_wire")


# Finding a Python


def test_no_python_is_its_own_error(transport: Transport) -> None:
    transport.host = transport.host.model_copy(update={"helper_python": "/nowhere/python3"})
    with pytest.raises(NoPythonOnHost) as caught:
        call(transport, "_wire")
    assert "helper_python" in caught.value.next
    assert any("/nowhere/python3" in line for line in caught.value.details)


def fake_python(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = fake_python(tmp_path / "python3", 'test "$1" = -V && echo Python 3.6.8; exit 1')
    host = Host(name="here", address="local", helper_python=old)
    with connect(host) as transport, pytest.raises(NoPythonOnHost) as caught:
        call(transport, "_wire")
    assert f"diag: not usable: {old} (Python 3.6.8)" in caught.value.details


def test_a_python_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe) -> None:
    for name in ("python3", "python3.13", "python3.12"):
        fake_python(tmp_path / name, "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with connect(Host(name="here", address="local")) as transport:
        assert call(transport, probe(ECHO)) == {"args": {}}


def test_the_engines_python_runs_with_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe
) -> None:
    (tmp_path / "engine.py").write_text("VERSION = 3\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = probe("def run(args, talk):\n    import engine\n    return {'version': engine.VERSION}\n")
    with connect(Host(name="here", address="local")) as transport:
        assert call(transport, name, python="python3") == {"version": 3}
        with pytest.raises(HostProgramFailed, match="engine"):
            call(transport, name)


def test_nothing_is_left_in_the_folder_of_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe
) -> None:
    name = probe(ECHO)
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(home))
    with connect(Host(name="here", address="local")) as transport:
        call(transport, name)
    assert list(home.iterdir()) == []


# Conversations

TALKER = """
    import os
    def run(args, talk):
        talk.emit({"event": "ready"})
        try:
            while True:
                message = talk.receive(0.05)
                if message is None:
                    continue
                if message["cmd"] == "stop":
                    return {"stopped": True}
                talk.emit({"got": message})
        except EOFError:
            open(args["left"], "w").write("cleaned up")
            return {"stopped": "laptop gone"}
    """


def test_messages_both_ways(transport: Transport, probe: Probe) -> None:
    with converse(transport, probe(TALKER), {"left": os.devnull}) as conversation:
        assert conversation.next(10) == Event({"event": "ready"})
        conversation.send({"cmd": "hello", "text": "line\nbreak"})
        assert conversation.next(10) == Event({"got": {"cmd": "hello", "text": "line\nbreak"}})
        assert conversation.next(0.01) is None
        conversation.send({"cmd": "stop"})
        assert list(conversation.events(10)) == []
        assert conversation.end == End({"stopped": True})
        assert conversation.next(0) == End({"stopped": True})
    assert conversation.close() == {"stopped": True}


def test_pings_keep_the_host_informed(transport: Transport, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PING_S", 0.05)
    with converse(transport, probe(TALKER), {"left": os.devnull}) as conversation:
        events = conversation.events(10)
        assert next(events) == Event({"event": "ready"})
        assert next(events) == Event({"got": {"cmd": "ping"}})
        assert next(events) == Event({"got": {"cmd": "ping"}})


@pytest.mark.parametrize("kind", [None, ValueError, KeyboardInterrupt])
def test_leaving_waits_until_the_host_has_cleaned_up(
    transport: Transport, probe: Probe, tmp_path: Path, kind: type[BaseException] | None
) -> None:
    left = tmp_path / "left"

    def leave() -> None:
        with converse(transport, probe(TALKER), {"left": str(left)}) as conversation:
            assert conversation.next(10) == Event({"event": "ready"})
            if kind is not None:
                raise kind

    if kind is None:
        leave()
    else:
        with pytest.raises(kind):
            leave()
    assert left.read_text() == "cleaned up"


def test_a_host_that_does_not_finish_is_reported(transport: Transport, probe: Probe) -> None:
    name = probe("""
        import time
        def run(args, talk):
            talk.emit({"pid": __import__("os").getpid()})
            time.sleep(60)
        """)
    conversation = converse(transport, name, close_timeout_s=0.3)
    event = conversation.next(10)
    with pytest.raises(HostProgramFailed, match=r"did not finish within 0.3 s"):
        conversation.close()
    assert isinstance(event, Event)
    os.kill(event.data["pid"], signal.SIGKILL)


def test_silence_is_reported(transport: Transport, probe: Probe) -> None:
    with (
        pytest.raises(HostProgramFailed, match=r"was silent for 0.2 s"),
        converse(transport, probe(TALKER), {"left": os.devnull}) as conversation,
    ):
        for _ in conversation.events(0.2):
            pass


def test_sending_to_a_program_that_has_ended_is_an_error(transport: Transport, probe: Probe) -> None:
    with converse(transport, probe(ECHO)) as conversation:
        assert list(conversation.events(10)) == []
        with pytest.raises(HostProgramFailed, match="no longer reads"):
            _send_until_refused(conversation)


def _send_until_refused(conversation: Conversation) -> None:
    while True:
        conversation.send({"cmd": "x"})
        time.sleep(0.01)


# Over a real server only


@pytest.mark.sshd
def test_one_exec_per_call(sshd: Sshd, probe: Probe) -> None:
    with connect(sshd.host) as transport:
        before = sshd.execs()
        for _ in range(3):
            call(transport, probe(ECHO))
        assert sshd.execs() - before == 3
        with converse(transport, probe(TALKER), {"left": os.devnull}) as conversation:
            assert conversation.next(10) == Event({"event": "ready"})
        assert sshd.execs() - before == 4


@pytest.mark.sshd
def test_banners_of_the_account_are_skipped(start_sshd: Callable[..., Sshd], probe: Probe) -> None:
    noise = r'printf "Welcome!\n\036end 3 \036\377\n"; /bin/sh -c "$SSH_ORIGINAL_COMMAND"; echo Goodbye'
    server = start_sshd(f"ForceCommand {noise}")
    with connect(server.host) as transport:
        assert call(transport, probe(ECHO), {"x": 1}) == {"args": {"x": 1}}


@pytest.mark.sshd
def test_an_account_that_runs_nothing_of_ours(start_sshd: Callable[..., Sshd], probe: Probe) -> None:
    server = start_sshd("ForceCommand echo This account is currently not available.; exit 1")
    with connect(server.host) as transport, pytest.raises(HostProgramFailed, match="exit status 1"):
        call(transport, probe(ECHO))


@pytest.mark.sshd
def test_a_link_cut_midway_is_a_lost_link(start_sshd: Callable[..., Sshd], probe: Probe, tmp_path: Path) -> None:
    server, left = start_sshd(), tmp_path / "left"
    transport = connect(server.host)
    conversation = converse(transport, probe(TALKER), {"left": str(left)})
    assert conversation.next(10) == Event({"event": "ready"})
    cut = [pid for pid in server.session_pids() if _is_sshd(pid)]
    for pid in cut:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(LinkLost):
        conversation.next(10)
    with pytest.raises(LinkLost):
        conversation.send({"cmd": "stop"})
    conversation.close()
    transport.close()
    # The program there has noticed by itself.
    while not left.exists() or not left.read_text():
        time.sleep(0.02)


def _is_sshd(pid: int) -> bool:
    return "sshd" in Path(f"/proc/{pid}/comm").read_text()


def test_a_probe_that_only_looks_ends_with_the_laptop(transport: Transport, probe: Probe, tmp_path: Path) -> None:
    shutil.copy(ROOT / "probes" / "_leash.py", tmp_path / "probes" / "_leash.py")
    name = probe("""
        import os, time
        from . import _leash
        def run(args, talk):
            _leash.tie(talk)
            talk.emit({"pid": os.getpid()})
            if args["wait"]:
                time.sleep(60)
            return {"done": True}
    """)
    assert courier.call(transport, name, {"wait": False}) == {"done": True}
    pids: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        courier.call(transport, name, {"wait": True}, timeout_s=50, on_event=interrupt)
    while Path(f"/proc/{pids[0]}/stat").exists():  # long before its own limit
        time.sleep(0.02)
