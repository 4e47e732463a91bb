"""Several hosts: what only reads is done on all at once and compared, what changes on one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.playbook import toys
from tests.playbook.conftest import Told
from tests.playbook.toys import Toy

pytestmark = pytest.mark.wheel

Playbook = Callable[..., Told]
BOOK = "schema: 1\nkind: playbook\nname: mine\n{head}steps:\n{steps}"


@pytest.fixture
def three(toy: Toy) -> Toy:
    toys.inventory(toy, ("one", "two", "three"))
    return toy


def written(toy: Toy, steps: str, head: str = "") -> str:
    path = toy.root / "mine.yaml"
    path.write_text(BOOK.format(head=head, steps=steps))
    return str(path)


def test_reading_is_done_on_every_host_of_a_group(three: Toy, playbook: Playbook) -> None:
    told = playbook("run", written(three, "  - {id: src, probe.source: {}}\n", "hosts: every\n"), "--json")
    assert list(told.document["hosts"]) == ["one", "two", "three"]
    assert {host["steps"][0]["state"] for host in told.document["hosts"].values()} == {"done"}
    assert (told.code, told.document["verdict"]) == (1, "found")
    limited = playbook("run", str(three.root / "mine.yaml"), "--limit", "t*", "--json")
    assert list(limited.document["hosts"]) == ["two", "three"]


def test_a_host_that_is_gone_costs_no_other_its_answer(three: Toy, playbook: Playbook) -> None:
    file = three.root / "config" / "hosts.toml"
    dead = '[hosts.dead]\naddress = "127.0.0.1"\nport = 9\n'
    file.write_text(file.read_text().replace("[groups]", f"{dead}[groups]"))
    told = playbook("run", written(three, "  - {id: s, source.show: sglang.launch_server}\n"), "one", "dead", "--json")
    assert (told.code, told.document["hosts"]["dead"]["verdict"]) == (4, "unreachable")
    assert told.document["hosts"]["one"]["verdict"] == "done"


def test_changing_stops_at_the_first_host_that_fails(three: Toy, playbook: Playbook) -> None:
    steps = "  - {id: mend, fix.apply: mask-indptr}\n  - {id: never, assert: mend.changed == false}\n"
    told = playbook("run", written(three, steps, "hosts: every\n"), "--json")
    assert told.code == 1
    assert [host["verdict"] for host in told.document["hosts"].values()] == ["failed", "failed", "failed"]
    assert [len(host["changes"]) for host in told.document["hosts"].values()] == [1, 0, 0]
    assert "not begun" in told.document["hosts"]["two"]["why"]
    assert three.is_pristine()


def test_more_hosts_than_it_is_for(three: Toy, playbook: Playbook) -> None:
    told = playbook("run", written(three, "  - note: x\n", "hosts: {most: 2}\n"), "every")
    assert told.code == 2
    assert "for 2 hosts at a time, not for 3" in told.err
    assert playbook("run", str(three.root / "mine.yaml")).code == 2


def test_health_compares_them(three: Toy, playbook: Playbook) -> None:
    told = playbook("run", "health", "every", "--set", "ask=false", "--json")
    assert list(told.document["hosts"]) == ["one", "two", "three"]
    compared = [each["what"] for each in told.document["differences"]]
    assert [what for what in compared if what.startswith(("package ", "file "))] == []
    assert "Nothing had to be changed" in playbook("run", "health", "one", "--set", "ask=false").out
