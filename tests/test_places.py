"""Where our own files are, in a checkout and wherever a variable moves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diag import bundle, paths


@pytest.mark.parametrize("name", ["probes", "kernels", "playbooks"])
def test_what_travels_is_found(name: str) -> None:
    assert any(bundle.folder(name).iterdir())


def test_an_installed_wheel_has_them_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "diag" / "_bundled" / "probes").mkdir(parents=True)
    (tmp_path / "site" / "probes").mkdir()  # another package of that name beside ours
    monkeypatch.setattr(bundle, "_PACKAGE", tmp_path / "site" / "diag")
    assert bundle.folder("probes") == tmp_path / "site" / "diag" / "_bundled" / "probes"
    with pytest.raises(FileNotFoundError, match="kernels: not in this installation"):
        bundle.folder("kernels")


@pytest.mark.parametrize(
    ("folder", "variable"),
    [
        (paths.config_dir, "DIAG_CONFIG_DIR"),
        (paths.state_dir, "DIAG_STATE_DIR"),
        (paths.cache_dir, "DIAG_CACHE_DIR"),
    ],
)
def test_every_folder_can_be_moved(
    folder: Callable[[], Path], variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert folder().name == "diag"
    assert folder().is_absolute()
    monkeypatch.setenv(variable, "")
    assert folder().is_absolute()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, "~/here")
    assert folder() == tmp_path / "here"
