"""`diag playbook` in this process, on a toy host; and the lab's own fixtures come from tests/lab_fixture.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag import cli
from tests.playbook import toys
from tests.playbook.toys import Toy


@dataclass(frozen=True)
class Told:
    """What a command said; document: its JSON, {} where it was not asked for."""

    code: int
    out: str
    err: str
    document: dict[str, Any]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    host = toys.build(tmp_path)
    for name, value in host.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield host
    assert host.servers() == []


@pytest.fixture
def playbook(toy: Toy, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """playbook("run", ...)"""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = cli.run(["playbook", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Told(code, out, err, json.loads(out) if "--json" in arguments else {})

    return run
