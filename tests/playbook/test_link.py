"""Over a real sshd: the connection is cut in the middle of a run; and somebody else is at work on the host."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diag.hosts import inventory
from diag.hosts.holding import held
from diag.hosts.transport import connect
from diag.playbook import course as courses
from diag.source import inspection
from tests.conftest import Sshd
from tests.playbook import toys
from tests.playbook.conftest import Told
from tests.playbook.toys import Toy

pytestmark = [pytest.mark.wheel, pytest.mark.sshd]

Playbook = Callable[..., Told]
BOOK = """\
schema: 1
kind: playbook
name: mine
steps:
  - {id: mend, fix.apply: mask-indptr}
  - {id: up, server.start: {plan: ddtree-garble, end: failing}}
  - {id: src, probe.source: {}}
  - {id: down, server.stop: up}
"""


@pytest.fixture
def box(toy: Toy, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy host, by SSH."""
    monkeypatch.setattr(courses, "RETRY_WAIT_S", 0.1)
    toys.inventory(
        toy,
        address="127.0.0.1",
        port=sshd.port,
        identity_file=str(sshd.user_key),
        known_hosts=str(sshd.known_hosts),
    )
    (toy.root / "mine.yaml").write_text(BOOK)
    return toy


def cut(sshd: Sshd) -> None:
    for pid in sshd.session_pids():
        name = Path(f"/proc/{pid}/comm")
        with suppress(OSError):
            if name.read_text().startswith("sshd"):
                os.kill(pid, signal.SIGKILL)


def test_a_cut_link_is_made_anew_to_give_back_and_resume_comes_to_the_end(
    box: Toy, sshd: Sshd, playbook: Playbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = inspection.inspect, [1]

    def inspect(*words: Any, **more: Any) -> Any:
        if left:
            left.pop()
            cut(sshd)
        return real(*words, **more)

    monkeypatch.setattr(inspection, "inspect", inspect)
    told = playbook("run", "./mine.yaml", "toy", "--json")
    assert told.code == 4, told.err
    (journal,) = box.runs()
    assert toys.outstanding(journal) == []
    assert box.is_pristine()
    again = playbook("resume", journal.parent.name, "--json")
    assert again.code == 0, again.err
    assert toys.states(journal) == dict.fromkeys(("mend", "up", "src", "down"), "done")
    assert toys.outstanding(journal) == []
    assert box.is_pristine()


def test_somebody_else_is_at_work_there(box: Toy, playbook: Playbook) -> None:
    with connect(inventory.load().get("toy")) as transport, held(transport, "something else", "another-run"):
        told = playbook("run", "./mine.yaml", "toy", "--json")
    assert told.code == 5
    assert "something else" in str(told.document["error"])
    assert (box.is_pristine(), box.servers()) == (True, [])
    (journal,) = box.runs()
    assert toys.states(journal) == {}
    assert playbook("resume", journal.parent.name, "--json").code == 0
