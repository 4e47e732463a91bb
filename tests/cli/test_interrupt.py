"""Ctrl-C at any point of a bisect, and a client that is killed outright: no server process is left on the host."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from diag.lab.layout import Lab
from tests.lab_fixture import command, lab_processes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

# Seconds after the start: while connecting, while the server starts, while it loads, while it answers, while the
# first server stops and the next one starts.
MOMENTS = (0.4, 1.0, 2.5, 6.0, 9.0, 12.0, 16.0)


def started(lab: Lab, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("bisect", "lab"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_gone(lab: Lab, patience_s: float) -> list[str]:
    deadline = time.monotonic() + patience_s
    while (left := lab_processes(lab)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.parametrize("after_s", MOMENTS)
def test_ctrl_c(lab: Lab, tmp_path: Path, after_s: float) -> None:
    with started(lab, tmp_path) as child:
        time.sleep(after_s)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Interrupted" in err
    assert "Traceback" not in err
    # The command has waited for the host to be clean before it ended: nothing to wait for here.
    assert lab_processes(lab) == []


def test_kill_9_of_the_client(lab: Lab, tmp_path: Path) -> None:
    with started(lab, tmp_path) as child:
        deadline = time.monotonic() + 60
        while not lab_processes(lab) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert lab_processes(lab)
        child.kill()
        child.communicate(timeout=60)
    assert wait_until_gone(lab, 60) == []


@pytest.fixture
def twice(lab: Lab, tmp_path: Path) -> Path:
    """A folder whose inventory knows the lab under a second name: two hosts, each with a connection of its own."""
    entry = lab.inventory_file.read_text()
    (tmp_path / "diag.toml").write_text(entry.replace("[hosts.lab", "[hosts.again"))
    return tmp_path


def test_ctrl_c_with_servers_on_two_hosts(lab: Lab, twice: Path) -> None:
    with subprocess.Popen(
        command("bisect", "lab", "again"),
        cwd=twice,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        deadline = time.monotonic() + 60
        while len(lab_processes(lab)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(lab_processes(lab)) >= 2
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=90)
    assert child.returncode == 130, err
    assert "Nothing that was started on lab, again is left running" in err
    assert lab_processes(lab) == []
