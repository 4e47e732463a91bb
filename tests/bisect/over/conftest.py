"""Here `diag` runs in this process: dozens of command lines, and a process for each would take half a minute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from diag import cli
from tests.lab_fixture import Ran, environment


@pytest.fixture
def diag(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
        before = Path.cwd()
        os.chdir(cwd or before)
        capsys.readouterr()
        try:
            with environment(**(env or {})):
                code = cli.run(list(arguments))
        finally:
            os.chdir(before)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
