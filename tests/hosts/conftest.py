"""Probes written by a test, and the two transports to run them over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

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


KINDS = ["local", *(pytest.param(name, marks=pytest.mark.sshd) for name in ("paramiko", "openssh", "container"))]


@pytest.fixture(params=["local", pytest.param("paramiko", marks=pytest.mark.sshd)])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """A connection over each of the two that everything else is made of."""
    host = Host(name="here", address="local") if request.param == "local" else request.getfixturevalue("sshd").host
    with connect(host) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def any_transport(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Transport]:
    """A connection of each kind; the container's is local, with a `docker` that runs what it is given here."""
    if request.param in ("local", "container"):
        host = Host(name="here", address="local")
    else:
        host = request.getfixturevalue("sshd").host.model_copy(update={"transport": request.param})
    if request.param == "container":
        fake_docker(tmp_path / "docker-bin", monkeypatch)
        host = host.model_copy(update={"container": "docker:engine"})
    with connect(host) as opened:
        yield opened


def fake_docker(folder: Path, monkeypatch: pytest.MonkeyPatch, run: str = "exec") -> Path:
    """A stand-in for docker, podman and kubectl in one: no daemon is here. It drops its options, the name and "--",
    and runs the rest by `run`."""
    folder.mkdir(exist_ok=True)
    script = folder / "docker"
    script.write_text(
        '#!/bin/sh\n[ "$1" = exec ] || exit 64\nshift\n'
        'while :; do case "$1" in -i) shift;; -n|-c) shift 2;; *) break;; esac; done\n'
        '[ "$1" = gone ] && { echo "Error response from daemon: No such container: gone" >&2; exit 1; }\n'
        'shift; [ "$1" = -c ] && shift 2; [ "$1" = -- ] && shift\n'
        f'{run} "$@"\n'
    )
    script.chmod(0o755)
    for name in ("podman", "kubectl"):
        (folder / name).write_bytes(script.read_bytes())
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return script
