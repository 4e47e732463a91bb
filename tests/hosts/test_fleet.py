"""Many hosts at once: `diag host check GROUP`, and the threads under it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from diag.cli.host import host as command
from diag.cli.probe import probe
from diag.errors import HostUnreachable, UsageError
from diag.hosts import fleet
from diag.hosts.check import check
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from tests.hosts import valid

if TYPE_CHECKING:
    from conftest import Sshd


def hosts(count: int) -> list[Host]:
    return [Host(name=f"h{at}", address="local") for at in range(count)]


def test_results_come_in_order_and_one_failure_is_one_failure() -> None:
    def work(host: Host, outer: object) -> str:
        if host.name == "h3":
            raise HostUnreachable("It is dead.", next="Look.")
        return host.name.upper()

    seen: list[str] = []
    done = fleet.each(hosts(20), work, on_done=lambda result: seen.append(result.host.name))
    assert [result.value for result in done] == [None if at == 3 else f"H{at}" for at in range(20)]
    assert isinstance(done[3].error, HostUnreachable)
    assert sorted(seen) == sorted(host.name for host in hosts(20))


def test_never_more_than_allowed_at_once() -> None:
    lock, most, now = threading.Lock(), 0, 0

    def work(host: Host, outer: object) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1

    fleet.each(hosts(24), work, at_once=5)
    assert 1 <= most <= 5


def test_a_mistake_of_ours_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        fleet.each(hosts(3), lambda host, outer: 1 / 0)


@pytest.mark.sshd
def test_a_shared_jump_is_one_connection(sshd: Sshd, start_sshd: Callable[..., Sshd]) -> None:
    jump = start_sshd()
    group = [sshd.host_with(name=f"h{at}", jump=jump.host) for at in range(8)]
    done = fleet.each(group, lambda host, outer: check(host, outer))
    assert [result.value.error for result in done if result.value] == [None] * 8
    assert jump.log.read_text().count("Accepted publickey") == 1
    assert jump.execs() == 0
    # Each alone takes one of its own.
    fleet.each(group[:1], lambda host, outer: check(host, outer))
    assert jump.log.read_text().count("Accepted publickey") == 2


@pytest.mark.sshd
def test_a_jump_that_is_down_fails_those_behind_it_only(sshd: Sshd) -> None:
    down = sshd.host_with(name="down", port=1)
    group = [sshd.host_with(name=f"h{at}", jump=down) for at in range(3)] + [sshd.host]
    done = fleet.each(group, lambda host, outer: connect(host, outer=outer).close())
    assert [type(result.error) for result in done] == [HostUnreachable] * 3 + [type(None)]
    # It is tried once: a jump that is silent must not cost its limit for each host behind it.
    tried = []

    def silent(host: Host, **_: object) -> None:
        tried.append(host.name)
        raise HostUnreachable("No answer within 10 s.", next="Look.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diag.hosts.ssh.open_ssh", silent)
        done = fleet.each(group[:3], lambda host, outer: connect(host, outer=outer).close())
    assert [str(result.error) for result in done] == ["No answer within 10 s.\n→ Look."] * 3
    assert tried == ["down"]


@pytest.mark.sshd
def test_check_tells_each_stage(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    common = f'address = "127.0.0.1"\nport = {sshd.port}\nidentity_file = "{sshd.user_key}"\n'
    (tmp_path / "hosts.toml").write_text(
        f'schema = 1\n[hosts.good]\n{common}known_hosts = "{sshd.known_hosts}"\n'
        f'[hosts.mux]\n{common}known_hosts = "{sshd.known_hosts}"\ntransport = "openssh"\n'
        f'[hosts.unknown]\n{common}known_hosts = "{tmp_path}/none"\n[hosts.here]\naddress = "local"\n'
    )
    ran = CliRunner().invoke(command, ["check", "all", "--json"], standalone_mode=False)
    assert ran.return_value == 4
    told = valid.document("host-check", ran.stdout)["hosts"]
    names = {name: [stage["stage"] for stage in one["stages"]] for name, one in told.items()}
    assert names["good"] == ["resolve", "connect", "handshake", "host key", "auth", "python", "exec"]
    assert names["unknown"] == ["resolve", "connect", "handshake", "host key"]
    assert names["mux"] == ["openssh", "python", "exec"]
    assert names["here"] == ["python", "exec"]
    assert [one["ok"] for one in told.values()] == [True, True, False, True]
    assert told["unknown"]["error"]["kind"] == "host_key_unknown"
    assert told["unknown"]["stages"][-1]["ok"] is False
    assert all(stage["seconds"] >= 0 for one in told.values() for stage in one["stages"])
    page = CliRunner().invoke(command, ["check", "all", "--limit", "good,unknown"], standalone_mode=False)
    assert "good: ok (paramiko)" in page.stdout
    assert "! host key" in page.stdout
    assert "diag host trust unknown --fingerprint SHA256:" in page.stdout
    none = CliRunner().invoke(command, ["check", "all", "--limit", "x*"], standalone_mode=False)
    assert isinstance(none.exception, UsageError)


@pytest.fixture
def group(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks of one installation each, and a machine that is down."""
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = ["schema = 1", '[groups]\nranks = ["a", "b"]\nrack = ["ranks", "down"]']
    for name in ("a", "b"):
        site = tmp_path / name / "lib" / "python3.11" / "site-packages"
        (site / "sglang" / "srt").mkdir(parents=True)
        (site / "sglang-0.5.12.dist-info").mkdir()
        (tmp_path / name / "bin").mkdir()
        (tmp_path / name / "bin" / "python").symlink_to("/usr/bin/python3")
        (tmp_path / name / "pyvenv.cfg").write_text("version = 3.11.2\n")
        common = f'address = "127.0.0.1"\nport = {sshd.port}\nidentity_file = "{sshd.user_key}"\n'
        python = f'python = "{tmp_path / name}/bin/python"\n'
        text.append(f'[hosts.{name}]\n{common}{python}known_hosts = "{sshd.known_hosts}"')
    text.append('[hosts.down]\naddress = "127.0.0.1"\nport = 1')
    (tmp_path / "hosts.toml").write_text("\n".join(text))
    return tmp_path


