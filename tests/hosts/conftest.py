"""Probes written by a test, and the two transports to run them over."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from diag import bundle
from diag.hosts import payload
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """probe("def run(args, talk): ...") makes probes/tried.py, beside the real wire, and returns its name."""
    folder = tmp_path / "probes"
    folder.mkdir()
    for name in ("__init__.py", "_wire.py", "_loader.py"):
        shutil.copy(bundle.folder("probes") / name, folder / name)
    monkeypatch.setattr(bundle, "folder", lambda name: tmp_path / name)
    _forget()

    def write(text: str) -> str:
        (folder / "tried.py").write_text(dedent(text))
        _forget()
        return "tried"

    yield write
    _forget()


def _forget() -> None:
    payload.sources.cache_clear()
    payload._program.cache_clear()


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """A connection over each of the two."""
    host: Any = request.getfixturevalue("sshd").host if request.param == "ssh" else Host(name="here", address="local")
    with connect(host) as opened:
        yield opened
