"""`diag init`: a first inventory from `ssh -G` and from the hosts; it is one, and nothing is overwritten."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.cli import run
from diag.hosts import draft, inventory
from diag.hosts.draft import Draft, Seen
from diag.hosts.inventory import Host, Inventory
from diag.lab.layout import Lab
from tests.lab_fixture import Ran

GPU = {"name": "NVIDIA H200", "driver": "570.86"}


def loaded(drafts: list[Draft], folder: Path) -> Inventory:
    file = folder / "diag.toml"
    file.write_text(draft.text(drafts))
    return inventory.load([file])


def test_what_is_written_is_an_inventory(tmp_path: Path) -> None:
    jump = Host(name="bastion", address="b.example", port=2222)
    host = Host(name="gpu1", address="10.0.0.5", user="ops", identity_file=Path("/k"), jump=jump)
    seen = Seen("/opt/venv/bin/python", "sglang 0.5.12", "/models/m", [GPU, GPU])
    found = loaded(
        [Draft(host, seen), Draft(Host(name="gpu2", address="10.0.0.6", jump=jump), Seen(error="no\nroute"))], tmp_path
    )
    assert list(found.hosts) == ["bastion", "gpu1", "gpu2"]
    assert found.get("gpu1") == host.model_copy(
        update={"python": "/opt/venv/bin/python", "labels": {"model": "/models/m"}}
    )
    text = draft.text([Draft(host, seen)])
    assert "# gpu_count = 2" in text
    assert '# gpu_name = "NVIDIA H200"' in text


def test_the_commented_expectations_are_valid_too(tmp_path: Path) -> None:
    text = draft.text([Draft(Host(name="gpu1", address="h"), Seen(gpus=[GPU]))])
    lines = [
        line.removeprefix("# ")
        for line in text.splitlines()
        if "expected" in line or "gpu_" in line or "driver" in line
    ]
    file = tmp_path / "diag.toml"
    file.write_text("\n".join([*text.splitlines(), *lines]))
    expected = inventory.load([file]).get("gpu1").expected
    assert expected is not None
    assert (expected.gpu_count, expected.gpu_name, expected.driver) == (1, "NVIDIA H200", "570.86")


PRINTABLE = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(python=PRINTABLE, model=PRINTABLE, error=PRINTABLE)
def test_whatever_a_host_says_it_stays_an_inventory(
    tmp_path_factory: pytest.TempPathFactory, python: str, model: str, error: str
) -> None:
    seen = Seen(python, "sglang\n[hosts.evil]", model, [{"name": error, "driver": model}], error)
    found = loaded([Draft(Host(name="a.b", address="h"), seen)], tmp_path_factory.getbasetemp())
    assert list(found.hosts) == ["a.b"]
    assert (found.get("a.b").python, found.get("a.b").labels["model"]) == (python, model)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("10.0.0.5", Host(name="10.0.0.5", address="10.0.0.5")),
        ("ops@gpu1.example:2222", Host(name="gpu1", address="gpu1.example", port=2222, user="ops")),
    ],
)
def test_an_address_is_a_host(given: str, host: Host) -> None:
    assert draft.named(given, Inventory({})) == host


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "", "h:99999", "h:0", "u@", "@h"])
def test_what_is_no_address_is_a_usage_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.toml"
    assert run(["init", f"--host={name}", "--out", str(out), "--no-connect"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not out.exists()


def test_a_file_that_is_there_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "diag.toml"
    out.write_text("mine")
    assert run(["init", "--host", "10.0.0.5", "--out", str(out), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"
    assert out.read_text() == "mine"


def test_a_host_that_cannot_be_asked_is_written_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    out = tmp_path / "diag.toml"
    assert run(["init", "--host", f"127.0.0.1:{port}", "--out", str(out)]) == 4
    assert "# It could not be asked: " in out.read_text()
    assert inventory.load([out]).get("127.0.0.1").port == port
    assert out.stat().st_mode & 0o777 == 0o600


def test_the_model_of_a_start_line() -> None:
    base = {"environments": [], "facts": {"gpus": []}}

    def model(line: str) -> str | None:
        server = {"engine": "vllm", "python": "/p", "argv": line.split()}
        return draft.read({**base, "servers": [server]}).model

    assert model("python -m sglang.launch_server --model-path /m --port 1") == "/m"
    assert model("vllm serve /m --port 1") == "/m"
    assert model("vllm serve --model=/m") == "/m"
    assert model("vllm serve") is None


@pytest.mark.lab
def test_of_a_real_host(lab: Lab, diag: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "hosts.toml"
    ran = diag("init", "--host", "lab", "--out", str(out), "--json")
    assert (ran.code, json.loads(ran.out)["hosts"]) == (0, [{"name": "lab", "error": None}])
    assert inventory.load([out]).get("lab").python == str(lab.python)
