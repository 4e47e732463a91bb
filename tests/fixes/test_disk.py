"""A disk that is full, read-only or not ours: real file systems, real limits, a real other user."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.errors import PreconditionFailed
from diag.fixes import transaction
from diag.hosts.inventory import Host
from diag.hosts.local import LocalProcess, LocalTransport
from probes import _fixstatus, fixtx
from tests.fixes.box import Box
from tests.fixes.crashing import FIX, Rig

BIG = b"x = 1\n" * 7000  # 42 kB: ten pages
FILES = {"pkg/deep/mod.py": BIG, "pkg/other.py": b"other = 1\n"}

Mount = Callable[..., Path]


@pytest.fixture(autouse=True)
def only_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fixstatus, "_processes", lambda *_: ([], []))
    monkeypatch.setattr(fixtx, "_compile", lambda *_: sys.executable)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the file systems here are in memory, or large enough


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The space is gone after the check: someone else was quicker."""
    monkeypatch.setattr(fixtx, "_enough_space", lambda *_: None)


@pytest.fixture
def mount() -> Iterator[Mount]:
    """mount(folder, "-t", "tmpfs", ...) mounts there until the end of the test."""
    done: list[Path] = []

    def mount(folder: Path, *options: str) -> Path:
        command = ["mount", *options, str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("needs root that may mount")
        done.append(folder)
        return folder

    yield mount
    for folder in reversed(done):
        subprocess.run(["umount", "-l", folder], check=True)


def sweep(
    root: Path, place: Path, which: str, squeeze: Callable[[int], contextlib.AbstractContextManager[object]], act: str
) -> tuple[int, int]:
    """Run `act` with ever more room, until it succeeds; (times refused, times done).

    `which` of site and state (or both) is squeezed, and lies at `place`. However it ended: files whole, all on one
    side, status true, and the next run with room succeeds."""
    refused = done = 0
    for room in range(0, 120):
        folder = root / str(room)
        here, there = (place / str(room), folder) if which == "site" else (folder, place / str(room))
        box = Box(here, FILES, there / "state")
        box.new = BIG + BIG
        os.environ["XDG_STATE_HOME"] = str(box.state)
        box.state.mkdir(parents=True)
        if act == "revert":
            assert "error" not in box.apply()
        with squeeze(room):
            ended = box.apply() if act == "apply" else box.run("revert")
            said = box.run("status")["state"]
        assert box.is_old() or box.is_new() or said == "outstanding"
        assert said == "outstanding" or said == ("applied" if box.is_new() else "not_applied"), room
        assert said != "outstanding" or box.run("status")["outstanding"]["act"] == act
        if "error" in ended:
            refused += 1
            assert ended["error"]["kind"] == "precondition"
            assert str(place) in ended["error"]["what"] or (which == "both" and str(root) in ended["error"]["what"])
            if said != "outstanding":
                assert box.litter() == []
        else:
            done += 1
        again = box.apply() if act == "apply" else box.run("revert")
        assert "error" not in again, (room, again)
        assert (box.is_new() if act == "apply" else box.is_old(), box.litter()) == (True, [])
        shutil.rmtree(place / str(room))
        if done == 3:
            return refused, done
    raise AssertionError("it never succeeded")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("act", ["apply", "revert"])
@pytest.mark.parametrize("which", ["site", "state"])
def test_a_full_disk(which: str, act: str, tmp_path: Path, mount: Mount, unchecked: None) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount(place, "-t", "tmpfs", "-o", "size=1m", "none")

    @contextlib.contextmanager
    def squeeze(pages: int) -> Iterator[None]:
        filler = place / "filler"
        free = os.statvfs(place)
        filler.write_bytes(b"\0" * max(0, (free.f_bavail - pages) * free.f_bsize))
        try:
            yield
        finally:
            filler.unlink()

    refused, done = sweep(tmp_path, place, which, squeeze, act)
    assert done == 3
    # A revert writes a few lines of journal there, for which the last page may have room.
    assert refused >= (0 if which == "state" and act == "revert" else 10)


@pytest.mark.parametrize("which", ["site", "state"])
def test_no_inodes_left(which: str, tmp_path: Path, mount: Mount, unchecked: None) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount(place, "-t", "tmpfs", "-o", "size=2m,nr_inodes=64", "none")

    @contextlib.contextmanager
    def squeeze(left: int) -> Iterator[None]:
        filler = place / "filler"
        filler.mkdir()
        for number in range(os.statvfs(place).f_favail - left):
            (filler / str(number)).touch()
        try:
            yield
        finally:
            shutil.rmtree(filler)

    refused, _ = sweep(tmp_path, place, which, squeeze, "apply")
    assert refused >= 2


def test_a_full_disk_is_seen_before(tmp_path: Path, mount: Mount) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount(place, "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "none")
    box = Box(place, FILES, tmp_path / "state")
    (place / "filler").write_bytes(b"\0" * (os.statvfs(place).f_bavail * 4096 - 100_000))
    for ended in (box.apply(), box.check()):
        assert str(box.path("pkg/deep/mod.py").parent) in ended["error"]["what"]
        assert "bytes free" in ended["error"]["what"]
    (place / "filler").unlink()
    for number in range(os.statvfs(place).f_favail - 10):
        (place / str(number)).touch()
    for ended in (box.apply(), box.check()):
        assert "10 inodes free; 16 are needed" in ended["error"]["what"]
    assert box.is_old()


@pytest.mark.parametrize("act", ["apply", "revert"])
def test_a_limit_on_the_size_of_files(act: str, tmp_path: Path, unchecked: None) -> None:
    """Where nobody can mount: each write beyond the limit fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextlib.contextmanager
    def squeeze(step: int) -> Iterator[None]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (step * 1500, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    (tmp_path / "there").mkdir()
    refused, done = sweep(tmp_path / "here", tmp_path / "there", "both", squeeze, act)
    assert done == 3
    assert refused > 2


@pytest.mark.parametrize("which", ["site", "state"])
def test_mounted_read_only(which: str, tmp_path: Path, mount: Mount) -> None:
    box = Box(tmp_path / "host", FILES)
    os.environ["XDG_STATE_HOME"] = str(box.state)
    box.state.mkdir()
    box.apply()
    box.run("revert")
    place = box.site if which == "site" else box.state
    folder = mount(place, "--bind", str(place))
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    for ended in (box.apply(), box.check()):
        assert ended["error"]["kind"] == "precondition"
        assert "ead-only" in ended["error"]["what"] + ended["error"]["next"]
        assert str(folder) in ended["error"]["what"]
    assert box.run("status")["state"] == "not_applied"
    assert box.is_old()


def test_read_only_after_the_fact(tmp_path: Path, mount: Mount) -> None:
    box = Box(tmp_path / "host", FILES)
    os.environ["XDG_STATE_HOME"] = str(box.state)
    box.apply()
    mount(box.site, "--bind", str(box.site))
    subprocess.run(["mount", "-o", "remount,bind,ro", box.site], check=True)
    error = box.run("revert")["error"]
    assert "ead-only" in error["what"]
    assert error["details"][-1] == "the fix is now: applied"
    assert box.is_new()
    subprocess.run(["mount", "-o", "remount,bind,rw", box.site], check=True)
    assert box.run("revert")["changed"] is True


def test_a_file_that_is_mounted_by_itself(tmp_path: Path, mount: Mount) -> None:
    """As a container's volume of one file: no rename can replace it."""
    box = Box(tmp_path / "host", FILES)
    os.environ["XDG_STATE_HOME"] = str(box.state)
    mount(box.path("pkg/other.py"), "--bind", str(box.path("pkg/other.py")))
    error = box.apply()["error"]
    assert "busy" in error["what"]
    assert "mounted" in error["next"]
    assert (box.is_old(), box.run("status")["state"], box.litter()) == (True, "not_applied", [])


# --- another user, through the courier ---------------------------------------------------------------------


class AsNobody(LocalTransport):
    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> LocalProcess:
        import shlex

        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
        return super().popen(shlex.join([*user, "/bin/sh", "-c", command]), max_stderr_bytes=max_stderr_bytes)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Where another user may look."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to become someone else")
    with tempfile.TemporaryDirectory(prefix="diag-nobody-") as folder:
        Path(folder).chmod(0o755)
        rig = Rig.build(Path(folder))
        (rig.root / "now" / "state").mkdir()
        os.chown(rig.root / "now" / "state", 65534, 65534)
        yield rig


def nobody(rig: Rig, **more: object) -> AsNobody:
    return AsNobody(Host(name="here", address="local", env=rig.env, **more))


def owned(path: Path, uid: int = 65534) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid)


