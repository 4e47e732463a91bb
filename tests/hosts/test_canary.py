"""Planted secrets through every command that touches a host, with everything logged that can be: found nowhere."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from diag.cli import COMMANDS, cli
from probes import _proc

if TYPE_CHECKING:
    from conftest import Sshd

pytestmark = [pytest.mark.sshd, pytest.mark.skipif(not _proc.HAS_PROC, reason="reads /proc")]
FAKE = Path(__file__).parents[1] / "probes" / "fake_server.py"

# What asks no host, or (a bisection, a playbook) does so by the same program as those below.
OTHERS = {"bisect", "playbook", "plan", "init", "report", "lab", "explain", "completion"}

IN_INVENTORY = "canary-of-the-inventory"
IN_ARGV = "canary-of-the-argv"
IN_ENV = "canary-of-the-environment"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server with secrets in its command line and its environment."""
    script = tmp_path / "launch_server.py"
    shutil.copy(FAKE, script)
    log = tmp_path / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, script, "0", "--api-key", IN_ARGV],
            env={**os.environ, "HF_TOKEN": IN_ENV, "SGLANG_API_KEY": IN_ENV, "DIAG_RUN_ID": "canary-run"},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    while b"serving" not in log.read_bytes():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def hosts(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One host by each transport; the laptop's own folders are below the returned one."""
    folder = tmp_path / "laptop"
    folder.mkdir()
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"DIAG_{name}_DIR", str(folder / name.lower()))
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(folder)
    common = (
        f'address = "127.0.0.1"\nport = {sshd.port}\nidentity_file = "{sshd.user_key}"\n'
        f'known_hosts = "{sshd.known_hosts}"\n'
        f'env = {{ MY_TOKEN = "{IN_INVENTORY}", XDG_STATE_HOME = "{tmp_path}/host" }}\n'
    )
    (tmp_path / "hosts.toml").write_text(
        f'schema = 1\n[hosts.box]\n{common}[hosts.mux]\n{common}transport = "openssh"\n'
        '[groups]\nboth = ["box", "mux"]\n'
    )
    return folder


class CommandLines(threading.Thread):
    """Looks at every process's arguments, again and again."""

    def __init__(self, but: int) -> None:
        super().__init__(daemon=True)
        self.but, self.seen, self.done = but, set[str](), threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.01):
            for folder in Path("/proc").iterdir():
                if folder.name.isdigit() and int(folder.name) != self.but:
                    with contextlib.suppress(OSError):
                        self.seen.add((folder / "cmdline").read_bytes().decode(errors="replace"))


def commands(pid: int) -> list[list[str]]:
    """Every one that takes a host, and those that show what is kept here; `stop` comes last."""
    unknown = "SHA256:" + "A" * 43
    return [
        *(["host", "list"], ["host", "list", "--json"], ["host", "show", "box"], ["host", "show", "box", "--json"]),
        *(["host", "check", "both"], ["host", "check", "both", "--json"]),
        ["host", "trust", "box", "--fingerprint", unknown],
        *(["probe", "host", "box"], ["probe", "host", "mux", "--json"], ["probe", "host", "both", "--no-prompts"]),
        *(["probe", "host", "box", "--share"], ["probe", "host", "box", "--no-prompts", "--share", "--json"]),
        *(["probe", "source", "box"], ["probe", "source", "box", "--json"]),
        ["source", "box:sglang.srt.layers.attention.triton_backend:TritonAttnBackend"],
        *(["fix", "status", "box", "mask-indptr"], ["fix", "apply", "box", "mask-indptr", "--check"]),
        *(["server", "list", "box"], ["server", "list", "mux", "--json"]),
        *(["server", "logs", "box", str(pid)], ["server", "logs", "box", str(pid), "--json"]),
        ["runs", "list"],
        ["server", "stop", "box", str(pid), "--json"],
    ]


def test_no_secret_comes_out_anywhere(hosts: Path, server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert {words[0] for words in commands(0)} >= set(COMMANDS) - OTHERS
    log = StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    watcher = CommandLines(server.pid)
    watcher.start()
    said = {}
    try:
        for words in commands(server.pid):
            ran = CliRunner().invoke(cli, words, standalone_mode=False)
            said[" ".join(words)] = ran.output + repr(ran.exception) + str(ran.exception)
    finally:
        watcher.done.set()
        watcher.join()
        root.setLevel(before)
        root.removeHandler(handler)
    server.wait(10)
    said["log of the libraries"] = log.getvalue()
    said["command lines"] = "\n".join(watcher.seen)
    for folder in (hosts, tmp_path / "host"):
        said |= {str(path): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}
    assert "kex" in said["log of the libraries"]  # it was on
    assert any("evidence" in name for name in said)
    leaks = [
        (name, canary) for name, text in said.items() for canary in (IN_INVENTORY, IN_ARGV, IN_ENV) if canary in text
    ]
    assert leaks == []
