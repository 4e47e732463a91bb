"""Fixtures that tests of several folders share, and which tests may run beside each other."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.lab_fixture"]

# What these start and end are processes of this machine, and some of them look at all that run: one after the other.
MACHINE = tuple(f"tests/{folder}/" for folder in ("bisect/over", "cli", "fixes", "hosts", "lab", "probes", "serving"))
FIXTURES = {"lab", "sshd", "diag"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With two workers (`make test`): tests of the machine stay on one of them, all others go to the other."""
    for item in items:
        where = item.path.relative_to(item.config.rootpath).as_posix()
        if where.startswith(MACHINE) or FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("machine"))
