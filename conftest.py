"""Fixtures that tests of several folders share, and which tests may run beside each other."""

from __future__ import annotations

from typing import Any

import pytest

pytest_plugins = ["tests.lab_fixture"]

# What these start and end are processes of this machine, and some of them look at all that run: one after the other.
MACHINE = (
    *(f"tests/{folder}/" for folder in ("bisect/over", "cli", "fixes", "hosts", "lab", "probes", "serving")),
    *(f"tests/bisect/test_{name}.py" for name in ("real_hosts", "requests", "command", "several_hosts")),
    *(
        f"tests/playbook/test_{name}.py"
        for name in ("kill_9_playbook", "link", "playbooks_lab", "several", "story_toy")
    ),
    "tests/source/test_source_commands.py",
    "tests/docs/test_first_ten_minutes.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With two workers (`make test`): tests of the machine stay on one of them, the files of all others are shared out.

    xdist's own groups (`--dist loadgroup`) do nothing with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByMachine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "the machine" if nodeid.startswith(MACHINE) else nodeid.split("::")[0]

    return ByMachine(config, log)
