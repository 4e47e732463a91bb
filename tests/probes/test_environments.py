"""Environments found by their files: made trees of the shapes that hosts have."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from probes import environments
from probes.environments import Interpreter


def touch(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv whose python links to a base elsewhere, with SGLang in it."""
    base = touch(tmp_path / "base" / "bin" / "python3.12")
    root = tmp_path / "venv"
    touch(root / "pyvenv.cfg", f"home = {base.parent}\nversion = 3.12.4\ninclude-system-site-packages = false\n")
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(base)
    site = root / "lib" / "python3.12" / "site-packages"
    for name in (
        "sglang-0.5.12",
        "torch-2.9.0+cu128",
        "nvidia_cublas_cu12-12.8.4",
        "flashinfer_python-0.4",
        "rich-14.0",
    ):
        (site / f"{name}.dist-info").mkdir(parents=True)
    touch(site / "sglang" / "__init__.py")
    return root


def site_of(venv: Path) -> Path:
    return venv / "lib" / "python3.12" / "site-packages"


def test_a_venv(venv: Path) -> None:
    found = environments.named(str(venv / "bin" / "python"))
    assert found is not None
    assert (found["kind"], found["prefix"], found["python_version"]) == ("venv", str(venv), "3.12.4")
    assert found["site_packages"] == str(site_of(venv))
    assert found["packages"] == {
        "flashinfer-python": "0.4",
        "nvidia-cublas-cu12": "12.8.4",
        "sglang": "0.5.12",
        "torch": "2.9.0+cu128",
    }
    assert (found["duplicates"], found["editable"], found["overlays"]) == ({}, {}, [])


def test_packages_asked_for_are_listed_by_any_spelling(venv: Path) -> None:
    found = environments.describe(Interpreter(str(venv / "bin" / "python")), ["Rich"])
    assert found is not None
    assert found["packages"]["rich"] == "14.0"


def test_what_a_broken_upgrade_leaves_is_reported(venv: Path) -> None:
    (site_of(venv) / "sglang-0.5.9.dist-info").mkdir()
    found = environments.named(str(venv / "bin" / "python"))
    assert found is not None
    assert sorted(found["duplicates"]["sglang"]) == ["0.5.12", "0.5.9"]


def test_an_editable_install_is_found_where_its_source_is(venv: Path, tmp_path: Path) -> None:
    source = tmp_path / "my src" / "sglang"
    touch(source / "python" / "sglang" / "__init__.py")
    (site_of(venv) / "sglang" / "__init__.py").unlink()
    (site_of(venv) / "sglang").rmdir()
    document = {"url": source.as_uri(), "dir_info": {"editable": True}}
    touch(site_of(venv) / "sglang-0.5.12.dist-info" / "direct_url.json", json.dumps(document))
    found = environments.named(str(venv / "bin" / "python"))
    assert found is not None
    assert found["editable"] == {"sglang": str(source)}
    assert environments.locate(found, "sglang") == str(source / "python")


@pytest.mark.parametrize("broken", ["{", "[]", '{"dir_info": {"editable": true}}', "\x00"])
def test_a_broken_direct_url_is_no_editable_install(venv: Path, broken: str) -> None:
    touch(site_of(venv) / "sglang-0.5.12.dist-info" / "direct_url.json", broken)
    found = environments.named(str(venv / "bin" / "python"))
    assert found is not None
    assert found["editable"] == {}


def test_what_comes_before_site_packages_is_an_overlay(venv: Path, tmp_path: Path) -> None:
    for place in ("cwd", "path", "pth"):
        touch(tmp_path / place / "sglang" / "__init__.py")
    touch(site_of(venv) / "mine.pth", f"import os; os\n# comment\n{tmp_path / 'pth'}\n")
    env = {"PYTHONPATH": os.pathsep.join(["relative", str(tmp_path / "path"), str(tmp_path / "none")])}
    found = environments.describe(Interpreter(str(venv / "bin" / "python"), env, str(tmp_path / "cwd")))
    assert found is not None
    assert [(overlay["from"], Path(overlay["path"]).name) for overlay in found["overlays"]] == [
        ("cwd", "cwd"),
        ("PYTHONPATH", "path"),
        ("pth", "pth"),
    ]
    assert environments.locate(found, "sglang") == str(tmp_path / "cwd")
    without = environments.describe(Interpreter(str(venv / "bin" / "python")))
    assert without is not None
    assert environments.locate(without, "sglang") == str(site_of(venv))  # a .pth folder comes after


