"""Inventory files: found, read, and refused with file, line and key."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from diag.errors import InventoryError, UnknownHost, UsageError
from diag.hosts.inventory import Host, load
from diag.hosts.transport import kind_of


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder and a project folder of our own."""
    (tmp_path / "config" / "hosts.d").mkdir(parents=True)
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path / "project" / "below")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text("schema = 1\n" + text)
    return path


def test_all_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.toml",
        """
[hosts.gpu1]
address = "10.0.0.5"
port = 2222
user = "ops"
identity_file = "keys/gpu"
known_hosts = "~/known"
python = "/opt/venv/bin/python"
helper_python = "/usr/bin/python3"
connect_timeout_s = 3
jump = "door"
env = { HF_HOME = "/data" }
[hosts.gpu1.labels]
rack = "7"
[hosts.door]
address = "door.example"
""",
    )
    found = load([path])
    door = Host(name="door", address="door.example")
    assert found.get("door") == door
    assert found.get("gpu1") == Host(
        name="gpu1",
        address="10.0.0.5",
        port=2222,
        user="ops",
        identity_file=tmp_path / "keys" / "gpu",
        known_hosts=Path("~/known").expanduser(),
        python="/opt/venv/bin/python",
        helper_python="/usr/bin/python3",
        connect_timeout_s=3,
        env={"HF_HOME": "/data"},
        labels={"rack": "7"},
        jump=door,
    )
    assert found.origin["gpu1"] == path


def test_files_are_found_and_the_nearer_one_wins(places: Path) -> None:
    write(places / "config" / "hosts.d" / "lab.toml", '[hosts.lab]\naddress = "127.0.0.1"\n[hosts.x]\naddress = "c"')
    write(places / "config" / "hosts.toml", '[hosts.x]\naddress = "b"\n[hosts.y]\naddress = "b"')
    project = write(places / "project" / "diag.toml", '[hosts.x]\naddress = "a"')
    found = load()
    assert {name: host.address for name, host in found.hosts.items()} == {"x": "a", "y": "b", "lab": "127.0.0.1"}
    assert found.files == [project, places / "config" / "hosts.toml", places / "config" / "hosts.d" / "lab.toml"]


def test_no_file_at_all_is_an_empty_inventory() -> None:
    found = load()
    assert found.hosts == {}
    with pytest.raises(UnknownHost) as caught:
        found.get("gpu1")
    assert "no inventory file was found" in caught.value.details


def test_this_machine_is_always_there() -> None:
    assert load().get("local").address == "local"


