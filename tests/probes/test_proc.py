"""Parsers of the process table, the port table and command lines; and what never leaves the host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import _ports, _proc

STAT = "{pid} ({name}) S 1 {pid} {pid} 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 18446744073709551615"


@pytest.mark.parametrize("name", ["python3", "a b", "sglang::sched", ") R 9 9 9", "((", ""])
def test_stat_survives_any_process_name(name: str) -> None:
    process = _proc.parse_stat(STAT.format(pid=42, name=name, start=777))
    assert process == _proc.Process(42, 1, 42, "S", "777", ())


@given(st.text(max_size=15), st.integers(1, 1 << 22), st.integers(0, 1 << 40))
def test_stat_of_any_name(name: str, pid: int, start: int) -> None:
    assert _proc.parse_stat(STAT.format(pid=pid, name=name, start=start)).key == (pid, str(start))


@pytest.mark.parametrize("line", ["", "42 (x) S 1", "garbage"])
def test_what_is_no_stat_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a stat line"):
        _proc.parse_stat(line)


@pytest.mark.parametrize(
    ("raw", "argv"),
    [
        (
            b"python\0-m\0sglang.launch_server\0--model-path\0/m/my model\0",
            "python|-m|sglang.launch_server|--model-path|/m/my model",
        ),
        (b"sglang::scheduler\0\0\0\0\0", "sglang::scheduler"),
        (b"python\0-c\0\0x\0", "python|-c||x"),
        (b"", None),
        (b"a\xff\0", "a\\xff"),
    ],
)
def test_cmdline(raw: bytes, argv: str | None) -> None:
    assert _proc.parse_cmdline(raw) == (tuple(argv.split("|")) if argv is not None else ())


PS = """    1     0     1 Ss   Sat Nov 29 17:15:55 2025 /sbin/launchd
  512     1   512 S+   Sat Nov  1 07:01:02 2025 python -m sglang.launch_server --port 30000
garbage
   99   512   512 Z    Sat Nov 29 17:16:00 2025 (python)
"""


def test_ps_listing() -> None:
    first, second, third = _proc.parse_ps(PS)
    assert first == _proc.Process(1, 0, 1, "S", "Sat Nov 29 17:15:55 2025", ("/sbin/launchd",))
    assert second.argv == ("python", "-m", "sglang.launch_server", "--port", "30000")
    assert third.state == "Z"


def test_ps_of_this_machine_agrees_with_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    by_proc = {process.pid: process for process in _proc.processes()}
    monkeypatch.setattr(_proc, "HAS_PROC", False)
    by_ps = {process.pid: process for process in _proc.processes()}
    if not by_ps:
        pytest.skip("no ps here")
    me = os.getpid()
    assert (by_ps[me].ppid, by_ps[me].group) == (by_proc[me].ppid, by_proc[me].group)
    assert by_ps[me].argv[0] == by_proc[me].argv[0]


def test_the_start_time_is_a_time_of_day() -> None:
    begun = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        [process] = [process for process in _proc.processes() if process.pid == child.pid]
        started = _proc.started_unix(process)
        child.communicate(b"\n")
    # Not a limit on time: both are readings of the same moment, the kernel's by ticks since boot.
    assert started is not None
    assert abs(started - begun) < 60


def test_marked_processes_are_found_by_their_variable() -> None:
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    children = [
        subprocess.Popen(argv, env={**os.environ, _proc.MARK: run}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for run in ("run-1", "run-12")
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # its environment is its own only after exec
    pids = [child.pid for child in children]
    assert _proc.marked("run-1", [*pids, 1, 1 << 22]) == {pids[0]}
    for child in children:
        child.communicate(b"\n")


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1111 1 0 100 0 0 10 0
   1: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2222 1 0 100 0 0 10 0
   2: 0100007F:7530 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3333 1 0 100 0 0 10 0
short line
"""
TCP6 = """  sl  local_address                         remote_address                        st ...
   0: 00000000000000000000000001000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4444 1 0
"""


