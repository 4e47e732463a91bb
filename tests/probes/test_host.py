"""All of a host in one document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_environments import site_of, touch
from test_environments import venv as venv  # a fixture
from test_integrity import install

from probes import host


def test_one_document_has_it_all(venv: Path) -> None:
    site = site_of(venv)
    (site / "sglang-0.5.12.dist-info").rmdir()
    install(site, "sglang", "0.5.12", {"sglang/__init__.py": b"", "sglang/a.py": b"a"})
    (site / "sglang" / "a.py").write_bytes(b"edited")
    document = host.run(
        {"python": str(venv / "bin" / "python"), "packages": ["rich"], "files": ["sglang/a.py"], "verify_all": True}
    )
    assert document["schema"] == 1
    assert json.loads(json.dumps(document)) == document
    # Servers that happen to run on this machine come before the named interpreter.
    [environment] = [found for found in document["environments"] if found["prefix"] == str(venv)]
    assert environment["packages"]["rich"] == "14.0"
    [source] = [source for source in document["sources"] if source["site_packages"] == str(site)]
    assert (source["package"], source["version"], source["imported_from"]) == ("sglang", "0.5.12", str(site))
    assert source["files"][0]["integrity"] == "edited"
    assert source["record_checked"]["edited"] == ["sglang/a.py"]
    assert all(set(entry) == {"what", "why"} and entry["why"] for entry in document["unknown"])


def test_what_runs_is_what_is_looked_at(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on PYTHONPATH is imported instead of the installed package: its file is the one reported."""
    touch(tmp_path / "mine" / "sglang" / "a.py", "mine")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    document = host.run({"python": str(venv / "bin" / "python"), "files": ["sglang/a.py"]})
    mine = [source for source in document["sources"] if source["imported_from"] == str(tmp_path / "mine")]
    assert [source["files"][0]["exists"] for source in mine] == [True]
    assert str(site_of(venv)) not in [source["imported_from"] for source in document["sources"]]


def test_an_interpreter_that_is_not_there_is_unknown_not_silent() -> None:
    document = host.run({"python": "/no/such/python"})
    assert "environment of /no/such/python" in [entry["what"] for entry in document["unknown"]]