def test_an_unknown_name_gets_the_nearest_and_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", '[hosts.gpu-one]\naddress = "a"\n[hosts.other]\naddress = "b"')
    with pytest.raises(UnknownHost) as caught:
        load([path]).get("gpu-on")
    assert caught.value.details == ["did you mean: gpu-one", f"read: {path}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[hosts.a]\naddress = "x"\nprot = 22\n', "a.toml:4: hosts.a.prot: Extra inputs are not permitted; known are"),
        ('[hosts.a]\naddress = "x"\nport = 0\n', "a.toml:4: hosts.a.port"),
        ('[hosts.a]\naddress = "x"\nport = "22"\n[hosts.b]\nport = 70000', "a.toml:5: hosts.b.address"),
        ("[hosts.a]\n", "a.toml:2: hosts.a.address: Field required"),
        ('[hosts.a]\naddress = "-oProxyCommand=x"\n', "a.toml:3: hosts.a.address"),
        ('[hosts.a]\naddress = "a b"\n', "hosts.a.address"),
        ('[hosts.a]\naddress = "x"\nuser = "-l root"\n', "a.toml:4: hosts.a.user"),
        ('[hosts."a b"]\naddress = "x"\n', "hosts.a b.name"),
        ('[hosts.a]\naddress = "x"\nname = "b"\n', "remove the key name"),
        ('[hosts.a]\naddress = "x"\n[hosts.a.env]\n"A=B" = "x"\n', "not the name of an environment variable: 'A=B'"),
        ('[hosts.a]\naddress = "x"\nenv = { A = "\\u0000" }\n', "a.toml:4: hosts.a.env"),
        ('[hosts.a]\naddress = "x"\njump = 3\n', "hosts.a.jump must be the name of another host"),
        ('host = "x"\n', "unknown key 'host'"),
        ("hosts = 3\n", "hosts must be a table"),
        ("groups = 3\n", "groups must be a table"),
        ('[groups]\n"a b" = []\n', "'a b' is no name"),
        ('[groups]\na = "x"\n', "groups.a must be a list"),
        ('[hosts.a]\naddress = "x"\n[groups]\na = []\n', "there is a host of that name"),
        ('[hosts.a]\naddress = "x"\ncontainer = "docker:a b"\n', "a.toml:4: hosts.a.container"),
        ('[hosts.a]\naddress = "x"\ncontainer = "docker:--privileged"\n', "a.toml:4: hosts.a.container"),
        ('[hosts.a]\naddress = "x"\ncontainer = "kubectl:pod"\n', "a.toml:4: hosts.a.container"),
        ('[hosts.a]\naddress = "x"\ntransport = "rsh"\n', "a.toml:4: hosts.a.transport"),
        ('[hosts.a]\naddress = "x"\nssh_name = "-oProxyCommand=x"\n', "a.toml:4: hosts.a.ssh_name"),
        ('[hosts.a]\naddress = "x"\nexpected = { gpus = 8 }\n', "hosts.a.expected.gpus"),
        ("[hosts]\na = 3\n", "hosts.a must be a table"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "a.toml", text)
    with pytest.raises(InventoryError) as caught:
        load([path])
    assert any(expected in line for line in caught.value.details), caught.value.details


def test_all_faults_of_a_file_are_shown_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", '[hosts.a]\nport = 0\nx = 1\n[hosts.b]\naddress = ""')
    with pytest.raises(InventoryError) as caught:
        load([path])
    assert len(caught.value.details) == 4


@pytest.mark.parametrize("text", [b"schema = ", b"\xff\xfe", b'schema = 2\n[hosts.a]\naddress = "x"', b""])
def test_a_file_that_is_no_inventory(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(text)
    with pytest.raises(InventoryError, match=r"a\.toml"):
        load([tmp_path / "a.toml"])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="cannot be read"):
        load([tmp_path / "none.toml"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[hosts.a]\naddress = "x"\njump = "b"', "'b' is not a host of the inventory"),
        ('[hosts.a]\naddress = "x"\njump = "a"', "'a' leads back to itself"),
        ('[hosts.a]\naddress="x"\njump="b"\n[hosts.b]\naddress="y"\njump="a"', "leads back to itself"),
    ],
)
def test_a_jump_that_leads_nowhere(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InventoryError, match=expected):
        load([write(tmp_path / "a.toml", text)])


# Groups

GROUPS = """
[hosts.gpu1]
address = "1"
[hosts.gpu2]
address = "2"
[hosts.door]
address = "3"
[groups]
ranks = ["gpu2", "gpu1"]
everything = ["door", "ranks", "gpu1"]
"""


@pytest.mark.parametrize(
    ("target", "limit", "names"),
    [
        ("ranks", None, ["gpu2", "gpu1"]),
        ("everything", None, ["door", "gpu2", "gpu1"]),
        ("all", None, ["gpu1", "gpu2", "door"]),
        ("all", "gpu*", ["gpu1", "gpu2"]),
        ("all", "door, gpu[2-9]", ["gpu2", "door"]),
        ("gpu2", None, ["gpu2"]),
    ],
)
def test_a_group_is_its_hosts_once_and_a_limit_leaves_some_out(
    tmp_path: Path, target: str, limit: str | None, names: list[str]
) -> None:
    assert [host.name for host in load([write(tmp_path / "a.toml", GROUPS)]).select(target, limit)] == names


def test_nothing_left_of_a_group_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--limit cpu"):
        load([write(tmp_path / "a.toml", GROUPS)]).select("ranks", "cpu*")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[groups]\na = ["b"]', "'b' is neither a host nor a group"),
        ('[groups]\na = ["a"]', "'a' contains itself"),
        ('[groups]\na = ["b"]\nb = ["a"]', "contains itself"),
    ],
)
def test_a_group_that_leads_nowhere(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InventoryError, match=expected):
        load([write(tmp_path / "a.toml", text)])


