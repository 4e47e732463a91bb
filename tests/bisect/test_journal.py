"""The journal: durable line by line, private, and readable after a crash in the middle of a line."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from diag import journal
from diag.errors import PreconditionFailed
from diag.journal import Journal


@pytest.fixture
def open_journal(tmp_path: Path) -> Any:
    with Journal.create(tmp_path / "runs") as opened:
        yield opened


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_written_is_read(open_journal: Journal) -> None:
    open_journal.write("start", host="box", text="é\n\x1b 𝄞 \ud800")
    open_journal.write("trial", number=1)
    first, second = journal.read(open_journal.path)
    assert (first["schema"], first["kind"], first["text"]) == (1, "start", "é\n\x1b 𝄞 \ud800")
    assert second["number"] == 1
    assert first["at_unix"] <= second["at_unix"]
    assert open_journal.path.read_bytes().count(b"\n") == 2


def test_only_its_owner_may_read_it(open_journal: Journal) -> None:
    assert mode(open_journal.folder) == 0o700
    assert mode(open_journal.path) == 0o600


def test_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Journal.create(tmp_path / "runs") as opened:
            assert (mode(opened.folder), mode(opened.path)) == (0o700, 0o600)
    finally:
        os.umask(before)


def test_runs_have_names_of_their_own_and_never_share_a_file(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as one, Journal.create(tmp_path) as two:
        assert one.run_id != two.run_id
        assert one.folder.name == one.run_id
        with pytest.raises(FileExistsError):
            Journal(one.folder, one.run_id)


def test_the_default_place_is_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    with Journal.create() as opened:
        assert opened.folder.parent == tmp_path / "state" / "runs"


def test_a_line_is_on_disk_before_write_returns(open_journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole line first, then fsync of the same file; short writes are continued."""
    calls: list[tuple[str, bytes]] = []
    real_write, real_fsync = os.write, os.fsync

    def write(fd: int, data: Any) -> int:
        calls.append(("write", bytes(data[:7])))
        return real_write(fd, data[:7])

    def fsync(fd: int) -> None:
        calls.append(("fsync", open_journal.path.read_bytes()))
        real_fsync(fd)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fsync)
    open_journal.write("trial", number=1)
    monkeypatch.undo()
    assert [name for name, _ in calls].count("fsync") == 1
    assert calls[-1] == ("fsync", open_journal.path.read_bytes())
    assert len(calls) > 3
    assert [entry["number"] for entry in journal.read(open_journal.path)] == [1]


def test_a_torn_last_line_is_left_out_wherever_it_is_torn(open_journal: Journal, tmp_path: Path) -> None:
    for number in (1, 2):
        open_journal.write("trial", number=number)
    whole = open_journal.path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        (tmp_path / "torn").write_bytes(whole[:end])
        assert [entry["number"] for entry in journal.read(tmp_path / "torn")] == [1]
    (tmp_path / "torn").write_bytes(b"")
    assert journal.read(tmp_path / "torn") == []


@pytest.mark.parametrize("bad", [b"{", b"", b"nonsense", b"\xff\xfe", b"[1]", b"7", b"null"])
def test_a_bad_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"kind": "start"}\n' + bad + b'\n{"kind": "trial"}\n')
    with pytest.raises(ValueError, match=r"journal\.jsonl:2: not a journal line"):
        journal.read(path)


def test_what_is_not_json_is_refused_before_anything_is_written(open_journal: Journal) -> None:
    with pytest.raises(TypeError):
        open_journal.write("trial", thing=object())
    assert open_journal.path.read_bytes() == b""


def test_two_cannot_go_on_with_one_run(open_journal: Journal) -> None:
    open_journal.write("start")
    with pytest.raises(PreconditionFailed, match="Another diag is working on run"):
        Journal.reopen(open_journal.folder, open_journal.run_id)
    open_journal.close()
    again = Journal.reopen(open_journal.folder, open_journal.run_id)
    again.write("resumed")
    assert [entry["kind"] for entry in journal.read(open_journal.path)] == ["start", "resumed"]
    open_journal._fd = os.dup(again._fd)  # for the fixture to close
    again.close()


def test_a_full_disk_is_one_clear_error(open_journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(PreconditionFailed, match="No space left on device") as caught:
        open_journal.write("trial", number=1)
    assert "DIAG_STATE_DIR" in caught.value.next


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(PreconditionFailed, match="cannot be written"):
        Journal.create(tmp_path / "runs")
