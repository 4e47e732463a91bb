"""A run travels in one file, whole; what is no such file is refused and nothing is written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from diag.errors import PreconditionFailed, UsageError
from diag.records import carry, runs
from tests.report import stories


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "here"))
    stories.playbook(tmp_path / "here")
    carry.write([stories.PLAYBOOK, stories.BISECTION], tmp_path / "run.tar.gz")
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "there"))
    return tmp_path / "run.tar.gz"


def test_it_arrives_byte_for_byte(exported: Path, tmp_path: Path) -> None:
    assert carry.read(exported) == [stories.PLAYBOOK, stories.BISECTION]
    for run in (stories.PLAYBOOK, stories.BISECTION):
        here, there = (tmp_path / where / "runs" / run / "journal.jsonl" for where in ("here", "there"))
        assert here.read_bytes() == there.read_bytes()
        assert there.stat().st_mode & 0o777 == 0o600
    assert {run.run for run in runs.listed(warn=pytest.fail)} == {stories.PLAYBOOK, stories.BISECTION}
    with pytest.raises(PreconditionFailed, match="here already"):
        carry.read(exported)


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("../../20261129-120000-aaaaaa/journal.jsonl", tarfile.REGTYPE, b'{"kind": "start"}\n'),
        ("/20261129-120000-aaaaaa/journal.jsonl", tarfile.REGTYPE, b'{"kind": "start"}\n'),
        ("20261129-120000-aaaaaa/other", tarfile.REGTYPE, b'{"kind": "start"}\n'),
        ("20261129-120000-aaaaaa/journal.jsonl", tarfile.SYMTYPE, b""),
        ("20261129-120000-aaaaaa/journal.jsonl", tarfile.DIRTYPE, b""),
        ("20261129-120000-aaaaaa/journal.jsonl", tarfile.REGTYPE, b"not a journal\n"),
    ],
)
def test_nothing_else_gets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, content: bytes
) -> None:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "there"))
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
        archive.addfile(member, io.BytesIO(content))
    with pytest.raises(UsageError):
        carry.read(tmp_path / "bad.tar.gz")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00garbage"])
def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(content)
    with pytest.raises(UsageError, match="no run of diag"):
        carry.read(tmp_path / "bad.tar.gz")


def test_a_cut_archive(exported: Path, tmp_path: Path) -> None:
    whole = exported.read_bytes()
    exported.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError):
        carry.read(exported)
    assert not (tmp_path / "there").exists()
