"""The transaction on the host, in-process: real files, and a crash after every single operation."""

from __future__ import annotations

import base64
import fcntl
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes import _fixfiles, _fixjournal, _fixstatus, fixtx
from tests.fixes.box import NEW, OLD, Box, sha


class Crash(BaseException):
    """The process is killed here."""


class CrashingOps(_fixfiles.Ops):
    """Crashes after the k-th operation; with `torn`, a k-th write has written only a part."""

    def __init__(self, after: int, torn: bool = False) -> None:
        super().__init__()
        self.left = after
        self.torn = torn

    def did(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def write(self, fd: int, data: bytes) -> None:
        if self.torn and self.left == 1:
            data = data[: len(data) // 2]
        super().write(fd, data)


class FailingOps(_fixfiles.Ops):
    """The k-th operation (from 1) fails with this error instead of being done."""

    def __init__(self, at: int, number: int) -> None:
        super().__init__()
        self.left = at
        self.number = number
        self.failed: str | None = None

    def _do(self, name: str, act: Any, *args: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.failed = name
            raise OSError(self.number, os.strerror(self.number), str(args[0]))
        return super()._do(name, act, *args, **more)


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Durability is not what is shown here, and thousands of real syncs would take minutes on a busy disk.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # Looking for servers reads every process of this machine; that is another test's business.
    monkeypatch.setattr(_fixstatus, "_processes", lambda site, args, changes, present: ([], []))
    monkeypatch.setattr(fixtx, "_compile", lambda content, path, python: sys.executable)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, {"pkg/deep/mod.py": OLD})


@pytest.fixture
def pair(tmp_path: Path) -> Box:
    return Box(tmp_path, {"pkg/deep/mod.py": OLD, "pkg/other.py": b"other = 1\n"})


def test_apply_then_revert_gives_back_bytes_mode_and_time(box: Box) -> None:
    before = box.path("pkg/deep/mod.py").stat()
    done = box.apply()
    assert done["changed"] is True
    assert done["status"]["state"] == "applied"
    assert box.is_new()
    after = box.path("pkg/deep/mod.py").stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert after.st_mtime_ns > before.st_mtime_ns
    assert not list(box.site.rglob("*.pyc"))

    undone = box.run("revert")
    assert undone["changed"] is True
    assert undone["status"]["state"] == "not_applied"
    assert box.is_old()
    final = box.path("pkg/deep/mod.py").stat()
    assert (final.st_mtime_ns, final.st_mode, final.st_uid) == (before.st_mtime_ns, before.st_mode, before.st_uid)
    assert box.litter() == []
    assert box.backups() == []


def test_a_second_apply_or_revert_has_nothing_to_do(box: Box) -> None:
    assert box.run("revert")["changed"] is False
    box.apply()
    assert box.apply()["changed"] is False
    assert len(box.backups()) == 1
    box.run("revert")
    assert box.run("revert")["changed"] is False
    assert box.apply()["changed"] is True


def test_the_state_folder_is_private(box: Box) -> None:
    box.apply()
    folder = box.state / "diag" / "fixes"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    journal = next(folder.glob("*.journal"))
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert box.run("status")["journal"] == str(journal)


def test_status_and_read_touch_nothing(box: Box) -> None:
    assert box.run("status")["state"] == "not_applied"
    document = box.run("read", files=["pkg/deep/mod.py"])
    assert zlib.decompress(base64.b64decode(document["files"][0]["content_b64"])) == OLD
    assert document["version"] == "1.0"
    assert document["status"]["state"] == "not_applied"
    assert not box.state.exists()


def test_a_package_that_is_not_there(box: Box) -> None:
    error = box.run("read", package="vllm", files=["vllm/x.py"])["error"]
    assert error["kind"] == "package_not_installed"
    assert str(box.site) in error["details"][0]


def operations(action: str, tmp_path: Path) -> int:
    """How many operations an undisturbed run takes."""
    counter = CrashingOps(10**9)
    box = Box(tmp_path, {"pkg/deep/mod.py": OLD, "pkg/other.py": b"other = 1\n"})
    if action == "revert":
        box.apply()
        box.run("revert", counter)
    else:
        box.apply(counter)
    return 10**9 - counter.left


def crashed_box(root: Path, action: str, after: int, torn: bool, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    box = Box(root, {"pkg/deep/mod.py": OLD, "pkg/other.py": b"other = 1\n"})
    if action == "revert":
        box.apply()
    ops = CrashingOps(after, torn)
    with pytest.raises(Crash):
        box.run("revert", ops) if action == "revert" else box.apply(ops)
    assert all(content in (NEW, old) for content, old in zip(box.contents(), box.old.values(), strict=True))
    return box


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("then", ["apply", "revert", "recover"])
@pytest.mark.parametrize("action", ["apply", "revert"])
def test_a_crash_after_every_operation(
    action: str, then: str, torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "count" / "state"))
    total = operations(action, tmp_path / "count")
    assert total > 20
    for after in range(1, total + 1):
        box = crashed_box(tmp_path / str(after), action, after, torn, monkeypatch)
        said = box.run("status")["state"]
        if said == "applied":
            assert box.is_new()
        elif said == "not_applied":
            assert box.is_old()
        else:
            assert said == "outstanding"
        done = box.apply() if then == "apply" else box.run(then)
        assert "error" not in done, (after, done)
        assert box.is_old() or box.is_new()
        assert done["status"]["state"] == ("applied" if box.is_new() else "not_applied")
        if then != "recover":
            assert box.is_new() == (then == "apply")
        assert box.litter() == []
        box.run("revert")
        assert box.is_old()
        assert box.backups() == []


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_a_crash_of_the_recovery_too(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "count").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "count" / "state"))
    total = operations(action, tmp_path / "count")
    for after in range(1, total + 1, 3):
        for second in range(1, 30, 2):
            box = crashed_box(tmp_path / f"{after}-{second}", action, after, False, monkeypatch)
            try:
                box.run("recover", CrashingOps(second))
            except Crash:
                pass
            else:
                break
            assert box.run("status")["state"] in ("outstanding", "applied", "not_applied")
            assert box.run("recover")["status"]["state"] == ("applied" if box.is_new() else "not_applied")
            assert box.is_old() or box.is_new()
            assert box.litter() == []


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_every_operation_fails_once(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say. Nothing is half done, the message names the place, and the next run succeeds."""
    for at in range(1, 200):
        root = tmp_path / str(at)
        monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
        box = Box(root, {"pkg/deep/mod.py": OLD, "pkg/other.py": b"other = 1\n"})
        ops = FailingOps(at, 28)
        if action == "revert":
            box.apply()
            done = box.run("revert", ops)
        else:
            done = box.apply(ops)
        if ops.failed is None:
            break
        if "error" in done:
            assert done["error"]["kind"] == "precondition"
            assert "No space left" in done["error"]["what"]
        state = box.run("status")["state"]
        assert state == "outstanding" or state == ("applied" if box.is_new() else "not_applied")
        assert "error" not in (box.run("revert") if action == "revert" else box.apply())
        assert box.is_old() if action == "revert" else box.is_new()
        assert box.litter() == []
    else:
        pytest.fail("it never ran without a failure")


def test_what_someone_else_changed_is_not_overwritten(box: Box) -> None:
    box.apply()
    box.path("pkg/deep/mod.py").write_bytes(NEW + b"mine = 1\n")
    assert box.run("status")["state"] == "modified"
    error = box.run("revert")["error"]
    assert error["kind"] == "file_not_as_expected"
    assert any(sha(NEW + b"mine = 1\n") in line for line in error["details"])
    assert any(str(backup) in line for backup in box.backups() for line in error["details"])
    assert "+mine = 1" in error["details"]
    assert "--force" in error["next"]
    assert box.contents() == [NEW + b"mine = 1\n"]


def test_the_difference_shown_is_bounded(box: Box) -> None:
    box.apply()
    box.path("pkg/deep/mod.py").write_bytes(b"".join(b"line %d %s\n" % (n, b"x" * 999) for n in range(500)))
    details = box.run("revert")["error"]["details"]
    assert len(details) < 70
    assert max(map(len, details)) < 400
    assert details[-2].startswith("... ")
    box.path("pkg/deep/mod.py").write_bytes(b"x" * (2 << 20))
    assert len(box.run("revert")["error"]["details"]) == 5
    box.path("pkg/deep/mod.py").write_bytes(NEW.replace(b"\n", b"\r\n"))
    assert "only line ends or a byte order mark differ" in box.run("revert")["error"]["details"]


@pytest.mark.parametrize("theirs", [b"mine = 1\n", b"\xff\x00", b"", None])
def test_force_puts_the_original_back_and_keeps_theirs(theirs: bytes | None, pair: Box) -> None:
    pair.apply()
    path = pair.path("pkg/deep/mod.py")
    if theirs is None:
        path.unlink()
    else:
        path.write_bytes(theirs)
        path.chmod(0o604)
    done = pair.run("revert", force=True)
    assert (done["changed"], done["status"]["state"]) == (True, "not_applied")
    assert pair.is_old()
    assert [Path(kept).read_bytes() for kept in done["kept"]] == ([] if theirs is None else [theirs])
    assert all(str(pair.state) in kept and "mod.py" in kept for kept in done["kept"])
    assert stat.S_IMODE(path.stat().st_mode) == (0o640 if theirs is None else 0o604)
    assert pair.backups() == []
    assert pair.run("revert", force=True)["changed"] is False


def test_force_with_nothing_foreign_keeps_nothing(box: Box) -> None:
    box.apply()
    assert box.run("revert", force=True)["kept"] == []
    assert box.is_old()


def test_force_does_not_follow_a_link(box: Box) -> None:
    box.apply()
    victim = box.site.parent / "victim"
    victim.write_bytes(b"keep")
    box.path("pkg/deep/mod.py").unlink()
    box.path("pkg/deep/mod.py").symlink_to(victim)
    assert box.run("revert", force=True)["error"]["kind"] == "file_not_as_expected"
    assert victim.read_bytes() == b"keep"


def test_a_crash_of_a_forced_revert_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = b"mine = 1\n"
    for after in range(1, 100):
        root = tmp_path / str(after)
        monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
        box = Box(root, {"pkg/deep/mod.py": OLD, "pkg/other.py": b"other = 1\n"})
        box.apply()
        box.path("pkg/deep/mod.py").write_bytes(mine)
        try:
            box.run("revert", CrashingOps(after), force=True)
        except Crash:
            pass
        else:
            break
        kept = [path for path in box.state.rglob("*.kept") if path.read_bytes() == mine]
        assert box.contents()[0] == mine or kept
        said = box.run("status")["state"]
        assert said in ({"modified", "outstanding"} if box.contents()[0] == mine else {"not_applied", "outstanding"})
        done = box.run("revert", force=True)
        assert "error" not in done, (after, done)
        assert (box.is_old(), done["status"]["state"], box.litter()) == (True, "not_applied", [])
        assert mine in [path.read_bytes() for path in box.state.rglob("*.kept")]
    else:
        pytest.fail("it never ran to its end")


def crashed_before_committing(box: Box) -> bool:
    return not any(b'"committing"' in path.read_bytes() for path in box.state.rglob("*.journal"))


@pytest.mark.parametrize("after", range(4, 44, 3))
def test_what_someone_else_changed_in_the_middle_is_not_touched(after: int, pair: Box) -> None:
    """Before `committing` the transaction is undone beside it; later it is refused, unless forced."""
    with pytest.raises(Crash):
        pair.apply(CrashingOps(after))
    mine = b"mine = 1\n"
    early, begun = crashed_before_committing(pair), pair.run("status")["state"] == "outstanding"
    pair.path("pkg/deep/mod.py").write_bytes(mine)
    done = pair.run("recover")
    if begun and not early:
        assert done["error"]["kind"] == "file_not_as_expected"
        assert pair.run("revert")["error"]["kind"] == "file_not_as_expected"
        assert pair.run("status")["state"] == "outstanding"
        assert pair.contents()[0] == mine
        done = pair.run("revert", force=True)
        assert [Path(kept).read_bytes() for kept in done["kept"]] == [mine]
        assert pair.is_old()
        assert done["status"]["state"] == "not_applied"
    else:
        assert pair.contents() == [mine, b"other = 1\n"] or not begun
        assert done["status"]["state"] in ("not_applied", "modified")
    assert pair.litter() == []


def test_a_file_that_changes_while_the_new_one_is_compiled(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = b"mine = 1\n"
    monkeypatch.setattr(fixtx, "_compile", lambda *_: box.path("pkg/deep/mod.py").write_bytes(mine))
    assert "changed just now" in box.apply()["error"]["what"]
    assert box.contents() == [mine]
    assert (box.run("status")["state"], box.litter(), box.backups()) == ("not_applied", [], [])


# --- check -------------------------------------------------------------------------------------------------


def everything(box: Box) -> dict[str, tuple[int, int, bytes | None]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in sorted(box.site.parent.rglob("*"))
    }


def test_check_says_what_apply_would_do_and_touches_nothing(pair: Box) -> None:
    before = everything(pair)
    assert pair.check()["would"] == "apply"
    assert everything(pair) == before
    pair.apply()
    before = everything(pair)
    assert pair.check()["would"] == "nothing"
    assert everything(pair) == before


def test_check_refuses_what_apply_refuses(pair: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> tuple[str, str]:
        before = everything(pair)
        error = pair.check()["error"]
        assert everything(pair) == before
        return error["kind"], error["what"]

    with monkeypatch.context() as patch:
        patch.setattr(fixtx, "SPARE_BYTES", 1 << 60)
        assert "bytes free" in refused()[1]
    with monkeypatch.context() as patch:
        patch.setattr(fixtx, "SPARE_INODES", 1 << 60)
        assert "inodes free" in refused()[1]
    with monkeypatch.context() as patch:

        def compile_it(*_: object) -> str:
            raise _fixfiles.Refused("precondition", "it does not compile")

        patch.setattr(fixtx, "_compile", compile_it)
        assert refused()[1] == "it does not compile"
    (pair.state / "diag").mkdir(parents=True)
    (pair.state / "diag").chmod(0o777)
    assert "this user's alone" in refused()[1]
    (pair.state / "diag").chmod(0o700)
    pair.apply()
    pair.run("revert")
    with (pair.state / "diag/fixes/lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "Another operator" in refused()[1]
    with pytest.raises(Crash):
        pair.apply(CrashingOps(35))
    pair.path("pkg/other.py").write_bytes(b"mine = 1\n")
    assert refused()[0] == "file_not_as_expected"


def test_an_upgraded_package_can_be_mended_again(box: Box) -> None:
    box.apply()
    box.path("pkg/deep/mod.py").write_bytes(b"VALUE = 2\n")
    box.old = {"pkg/deep/mod.py": b"VALUE = 2\n"}
    assert box.apply()["changed"] is True
    assert len(box.backups()) == 1
    box.run("revert")
    assert box.contents() == [b"VALUE = 2\n"]


def test_a_file_that_changed_since_it_was_read(box: Box) -> None:
    box.path("pkg/deep/mod.py").write_bytes(b"later = 1\n")
    error = box.apply()["error"]
    assert error["kind"] == "file_not_as_expected"
    assert error["details"][-1] == "the fix is now: not_applied"
    assert box.contents() == [b"later = 1\n"]


def test_another_version(box: Box) -> None:
    (box.site / "pkg-1.0.dist-info").rename(box.site / "pkg-1.1.dist-info")
    assert box.apply()["error"]["kind"] == "file_not_as_expected"
    assert box.is_old()


@pytest.mark.parametrize("path", ["../outside.py", "pkg/../../outside.py", "/etc/passwd", "pkg/out/mod.py", "top.py"])
def test_a_way_out_of_the_package(path: str, box: Box) -> None:
    outside = box.site.parent / "outside"
    outside.mkdir()
    (outside / "mod.py").write_bytes(OLD)
    (box.site / "pkg" / "out").symlink_to(outside)
    (box.site / "top.py").write_bytes(OLD)
    box.old = {path: OLD}
    assert box.apply()["error"]["kind"] == "precondition"
    assert (outside / "mod.py").read_bytes() == OLD


def test_a_link_is_not_followed(box: Box) -> None:
    real = box.site.parent / "real.py"
    box.path("pkg/deep/mod.py").rename(real)
    box.path("pkg/deep/mod.py").symlink_to(real)
    assert box.apply()["error"]["kind"] == "file_not_as_expected"
    assert real.read_bytes() == OLD


def test_a_hard_link_elsewhere_keeps_its_content(box: Box) -> None:
    """uv and conda link files from a cache that other environments share."""
    os.link(box.path("pkg/deep/mod.py"), box.site.parent / "cache.py")
    box.apply()
    assert (box.site.parent / "cache.py").read_bytes() == OLD


@pytest.mark.parametrize("name", ["diag", "diag/fixes"])
def test_planted_state_folders(name: str, box: Box) -> None:
    planted = box.state / name
    planted.parent.mkdir(parents=True, mode=0o700)
    planted.parent.chmod(0o700)
    elsewhere = box.site.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    planted.symlink_to(elsewhere)
    assert "is not a folder that is this user's alone" in box.apply()["error"]["what"]
    planted.unlink()
    planted.mkdir()
    planted.chmod(0o777)
    assert "is not a folder that is this user's alone" in box.apply()["error"]["what"]
    assert box.is_old()
    assert list(elsewhere.iterdir()) == []


def test_planted_links_in_the_state_folder(box: Box) -> None:
    box.apply()
    box.run("revert")
    journal = Path(box.run("status")["journal"])
    victim = box.site.parent / "victim"
    victim.write_bytes(b"keep")
    for name in (journal, journal.with_name("lock")):
        content = name.read_bytes()
        name.unlink()
        name.symlink_to(victim)
        assert "error" in box.apply()
        name.unlink()
        name.write_bytes(content)
    assert victim.read_bytes() == b"keep"
    assert box.is_old()


def test_two_operators(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fixjournal, "LOCK_WAIT_S", 0.05)
    box.apply()
    lock = box.state / "diag" / "fixes" / "lock"
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = box.run("revert")["error"]
        assert "Another operator" in error["what"]
        assert any(line == f"pid: {os.getpid()}" for line in error["details"])
        assert box.run("status")["lock"]["pid"] == os.getpid()
    with (box.site / "pkg" / "x").open("wb"):  # an operator with another home shares only the package
        folder = os.open(box.site / "pkg", os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert "Another operator" in box.run("revert")["error"]["what"]
        os.close(folder)
    assert box.run("revert")["changed"] is True


def test_a_damaged_journal_is_not_guessed_at(box: Box) -> None:
    box.apply()
    journal = Path(box.run("status")["journal"])
    whole = journal.read_bytes()
    journal.write_bytes(whole[:10] + b"#" + whole[11:])
    for action in ("status", "revert"):
        assert "is damaged at byte 0" in box.run(action)["error"]["what"]
    assert journal.read_bytes() == whole[:10] + b"#" + whole[11:]
    assert box.is_new()


def test_a_lost_backup_is_said(box: Box) -> None:
    box.apply()
    box.backups()[0].unlink()
    assert "backup" in box.run("revert")["error"]["what"]
    assert box.is_new()


def test_a_full_disk_is_named(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    what = box.apply()["error"]["what"]
    assert what == f"{next(box.state.rglob('*.journal'))}: No space left on device."
    assert box.is_old()


def test_too_little_space(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtx, "SPARE_BYTES", 1 << 60)
    assert "bytes free" in box.apply()["error"]["what"]
    assert box.is_old()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(box: Box) -> None:
    folder = box.path("pkg/deep")
    folder.chmod(0o555)
    assert "may not replace" in box.apply()["error"]["what"]
    folder.chmod(0o755)


def test_new_code_that_does_not_compile(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(box.state))
    error = box.apply(new=b"def broken(:\n", python=sys.executable)["error"]
    assert "does not compile" in error["what"]
    assert any("SyntaxError" in line for line in error["details"])
    assert error["details"][-1] == "the fix is now: not_applied"
    assert box.is_old()
    assert box.litter() == []
    assert not list(box.site.rglob("*.diag"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(old=st.binary(max_size=300), new=st.binary(max_size=300))
def test_apply_then_revert_is_the_identity(
    old: bytes, new: bytes, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("identity")
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    box = Box(root, {"pkg/deep/mod.py": old})
    done = box.apply(new=new)
    assert done["changed"] is (old != new)
    assert box.contents() == [new]
    box.run("revert")
    assert box.is_old()


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9)), max_size=4), cut=st.integers(1, 200))
def test_a_torn_last_record_is_left_out(
    records: list[dict[str, str]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    lines = [_fixjournal.line_of(record) for record in records]
    last = _fixjournal.line_of({"do": "intent", "text": "x" * 50})
    path.write_bytes(b"".join(lines) + last[: min(cut, len(last) - 1)])
    assert _fixjournal.records_of(str(path)) == (records, sum(map(len, lines)))
