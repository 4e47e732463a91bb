"""Keys of nobody, and hosts that must not be let in, whatever the transport."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diag.errors import DiagError
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from tests import conftest

if TYPE_CHECKING:
    from tests.conftest import Sshd


def keygen(path: Path, *options: str) -> str:
    """ "<type> <base64>" of a new key, whose private half is at `path`."""
    conftest.keygen(path, *options)
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def refused(sshd: Sshd, host: Host, kind: type[DiagError]) -> DiagError:
    """Connecting fails with `kind`, no command ran, and no file was changed."""
    before = sshd.execs()
    files = {path: path.read_bytes() for path in sshd.folder.iterdir() if path.name.startswith("known")}
    with pytest.raises(kind) as caught:
        connect(host)
    assert type(caught.value) is kind
    assert caught.value.next
    assert sshd.execs() == before
    assert {path: path.read_bytes() for path in files} == files
    return caught.value