def test_listening_sockets() -> None:
    assert _proc.parse_listening(TCP) == {"1111": ("127.0.0.1", 30000), "2222": ("0.0.0.0", 8000)}
    assert _proc.parse_listening(TCP6) == {"4444": ("::1", 30000)}
    assert _proc.parse_listening("") == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_with_a_listener_is_not_free_and_has_a_holder(address: str) -> None:
    with socket.socket() as holder:
        holder.bind((address, 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not _proc.port_is_free(port)
        assert os.getpid() in {process.pid for process in _ports.holders(port)}
    assert _proc.port_is_free(port)


# --- commands ---


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        ("print('yes')", "yes\n", ""),
        ("import sys; sys.exit('no GPU\\nfound')", "", "failed with 1: found"),
        ("import sys; sys.exit(9)", "", "failed with 9: no message"),
        ("import time, signal; signal.signal(15, lambda *a: 0); time.sleep(600)", "", "no answer within 0.5 s"),
    ],
)
def test_commands_answer_or_say_why_not(code: str, said: str, why: str) -> None:
    answer = _proc.command([sys.executable, "-c", code], 0.5 if "sleep" in code else 60)
    assert answer[0] == said
    assert why in answer[1]
    assert bool(answer[1]) == bool(why)


def test_a_missing_command_is_named() -> None:
    assert _proc.command(["nvidia-smi-that-is-not-here"], 1)[1].startswith("nvidia-smi-that-is-not-here: ")


# --- secrets ---


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("vllm serve m --api-key k1", "vllm serve m --api-key ***"),
        ("vllm serve m --api-key=k1", "vllm serve m --api-key=***"),
        ("env HF_TOKEN=t1 python x", "env HF_TOKEN=*** python x"),
        ("s --admin-api-key a --ssl-keyfile-password p", "s --admin-api-key *** --ssl-keyfile-password ***"),
        ("s --hf-token hf_x --port 1", "s --hf-token *** --port 1"),
        ("s --url http://me:pw@h/x", "s --url http://***@h/x"),
        ("s sk-abcdefghijklmnopqrst", "s ***"),
        # what a diagnosis needs stays
        ("s --speculative-num-draft-tokens 4", "s --speculative-num-draft-tokens 4"),
        ("s --max-total-tokens=65536", "s --max-total-tokens=65536"),
        ("s --tokenizer-path /m/tok --tokenizer-mode auto", "s --tokenizer-path /m/tok --tokenizer-mode auto"),
        ("s --ssl-keyfile /etc/k.pem", "s --ssl-keyfile /etc/k.pem"),
        ("s --enable-prompt-tokens-details --port 1", "s --enable-prompt-tokens-details --port 1"),
        ("s --api-key", "s --api-key"),
        ("s --enable-auth true VLLM_AUTH=1", "s --enable-auth true VLLM_AUTH=1"),
    ],
)
def test_command_lines_are_shown_without_secrets(argv: str, shown: str) -> None:
    assert " ".join(_proc.hide_argv(argv.split(" "))) == shown


@given(st.lists(st.text(max_size=12), max_size=6), st.text("abcdefXYZ0189", min_size=12, max_size=20))
def test_a_key_never_shows_wherever_it_stands(words: list[str], key: str) -> None:
    shown = _proc.hide_argv([*words, "--api-key", key, "--other", "x" + key, "--api-key=" + key])
    assert key not in shown
    assert "--api-key=" + key not in shown


def test_only_telling_variables_are_shown_and_secret_ones_are_not() -> None:
    env = {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "t",
        "HF_HOME": "/h",
        "VLLM_API_KEY": "k",
        "MAIL": "m",
        "PYTHONPATH": "/p",
    }
    assert _proc.telling(env) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HOME": "/h",
        "HF_TOKEN": "***",
        "PYTHONPATH": "/p",
        "VLLM_API_KEY": "***",
    }


@pytest.mark.parametrize(
    "token", ["sk-abcdefghijklmnop12", "hf_abcdefghijklmnop12", "ghp_abcdefghijklmnop12", "AKIAIOSFODNN7EXAMPLE99"]
)
def test_tokens_are_known_by_their_shape_also_where_a_line_is_coloured(token: str) -> None:
    for line in (f"key {token}.", f"\x1b[31m{token}\x1b[0m", f"'{token}'"):
        assert token not in _proc.hide(line)
        assert "***" in _proc.hide(line)
