"""One operator at a time on a host, over real connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.errors import PreconditionFailed
from diag.hosts import holding, reaping
from diag.hosts.holding import held
from diag.hosts.transport import Transport, connect
from tests.conftest import Sshd

pytestmark = pytest.mark.sshd


@pytest.fixture
def connections(sshd: Sshd) -> Iterator[tuple[Transport, Transport]]:
    with connect(sshd.host) as one, connect(sshd.host) as another:
        yield one, another


def test_a_second_operator_is_refused_with_whom_and_since_when(connections: tuple[Transport, Transport]) -> None:
    one, another = connections
    with held(one, "diag bisect, run r1", "r1"):
        lock = reaping.servers(another)["lock"]
        assert (lock["doing"], lock["run"], lock["client"]) == ("diag bisect, run r1", "r1", "127.0.0.1")
        with (
            pytest.raises(PreconditionFailed, match=r"from 127\.0\.0\.1 \(pid \d+\), diag bisect, run r1 for \d+ s"),
            held(another, "diag bisect, run r2", "r2"),
        ):
            pass
        with held(another, "diag bisect, run r1", "r1"):  # another name of the same machine
            pass
        assert reaping.servers(another)["lock"]["run"] == "r1"
    assert reaping.servers(another)["lock"] is None


def test_an_operator_whose_connection_is_gone_blocks_nobody(connections: tuple[Transport, Transport]) -> None:
    one, another = connections
    with held(one, "diag bisect, run r1", "r1"):
        one.close()
        for _ in range(100):
            try:
                with held(another, "diag bisect, run r2", "r2"):
                    return
            except PreconditionFailed:
                continue
    pytest.fail("it is still locked")


def test_a_laptop_that_says_nothing_more_loses_it(
    connections: tuple[Transport, Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link is up, as far as the host can tell: only the lease ends that."""
    one, another = connections
    monkeypatch.setattr(holding, "LEASE_S", 0.5)
    with held(one, "diag bisect, run r1", "r1"):
        for _ in range(100):
            if reaping.servers(another)["lock"] is None:
                return
    pytest.fail("it is still locked")
