"""Real crashes: over a real sshd the program on the host is killed, or its connection cut, after every operation."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diag.errors import HostProgramFailed, LinkLost
from diag.fixes import transaction
from diag.hosts import courier
from diag.hosts.transport import connect
from tests.conftest import Sshd
from tests.fixes.crashing import FIX, Rig, Watch, cut_off, doubled, problems

pytestmark = pytest.mark.sshd


@pytest.fixture
def rigs(tmp_path: Path, sshd: Sshd) -> Iterator[Callable[[], Rig]]:
    """In memory where there is such a place: what a crash of the machine leaves is not shown here, and thousands of
    real syncs would take minutes on a busy disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="diag-crash-") as folder, doubled(tmp_path / "bundle"):

        def make() -> Rig:
            rig = Rig.build(Path(tempfile.mkdtemp(dir=folder)))
            rig.prepare(sshd.host)
            return rig

        yield make


@pytest.fixture
def rig(rigs: Callable[[], Rig]) -> Rig:
    return rigs()


@pytest.mark.parametrize("act", ["apply", "revert"])
def test_killed_after_every_operation(act: str, rig: Rig, sshd: Sshd) -> None:
    args = {"action": "batch", "hows": ["kill", "tear"], "then": ["apply", "revert"], **rig.args(act)}
    with connect(rig.host(sshd.host)) as transport, Watch(rig) as watch:
        document = courier.call(transport, "fixtx", args, timeout_s=120)
    rows = document["rows"]
    assert [problem for row in rows for problem in problems(row)] == []
    assert watch.torn == []
    assert watch.looks > len(rows)
    assert all(row["struck"] for row in rows)
    assert {row["after"] for row in rows if row["how"] == "kill"} == set(range(1, document["operations"] + 1))
    states = Counter(row["state"] for row in rows)
    assert min(states[state] for state in ("applied", "not_applied", "outstanding")) >= 2, states


def test_cut_off_after_every_operation(rigs: Callable[[], Rig], sshd: Sshd) -> None:
    """The program lives on without its connection; whoever comes next finds what it made, or waits for it."""
    parts = [("apply", 0), ("apply", 1), ("revert", 0)]  # at the same time, each on a host of its own
    made = [rigs() for _ in parts]
    counts = {}
    for act in ("apply", "revert"):
        with connect(made[0].host(sshd.host)) as transport:
            counts[act] = len(courier.call(transport, "fixtx", {"action": "chain", **made[0].args(act)})["names"])
    chains = {"apply": 2, "revert": 1}

    def part(rig: Rig, act: str, first: int) -> list[dict[str, Any]]:
        with Watch(rig) as watch:
            rows = cut_off(rig, sshd.host, act, range(1 + first, counts[act] + 1, chains[act]))
        assert watch.torn == []
        return rows

    with ThreadPoolExecutor(len(parts)) as pool:
        rows = [row for each in pool.map(lambda pair: part(pair[0], *pair[1]), zip(made, parts)) for row in each]
    assert [problem for row in rows for problem in problems(row)] == []
    assert sorted((row["act"], row["after"]) for row in rows) == [
        (act, after) for act in counts for after in range(1, counts[act] + 1)
    ]
    assert {(row["act"], row["state"]) for row in rows} == {("apply", "applied"), ("revert", "not_applied")}


@pytest.mark.parametrize("how", ["kill", "cut"])
@pytest.mark.parametrize("act", ["apply", "revert"])
def test_what_the_person_sees(act: str, how: str, rig: Rig, sshd: Sshd) -> None:
    """The same from the laptop's side, for an operation now and then: the error, the status, the way on."""
    host = rig.host(sshd.host)
    rig.restore("apply")
    with connect(host) as transport:
        before = transaction.inspect(transport, FIX, str(rig.site))

    def do(what: str) -> None:
        if what == "apply":
            transaction.apply_files(transport, FIX, before, rig.changes())
        else:
            transaction.revert(transport, FIX, before)

    for after, then in ((20, "apply"), (25, "revert")):
        rig.restore(act)
        rig.order(after=after, how=how)
        with connect(host) as transport, pytest.raises(LinkLost if how == "cut" else HostProgramFailed) as caught:
            do(act)
        assert caught.value.next
        with connect(host) as transport:
            seen = transaction.inspect(transport, FIX, str(rig.site)).standing
            while seen.holder is not None:  # cut off, it works on
                seen = transaction.inspect(transport, FIX, str(rig.site)).standing
            side = rig.side()
            assert seen.state in {"old": ("not_applied", "outstanding"), "new": ("applied", "outstanding")}.get(
                side, ("outstanding",)
            )
            do(then)
            after_all = transaction.inspect(transport, FIX, str(rig.site)).standing
        assert (rig.side(), after_all.state) == (("new", "applied") if then == "apply" else ("old", "not_applied"))
        assert rig.litter() == []


def test_status_while_one_works_without_its_connection(rig: Rig, sshd: Sshd) -> None:
    host = rig.host(sshd.host)
    rig.restore("apply")
    with connect(host) as transport:
        before = transaction.inspect(transport, FIX, str(rig.site))
        gate = rig.root / "gate"
        rig.order(after=30, how="cut", gate=str(gate))
        with pytest.raises(LinkLost):
            transaction.apply_files(transport, FIX, before, rig.changes())
    with connect(host) as transport:
        seen = transaction.inspect(transport, FIX, str(rig.site)).standing
        assert seen.state == "outstanding"
        assert seen.holder is not None
        assert seen.holder["client"] == "127.0.0.1"
        assert rig.side() == "old"
        gate.touch()
        # Whoever comes waits for the one who is at it, and then has nothing to do.
        assert transaction.apply_files(transport, FIX, before, rig.changes())["changed"] is False
    assert rig.side() == "new"