def test_files_of_another_user(rig: Rig) -> None:
    with nobody(rig) as transport:
        installed = transaction.inspect(transport, FIX, str(rig.site))
        change = transaction.plan(FIX, installed)
        for act in (transaction.check, transaction.apply):
            with pytest.raises(PreconditionFailed, match=r"nobody may not replace .* \(owner 0\)") as caught:
                act(transport, FIX, change)
            assert "sudo = true" in caught.value.next
    assert rig.side() == "old"


def test_a_folder_that_its_owner_may_not_write(rig: Rig) -> None:
    owned(rig.site)
    folder = (rig.site / FIX.file).parent
    folder.chmod(0o555)
    with nobody(rig) as transport:
        change = transaction.plan(FIX, transaction.inspect(transport, FIX, str(rig.site)))
        with pytest.raises(PreconditionFailed, match="may not replace"):
            transaction.apply(transport, FIX, change)
        folder.chmod(0o755)
        outcome = transaction.apply(transport, FIX, change)
        assert outcome.standing.state == "applied"
        folder.chmod(0o555)
        with pytest.raises(PreconditionFailed, match="Permission denied") as caught:
            transaction.revert(transport, FIX, outcome.installed)
        assert caught.value.details[-1] == "the fix is now: applied"
        folder.chmod(0o755)
        assert transaction.revert(transport, FIX, outcome.installed).standing.state == "not_applied"
    assert rig.side() == "old"


def test_a_state_folder_that_cannot_be_made(rig: Rig) -> None:
    owned(rig.site)
    os.chown(rig.root / "now" / "state", 0, 0)
    with nobody(rig) as transport:
        change = transaction.plan(FIX, transaction.inspect(transport, FIX, str(rig.site)))
        with pytest.raises(PreconditionFailed, match="nobody may not make"):
            transaction.check(transport, FIX, change)
        with pytest.raises(PreconditionFailed, match="Permission denied"):
            transaction.apply(transport, FIX, change)
    assert rig.side() == "old"
