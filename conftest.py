"""Fixtures that tests of several folders share, and which tests may run beside each other."""

from __future__ import annotations

from typing import Any

import pytest

pytest_plugins = ["tests.lab_fixture"]

# What these start and end are processes of this machine, and some of them look at all that run: one after the other,
# on one worker, where the workers see each other's processes.
MACHINE = (
    *(f"tests/{folder}/" for folder in ("bisect/over", "cli", "fixes", "hosts", "lab", "probes", "serving")),
    *(f"tests/bisect/test_{name}.py" for name in ("real_hosts", "requests", "command", "several_hosts")),
    *(f"tests/playbook/test_{name}.py" for name in ("kill_9_playbook", "link", "playbooks_lab", "several")),
    *(f"tests/playbook/test_{name}.py" for name in ("story_toy", "undo")),
    "tests/source/test_source_commands.py",
    "tests/docs/test_first_ten_minutes.py",
)
# Minutes each: first, so that no worker ends with one of them alone.
LONG = (
    *("tests/playbook/test_playbooks_lab.py", "tests/cli/test_story.py", "tests/lab/test_lab_server.py"),
    *("tests/docs/test_first_ten_minutes.py", "tests/hosts/", "tests/bisect/test_real_hosts.py"),
    *("tests/lab/test_lab_faults.py", "tests/serving/test_vllm.py", "tests/cli/test_bisect_lab.py"),
    *("tests/fixes/", "tests/playbook/test_mutated.py", "tests/bisect/over/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((at for at, one in enumerate(LONG) if item.nodeid.startswith(one)), len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two workers (`make test`). xdist's own groups (`--dist loadgroup`) do nothing with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    # Each worker in a process namespace of its own (see the Makefile), or not.
    apart = "unshare" in str(config.getoption("tx", default=""))
    together = ("tests/hosts/",) if apart else MACHINE

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            """The network namespaces of tests/hosts have names that the machine knows only once."""
            return "together" if nodeid.startswith(together) else nodeid.split("::")[0]

    return ByFile(config, log)
