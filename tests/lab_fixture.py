"""A lab of the tests' own: built once a session, in folders that are theirs, with the shared cache of fetched files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.lab.layout import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running lab; DIAG_STATE_DIR and DIAG_CONFIG_DIR point at it for the whole session."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the lab extra is not installed")
    from diag.lab import control

    root = tmp_path_factory.mktemp("lab")
    with environment(DIAG_STATE_DIR=str(root / "state"), DIAG_CONFIG_DIR=str(root / "config")):
        where = Lab.default()
        control.up(where, lambda line: None)
        yield where
        assert lab_processes(where) == [], "a test left a server running"
        control.down(where, lambda line: None)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def lab_processes(lab: Lab) -> list[str]:
    """Command lines of everything that runs with the lab's interpreter."""
    from diag.lab import control

    return [" ".join(argv) for _, argv in control._lab_processes(lab)]


@dataclass(frozen=True)
class Ran:
    """A finished `diag` command."""

    code: int
    out: str
    err: str


TWO_PROMPTS = """\
schema: 1
name: two
max_new_tokens: 16
prompts:
  - {name: poem, user: "Write a short poem about the ocean."}
  - {name: cycle, text: "a1 b2 c3 d4 e5 f6 a1 b2 c3 d4 e5 f6 a1 b2"}
"""
"""A suite that keeps trials short."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from diag.cli import main; main()", *arguments]


@pytest.fixture(scope="session")
def diag() -> Callable[..., Ran]:
    """diag("probe", "host", "lab") runs the real command in a process of its own, as a person would."""

    def run(
        *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 300
    ) -> Ran:
        done = subprocess.run(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