# Names that only the user's SSH configuration knows


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ssh reads the configuration of the account, whatever HOME says: put one before it that reads ours."""
    real = shutil.which("ssh")
    if real is None:
        pytest.skip("OpenSSH's client is not installed")
    path, fake = tmp_path / "ssh_config", tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase "$2" in -F) exec {real} "$@";; esac\nexec {real} -F {path} "$@"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    return path


def test_a_name_that_ssh_knows_is_taken_from_there(ssh_config: Path, tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    ssh_config.write_text(
        f"Host gpu*\n HostName %h.cluster\n User ops\n Port 2222\n IdentityFile {tmp_path}/key\n"
        f" UserKnownHostsFile {tmp_path}/known\n"
    )
    assert load().get("gpu7") == Host(
        name="gpu7",
        address="gpu7.cluster",
        port=2222,
        user="ops",
        identity_file=tmp_path / "key",
        known_hosts=tmp_path / "known",
    )


def test_what_ssh_says_of_every_name_does_not_make_one_known(ssh_config: Path) -> None:
    ssh_config.write_text("Host *\n User ops\n IdentityFile ~/.ssh/special\n")
    for name in ("gpu7", "GPU7", "-oProxyCommand=touch canary", "a b", "", "a\nb"):
        with pytest.raises(UnknownHost):
            load().get(name)


def test_settings_for_every_name_count_for_a_known_one(ssh_config: Path, tmp_path: Path) -> None:
    ssh_config.write_text(f"Host gpu7\n HostName 10.0.0.7\nHost *\n UserKnownHostsFile {tmp_path}/known\n User ops\n")
    host = load().get("gpu7")
    assert (host.address, host.user, host.known_hosts) == ("10.0.0.7", "ops", tmp_path / "known")
    assert host.identity_file is None


def test_proxy_jump_is_followed_hop_by_hop(ssh_config: Path) -> None:
    ssh_config.write_text(
        "Host gpu7\n HostName 10.0.0.7\n User ops\n ProxyJump outer,guest@door:2200\n"
        "Host door\n HostName door.example\nHost outer\n HostName outer.example\n User me\n"
    )
    host = load().get("gpu7")
    assert host.jump is not None
    assert (host.jump.address, host.jump.port, host.jump.user) == ("door.example", 2200, "guest")
    assert host.jump.jump is not None
    assert (host.jump.jump.address, host.jump.jump.port, host.jump.jump.user) == ("outer.example", 22, "me")
    assert host.jump.jump.jump is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ProxyJump gpu7", "in a circle"),
    ],
)
def test_what_diag_cannot_follow_is_refused(ssh_config: Path, text: str, expected: str) -> None:
    ssh_config.write_text(f"Host gpu7\n HostName 10.0.0.7\n {text}\n")
    with pytest.raises(InventoryError, match=expected):
        load().get("gpu7")


@pytest.mark.parametrize(
    "text",
    ["ProxyCommand nc %h %p", "HostKeyAlias other", "GSSAPIAuthentication yes", "CertificateFile ~/.ssh/a-cert.pub"],
)
def test_what_paramiko_cannot_follow_is_left_to_openssh(ssh_config: Path, text: str) -> None:
    ssh_config.write_text(f"Host gpu7\n HostName 10.0.0.7\n {text}\n")
    host = load().get("gpu7")
    assert (host.transport, host.ssh_name, kind_of(host)) == ("openssh", "gpu7", "openssh")


def test_the_inventory_comes_before_ssh(ssh_config: Path, tmp_path: Path) -> None:
    ssh_config.write_text("Host gpu7\n HostName 10.0.0.7\n")
    path = write(tmp_path / "a.toml", '[hosts.gpu7]\naddress = "mine"')
    assert load([path]).get("gpu7").address == "mine"


def test_reading_the_inventory_loads_neither_paramiko_nor_httpx() -> None:
    code = "import sys, diag.hosts.inventory; print([m for m in ('paramiko', 'httpx', 'asyncssh') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_host_with_sets_of_gpus_is_a_slot_for_each(tmp_path: Path) -> None:
    text = '[hosts.big]\naddress = "10.0.0.5"\ngpu_sets = ["0,1", "2,3"]\n[hosts.small]\naddress = "10.0.0.6"\n'
    known = load([write(tmp_path / "diag.toml", text)])
    slots = known.slots("all")
    assert [slot.name for slot in slots] == ["big.gpu0-1", "big.gpu2-3", "small"]
    assert [slot.gpus for slot in slots] == [("0", "1"), ("2", "3"), ()]
    assert known.slots("big.gpu2-3") == [slots[1]]
    assert known.get("big").gpus == ()
    with pytest.raises(UnknownHost):
        known.slots("big.gpu4")


@pytest.mark.parametrize(
    ("sets", "why"), [('["0,1", "1,2"]', "GPU 1 is named twice"), ('["0, 1"]', "pattern"), ('["../x"]', "pattern")]
)
def test_sets_of_gpus_that_are_none(tmp_path: Path, sets: str, why: str) -> None:
    path = write(tmp_path / "diag.toml", f'[hosts.big]\naddress = "10.0.0.5"\ngpu_sets = {sets}\n')
    with pytest.raises(InventoryError) as raised:
        load([path])
    assert why in str(raised.value.details)
