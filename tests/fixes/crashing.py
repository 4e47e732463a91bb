"""What crash tests and benchmarks/crash.py share: a package of two files, a fix for both, and the host-side program
that can be struck after any operation (crash_probe.py)."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from diag import bundle
from diag.errors import LinkLost
from diag.fixes.entry import Fix
from diag.fixes.transaction import FileChange
from diag.hosts import courier, payload
from diag.hosts.inventory import Host
from diag.hosts.transport import connect
from diag.source.detect import Detection

OLD = {"pkg/deep/mod.py": b"# \xc3\xa4lt\r\nVALUE = 1\r\n" + b"text = 2\r\n" * 500, "pkg/other.py": b"other = 1\n"}
NEW = {"pkg/deep/mod.py": b"VALUE = 17\n" + b"text = 2\n" * 500, "pkg/other.py": b"other = 17\n"}
NAMES = list(OLD)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


WHOLE = {name: (sha(OLD[name]), sha(NEW[name])) for name in NAMES}


def _detect(text: str) -> Detection:
    return Detection("fixed" if "17" in text else "present", (), "by its value")


FIX = Fix(
    id="demo",
    title="t",
    story="s",
    why="w",
    do=("d",),
    package="pkg",
    file=NAMES[0],
    cls="C",
    affected="1.0",
    fixed_in="2.0",
    backends=(),
    severity="fault",
    detect=_detect,
    mend=lambda text: NEW[NAMES[0]].decode(),
)


@contextmanager
def doubled(folder: Path) -> Iterator[None]:
    """Send crash_probe.py as probes/fixtx.py, with the real one beside it as fixtx_real."""
    probes = folder / "probes"
    shutil.copytree(bundle.folder("probes"), probes, ignore=shutil.ignore_patterns("__pycache__", "prompts"))
    (probes / "fixtx.py").rename(probes / "fixtx_real.py")
    shutil.copy(Path(__file__).with_name("crash_probe.py"), probes / "fixtx.py")
    with mock.patch.object(bundle, "folder", lambda name: folder / name):
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    payload.sources.cache_clear()
    payload._program.cache_clear()


@dataclass(frozen=True)
class Rig:
    """A host in small. root/now is what the transaction works on, root/<act> what each case begins from."""

    root: Path

    @classmethod
    def build(cls, root: Path) -> Rig:
        rig = cls(root)
        for name, content in OLD.items():
            path = rig.site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            (path.parent / "__pycache__").mkdir(exist_ok=True)
            (path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").write_bytes(b"stale")
        info = rig.site / "pkg-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").touch()
        return rig

    def host(self, host: Host) -> Host:
        """The same host, with this rig's state folder and without looking for a Python first."""
        return Host(**{**host.model_dump(), "env": self.env, "helper_python": sys.executable})

    def prepare(self, host: Host) -> None:
        """Make what a crash of apply, and of revert, begins from."""
        self.keep("apply")
        with connect(self.host(host)) as transport:
            courier.call(transport, "fixtx", self.args("apply")["calls"]["apply"])
        self.keep("revert")

    @property
    def site(self) -> Path:
        return self.root / "now" / "site"

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.root / "now" / "state"), "DIAG_TEST_ORDERS": str(self.orders)}

    @property
    def orders(self) -> Path:
        return self.root / "orders"

    def keep(self, act: str) -> None:
        """What is there now is what each case of `act` begins from."""
        shutil.copytree(self.root / "now", self.root / act)

    def restore(self, act: str) -> None:
        fresh, gone = self.root / "now.new", self.root / "now.old"
        shutil.rmtree(gone, ignore_errors=True)
        shutil.copytree(self.root / act, fresh)
        (self.root / "now").rename(gone)
        fresh.rename(self.root / "now")
        shutil.rmtree(gone)

    def order(self, **orders: object) -> None:
        self.orders.write_text(json.dumps(orders))

    def contents(self) -> list[bytes]:
        return [(self.site / name).read_bytes() for name in NAMES]

    def side(self) -> str:
        """old, new, or mixed: each file by itself is whole."""
        seen = self.contents()
        if seen == list(OLD.values()):
            return "old"
        return "new" if seen == list(NEW.values()) else "mixed"

    def litter(self) -> list[str]:
        return [str(path) for path in self.site.rglob("*.diag")]

    def changes(self) -> list[FileChange]:
        return [FileChange(name, sha(OLD[name]), NEW[name]) for name in NAMES]

    def args(self, act: str) -> dict[str, Any]:
        """For the actions `batch` and `chain` of crash_probe.py."""
        about = {"fix": FIX.id, "package": FIX.package, "site_packages": str(self.site)}
        wire = [change.to_wire() for change in self.changes()]
        calls = {
            "apply": {"action": "apply", "files": wire, "version": "1.0", "python": sys.executable, **about},
            "revert": {"action": "revert", **about},
        }
        return {"act": act, "site": str(self.site), "start": str(self.root / act), "names": NAMES, "calls": calls}


