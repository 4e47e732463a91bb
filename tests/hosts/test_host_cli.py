"""`diag host list` and `diag host show`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from diag.cli.host import host
from diag.errors import UnknownHost
from tests.hosts import valid


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hosts.toml"


@pytest.fixture
def two(config: Path) -> Path:
    config.write_text(
        'schema = 1\n[hosts.gpu1]\naddress = "10.0.0.5"\nuser = "ops"\nenv = { HF_TOKEN = "canary" }\n'
        'labels = { rack = "7" }\njump = "door"\n[hosts.door]\naddress = "door.example"\nport = 2222\n'
    )
    return config


def test_list(two: Path) -> None:
    done = CliRunner().invoke(host, ["list"])
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "ADDRESS", "PORT", "USER", "FROM"],
        ["gpu1", "10.0.0.5", "22", "ops", str(two)],
        ["door", "door.example", "2222", "-", str(two)],
    ]


def test_list_as_json(two: Path) -> None:
    document = valid.document("host-list", CliRunner().invoke(host, ["list", "--json"]).stdout)
    assert (document["schema"], document["files"]) == (1, [str(two)])
    assert document["groups"] == {}
    assert document["hosts"][0] == {
        "name": "gpu1",
        "address": "10.0.0.5",
        "port": 22,
        "user": "ops",
        "identity_file": None,
        "known_hosts": None,
        "python": None,
        "helper_python": None,
        "transport": "auto",
        "ssh_name": None,
        "container": None,
        "sudo": False,
        "env": ["HF_TOKEN"],
        "labels": {"rack": "7"},
        "jump": "door",
        "connect_timeout_s": 10.0,
        "gpu_sets": [],
        "expected": None,
        "from": str(two),
    }


def test_an_empty_list_says_where_to_begin(config: Path) -> None:
    done = CliRunner().invoke(host, ["list"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert str(config) in done.stderr
    assert json.loads(CliRunner().invoke(host, ["list", "--json"]).stdout)["hosts"] == []


def test_show(two: Path) -> None:
    text = CliRunner().invoke(host, ["show", "gpu1"])
    assert "canary" not in text.output
    lines = dict(line.split(maxsplit=1) for line in text.stdout.splitlines())
    assert lines["labels"] == "rack=7"
    assert lines["env"] == "HF_TOKEN"
    assert lines["jump"] == "door"
    document = valid.document("host-show", CliRunner().invoke(host, ["show", "door", "--json"]).stdout)
    assert (document["schema"], document["address"], document["port"]) == (1, "door.example", 2222)


def test_show_of_an_unknown_name_is_an_expected_error(two: Path) -> None:
    done = CliRunner().invoke(host, ["show", "gpu2"])
    assert isinstance(done.exception, UnknownHost)
    assert "did you mean: gpu1" in done.exception.details


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, diag.cli.host\n"
        "print([m for m in ('paramiko', 'httpx', 'pydantic', 'rich', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
