"""Which processes are inference servers: by command line, and found running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from probes import _proc, servers


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("python3 -m sglang.launch_server --model-path m", "sglang"),
        ("/venv/bin/python -u -X dev -m sglang.launch_server", "sglang"),
        ("/venv/bin/python3.12 /venv/bin/sglang serve --model-path m", "sglang"),
        ("sglang serve --model-path m", "sglang"),
        ("python -m sglang serve", "sglang"),
        ("python /src/sglang/launch_server.py --port 1", "sglang"),
        ("/venv/bin/python /venv/bin/vllm serve m", "vllm"),
        ("vllm serve m", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python -m vllm.entrypoints.cli.main serve m", "vllm"),
        # not servers
        ("timeout 100 python -m sglang.launch_server", None),
        ("bash -c python -m sglang.launch_server", None),
        ("vim launch_server.py", None),
        ("python -m pytest sglang.launch_server", None),
        ("python bench.py -m sglang.launch_server", None),
        ("vllm bench serve", None),
        ("python -m sglang.bench_serving", None),
        ("grep -r vllm serve", None),
        ("python", None),
        ("python -m", None),
        ("", None),
    ],
)
def test_recognise(line: str, engine: str | None) -> None:
    found = servers.recognise(line.split())
    assert (found.engine if found else None) == engine
    assert found is None or not found.worker


@pytest.mark.parametrize(("title", "engine"), [("sglang::scheduler_TP0", "sglang"), ("VLLM::EngineCore", "vllm")])
def test_a_renamed_worker_is_recognised_as_one(title: str, engine: str) -> None:
    assert servers.recognise([title]) == (engine, True)


@pytest.mark.parametrize(
    ("line", "engine", "listens", "expected"),
    [
        ("s --port 31000", "sglang", [], ("127.0.0.1", 31000)),
        ("s --port=31000 --host 0.0.0.0", "sglang", [], ("0.0.0.0", 31000)),
        ("s --port 1 --port 2", "sglang", [], ("127.0.0.1", 2)),
        ("s", "sglang", [], ("127.0.0.1", 30000)),
        ("s", "vllm", [], ("0.0.0.0", 8000)),
        ("s --config c.yaml", "vllm", [("127.0.0.1", 9000), ("127.0.0.1", 9001)], ("127.0.0.1", 9000)),
        ("s", "vllm", [("127.0.0.1", 5000), ("::", 8000)], ("::", 8000)),
        ("s --port nonsense", "vllm", [], ("0.0.0.0", 8000)),
        ("s", "unknown", [], (None, None)),
        ("s --port", "unknown", [("127.0.0.1", 7)], ("127.0.0.1", 7)),
    ],
)
def test_address(line: str, engine: str, listens: list[tuple[str, int]], expected: tuple[str, int]) -> None:
    assert servers._address(line.split(), engine, listens) == expected


# A server that listens, has a worker that looks like a server too (a fork), and says when both are up.
SERVER = """
import os, socket, sys, time
holder = socket.socket()
holder.bind(("127.0.0.1", 0))
holder.listen()
if os.fork() == 0:
    time.sleep(600)
print(holder.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not _proc.HAS_PROC, reason="sockets of a process are read from /proc")
def test_a_running_server_is_found_once_with_its_port_and_without_its_key(tmp_path: Path) -> None:
    script = tmp_path / "launch_server.py"
    script.write_text(SERVER)
    argv = [sys.executable, "-u", str(script), "--api-key", "hush", "--model-path", "/m/my model"]
    env = {**os.environ, "SGLANG_TEST": "1", "HF_TOKEN": "hush", "DIAG_RUN_ID": "r1"}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=tmp_path, start_new_session=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        answer = servers.run({})
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    mine = [server for server in answer["servers"] if str(script) in server["argv"]]
    assert [server["pid"] for server in mine] == [process.pid]
    [server] = mine
    assert (server["engine"], server["port"], server["listening"]) == ("sglang", port, [f"127.0.0.1:{port}"])
    assert server["argv"] == [*argv[:4], "***", *argv[5:]]
    assert (server["python"], server["cwd"], server["run_id"]) == (sys.executable, str(tmp_path), "r1")
    assert server["site_packages"].endswith("site-packages")
    assert server["env"]["SGLANG_TEST"] == "1"
    assert server["started_at_utc"].endswith("Z")
    assert (server["orphan"], server["other_mounts"]) == (False, False)
    assert "hush" not in str(answer)


def test_a_socket_that_only_binds_is_not_a_listener() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert holder.getsockname()[1] not in {port for _, port in _proc.listening().values()}