def cut_off(rig: Rig, host: Host, act: str, operations: Sequence[int]) -> list[dict[str, Any]]:
    """Cut the connection after each of these operations of `act`: a row each. The program on the host lives on; the
    next connection looks at what it made and ends it by apply and revert in turn."""
    rows: list[dict[str, Any]] = []
    args = {"action": "chain", **rig.args(act)}
    for at, after in enumerate([*operations, 0]):
        look = None if at == 0 else ("apply", "revert")[at % 2]
        with connect(rig.host(host)) as transport:
            talk = courier.converse(transport, "fixtx", {**args, "look": look, "after": after})
            if look is not None:
                event = talk.next(30)
                if not isinstance(event, courier.Event):
                    raise AssertionError(event)
                rows.append({"act": act, "how": "cut", "after": operations[at - 1], **event.data})
                talk.send({"cmd": "go on"})
            try:
                struck = isinstance(talk.next(30), courier.Event)
            except LinkLost:
                struck = True
            if struck != (after != 0):
                raise AssertionError(f"{act}: the connection after operation {after}: lost is {struck}")
    return rows


class Watch:
    """Reads the files all the time from a thread; `torn` has each content that was neither the old nor the new."""

    def __init__(self, rig: Rig) -> None:
        self.torn: list[bytes] = []
        self.looks = 0
        self._rig = rig
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(0.0005):
            for name in NAMES:
                try:
                    seen = (self._rig.site / name).read_bytes()
                except OSError:  # between two cases the folder is made anew
                    continue
                self.looks += 1
                if seen not in (OLD[name], NEW[name]):
                    self.torn.append(seen)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def problems(row: Mapping[str, Any]) -> list[str]:
    """What a crash test holds against a row of crash_probe.aftermath; nothing is right."""
    where = f"{row.get('act')} {row.get('how', 'cut')} after {row.get('after')} ({row.get('name')}), then {row['then']}"
    sides, ends = _sides(row["seen"]), _sides(row["end"])
    claimed = {"applied": ["new"] * 2, "not_applied": ["old"] * 2}.get(row["state"], sides)
    named = ["new" if each == "fixed" else "old" for each in row["is"]] or ["old"] * 2 if "is" in row else sides
    wanted = "new" if row["then"] == "apply" else "old"
    found = {
        "a file is half written": "half" not in sides + ends,
        f"status says {row['state']}, files are {sides}": claimed == sides and row["state"] != "modified",
        f"status names the files {row.get('is')}, they are {sides}": named == sides,
        f"the lock is held by {row['lock']}": row["lock"] is None,
        f"it could not be ended: {row['error']}": row["error"] is None,
        f"it ended as {ends}, {row['end_state']}": ends == [wanted] * 2
        and row["end_state"] == ("applied" if wanted == "new" else "not_applied"),
        f"left behind: {row['litter']}": not row["litter"],
    }
    return [f"{where}: {what}" for what, good in found.items() if not good]


def _sides(hashes: list[str]) -> list[str]:
    return [{old: "old", new: "new"}.get(seen, "half") for (old, new), seen in zip(WHOLE.values(), hashes)]