def test_a_venv_that_sees_its_base_lists_both(venv: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    touch(base / "bin" / "python3")
    (base / "lib" / "python3.12" / "site-packages" / "vllm-0.11.0.dist-info").mkdir(parents=True)
    config = venv / "pyvenv.cfg"
    config.write_text(config.read_text().replace("false", "true"))
    found = environments.named(str(venv / "bin" / "python"))
    assert found is not None
    assert found["packages"]["vllm"] == "0.11.0"
    assert found["search_path"] == [str(site_of(venv)), str(base / "lib" / "python3.12" / "site-packages")]


def test_a_conda_environment(tmp_path: Path) -> None:
    touch(tmp_path / "bin" / "python3.11")
    (tmp_path / "bin" / "python").symlink_to("python3.11")
    touch(tmp_path / "conda-meta" / "python-3.11.9-h_0.json")
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "python3.10" / "site-packages").mkdir(parents=True)  # a left-over
    found = environments.named(str(tmp_path / "bin" / "python"))
    assert found is not None
    assert (found["kind"], found["python_version"]) == ("conda", "3.11.9")
    assert found["search_path"] == [str(tmp_path / "lib" / "python3.11" / "site-packages")]


def test_another_mount_namespace_is_read_below_its_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    touch(root / "usr" / "bin" / "python3.12")
    (root / "usr" / "bin" / "python3").symlink_to("/usr/bin/python3.12")  # absolute: of that root, not ours
    (root / "usr/local/lib/python3.12/dist-packages/sglang-0.5.12.dist-info").mkdir(parents=True)
    found = environments.describe(Interpreter("/usr/bin/python3", {}, None, str(root)))
    assert found is not None
    assert found["packages"] == {"sglang": "0.5.12"}
    assert found["python_version"] == "3.12"
    assert found["site_packages"].startswith(str(root))


def test_a_shim_is_asked(tmp_path: Path) -> None:
    shim = touch(tmp_path / "shims" / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    found = environments.named(str(shim))
    assert found is not None
    assert found["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" not in found["packages"]


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho '[]'\n", "not a program"])
def test_what_is_no_interpreter_is_no_environment(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        touch(tmp_path / "python", text).chmod(0o755)
    assert environments.named(str(tmp_path / "python")) is None


def test_one_environment_is_listed_once(venv: Path) -> None:
    python = str(venv / "bin" / "python")
    found = environments.find(python, [Interpreter(python), Interpreter(python)], [])
    assert [environment["prefix"] for environment in found].count(str(venv)) == 1
    assert found[0]["prefix"] == str(venv)


def test_this_interpreter_is_described() -> None:
    found = environments.named(sys.executable)
    assert found is not None
    assert found["python_version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert environments.describe(Interpreter(sys.executable), ["hypothesis"])["packages"]["hypothesis"]  # type: ignore[index]


def test_behind_shims_are_their_installations_and_no_shim_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("3.10.1", "3.11.7"):
        folder = tmp_path / "versions" / name
        (folder / "bin").mkdir(parents=True)
        (folder / "lib" / f"python{name[:4]}" / "site-packages").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(folder / "bin" / f"python{name[:4]}")
        (folder / "bin" / f"python{name[:4]}").touch(mode=0o755)
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    found = environments.find(None, [], [])
    mine = {env["prefix"]: env["python_version"] for env in found if env["prefix"].startswith(str(tmp_path))}
    assert mine == {str(tmp_path / "versions" / name): name[:4] for name in ("3.10.1", "3.11.7")}
    assert not (tmp_path / "ran").exists()
