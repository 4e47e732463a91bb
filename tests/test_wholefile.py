"""A file becomes what was written, or stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.errors import PreconditionFailed
from diag.wholefile import becoming


def test_it_becomes_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    file.write_text("before")
    with becoming(file) as new:
        new.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after"
    assert list(tmp_path.iterdir()) == [file]


def write_half(file: Path) -> None:
    with becoming(file) as new:
        new.write_text("half")
        raise ZeroDivisionError


def test_an_error_leaves_it_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    file.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_half(file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="cannot be written"):
        write_half(tmp_path / "none" / "report")
