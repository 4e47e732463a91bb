"""Fixtures that tests of several folders share, and which tests may run beside each other."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["tests.lab_fixture"]

# What these start and end are processes of this machine: one after the other, on one worker.
STARTING = (
    *("tests/bisect/over/", "tests/fixes/"),
    *(f"tests/bisect/test_{name}.py" for name in ("real_hosts", "requests", "command", "several_hosts")),
)
# These look at all that run, too, and would see what another worker has started.
LOOKING = (
    *(f"tests/{folder}/" for folder in ("cli", "hosts", "probes", "serving")),
    *(f"tests/playbook/test_{name}.py" for name in ("kill_9_playbook", "link", "playbooks_lab", "several")),
    *(f"tests/playbook/test_{name}.py" for name in ("story_toy", "undo")),
    "tests/source/test_source_commands.py",
    "tests/docs/test_first_ten_minutes.py",
)
# Servers of the lab, which nobody else needs: on the other worker, and before anybody looks.
LAB = ("tests/lab/",)
ORDER = (STARTING, LAB, LOOKING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long and stays together comes first, so that both workers have something to the end."""
    items.sort(key=lambda item: next((at for at, one in enumerate(ORDER) if item.nodeid.startswith(one)), len(ORDER)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With two workers (`make test`): tests of the machine stay on one of them, the files of all others are shared out.

    xdist's own groups (`--dist loadgroup`) do nothing with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByMachine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(LAB):
                return "the lab"
            return "the machine" if nodeid.startswith((*STARTING, *LOOKING)) else nodeid.split("::")[0]

    return ByMachine(config, log)


class Turn:
    """A lock file that the workers of a session share: held while servers of the lab may run."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.held = False

    def take(self) -> None:
        if not self.held:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self.held = True

    def give(self) -> None:
        if self.held:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.held = False


TURN = pytest.StashKey[Turn]()


def _turn(config: pytest.Config) -> Turn:
    if TURN not in config.stash:
        base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        config.stash[TURN] = Turn((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "lab.lock")
    return config.stash[TURN]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that look wait until those of the lab are through, which hold the lock from their first to their last."""
    if item.nodeid.startswith((*LAB, *LOOKING)):
        _turn(item.config).take()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    goes_on = nextitem is not None and item.nodeid.startswith(LAB) and nextitem.nodeid.startswith(LAB)
    if item.nodeid.startswith((*LAB, *LOOKING)) and not goes_on:
        _turn(item.config).give()
