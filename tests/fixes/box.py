"""A host in small, for the transaction in this process: a package of a few files, and a state folder."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

from probes import _fixfiles, fixread, fixtx

OLD = b"# \xc3\xa4lt\r\nVALUE = 1\r\n\ttext = 2".replace(b"\t", b"")  # CRLF, no final newline
NEW = b"VALUE = 17\n"


class Box:
    """A host in small: a site-packages folder and a state folder."""

    def __init__(self, root: Path, files: dict[str, bytes], state: Path | None = None) -> None:
        self.site = root / "site-packages"
        self.state = state or root / "state"
        self.new = NEW
        self.old = dict(files)
        for name, content in files.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o640)
            os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
            cache = path.parent / "__pycache__"
            cache.mkdir(exist_ok=True)
            (cache / f"{path.stem}.cpython-311.pyc").write_bytes(b"stale")
        info = self.site / "pkg-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("")

    def path(self, name: str) -> Path:
        return self.site / name

    def run(self, action: str, ops: _fixfiles.Ops | None = None, **more: Any) -> dict[str, Any]:
        args = {"action": action, "fix": "demo", "package": "pkg", "site_packages": str(self.site), **more}
        args = json.loads(json.dumps(args))
        return fixread.run(args) if action == "read" else fixtx.run(args, None, ops)

    def apply(self, ops: _fixfiles.Ops | None = None, new: bytes | None = None, **more: Any) -> dict[str, Any]:
        return self.run("apply", ops, version="1.0", files=self.wire(self.new if new is None else new), **more)

    def check(self, **more: Any) -> dict[str, Any]:
        return self.run("check", version="1.0", files=self.wire(self.new), **more)

    def wire(self, new: bytes) -> list[dict[str, str]]:
        packed = base64.b64encode(zlib.compress(new)).decode()
        return [{"path": name, "pre_sha256": sha(old), "content_b64": packed} for name, old in self.old.items()]

    def contents(self) -> list[bytes]:
        return [self.path(name).read_bytes() for name in self.old]

    def litter(self) -> list[str]:
        """Names in the package that neither the package nor Python put there."""
        return [str(path) for path in self.site.rglob("*") if path.name.endswith(".diag")]

    def backups(self) -> list[Path]:
        return list(self.state.rglob("*.orig"))

    def is_old(self) -> bool:
        return self.contents() == list(self.old.values())

    def is_new(self) -> bool:
        return all(content == self.new for content in self.contents())


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