def probe_group(*words: str) -> tuple[int, dict[str, Any], str]:
    ran = CliRunner().invoke(probe, ["host", *words, "--json"], standalone_mode=False)
    assert ran.exception is None, ran.output
    return ran.return_value, valid.document("probe-group", ran.stdout), ran.stderr


@pytest.mark.sshd
def test_a_group_is_compared_and_a_dead_host_is_only_missing(sshd: Sshd, group: Path) -> None:
    before = sshd.execs()
    code, told, err = probe_group("rack", "--no-prompts")
    assert sshd.execs() == before + 2
    # Other servers and engines of this machine, which both ranks see, may have faults of their own.
    faults = [
        one for host_ in told["hosts"].values() for one in host_.get("findings", []) if one["severity"] == "fault"
    ]
    assert code == (1 if faults else 4)
    assert list(told["hosts"]) == ["a", "b", "down"]
    assert told["hosts"]["down"]["error"]["kind"] == "host_unreachable"
    assert "down (127.0.0.1 port 1)" in err
    versions = {"a": "0.5.12", "b": "0.5.9"}
    assert versions not in [one["values"] for one in told["differences"]]
    # One rank gets another version, and a file of it is changed by hand.
    site = group / "b" / "lib" / "python3.11" / "site-packages"
    (site / "sglang-0.5.12.dist-info").rename(site / "sglang-0.5.9.dist-info")
    code, told, _ = probe_group("ranks", "--no-prompts")
    assert code == 1
    [found] = [one for one in told["differences"] if one["values"] == versions]
    assert (found["what"].startswith("package sglang"), found["matters"]) == (True, True)
    page = CliRunner().invoke(probe, ["host", "ranks", "--no-prompts"], standalone_mode=False)
    assert f"  {found['what']}" in page.stdout
    assert "    0.5.9: b" in page.stdout
    code, told, _ = probe_group("ranks", "--no-prompts", "--limit", "a")
    assert list(told["hosts"]) == ["a"]
