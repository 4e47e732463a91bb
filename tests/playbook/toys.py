"""A host in small for playbooks: an environment with one real file of SGLang and a toy engine beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.source.releases import PATH, source

VERSION = "0.5.12"
ENGINE = {
    "launch_server.py": Path(__file__).with_name("toy_launch_server.py"),
    "answers.py": Path(__file__).parents[1] / "bisect" / "over" / "toy_launch_server.py",
}


@dataclass(frozen=True)
class Toy:
    """root: everything of it lies there; env: for commands that are to know it as the host `toy`."""

    root: Path

    @property
    def prefix(self) -> Path:
        return self.root / "venv"

    @property
    def site(self) -> Path:
        return self.prefix / "lib" / "python3.11" / "site-packages"

    @property
    def file(self) -> Path:
        return self.site / PATH

    @property
    def env(self) -> dict[str, str]:
        return {"DIAG_STATE_DIR": str(self.root / "state"), "DIAG_CONFIG_DIR": str(self.root / "config")}

    @property
    def original(self) -> bytes:
        return source(VERSION).encode()

    def is_pristine(self) -> bool:
        return self.file.read_bytes() == self.original

    def runs(self) -> list[Path]:
        """Journals of playbooks, oldest first."""
        found = sorted((self.root / "state" / "runs").glob("*/journal.jsonl"))
        return [path for path in found if "." not in path.parent.name]

    def servers(self) -> list[str]:
        """Toy engines of this host that run, and programs of diag that supervise them."""
        return list(running(str(self.prefix)))


def build(root: Path) -> Toy:
    toy = Toy(root)
    toy.file.parent.mkdir(parents=True)
    toy.file.write_bytes(toy.original)
    (toy.site / "sglang" / "__init__.py").write_text("")
    for name, ours in ENGINE.items():
        (toy.site / "sglang" / name).write_text(ours.read_text())
    (toy.prefix / "bin").mkdir()
    (toy.prefix / "bin" / "python").symlink_to(sys.executable)
    (toy.prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\nversion = 3.11.2\n")
    info = toy.site / f"sglang-{VERSION}.dist-info"
    info.mkdir()
    recorded = base64.urlsafe_b64encode(hashlib.sha256(toy.original).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"{PATH},sha256={recorded},{len(toy.original)}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n")
    inventory(toy)
    return toy


def inventory(toy: Toy, names: tuple[str, ...] = ("toy",), **more: Any) -> None:
    """The same environment under each of the names."""
    host = {"address": "local", "python": str(toy.prefix / "bin" / "python"), "helper_python": sys.executable, **more}
    lines = ["schema = 1"]
    for name in names:
        lines += [f"[hosts.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in host.items())]
        lines += [f"[hosts.{name}.env]", f'XDG_STATE_HOME = "{toy.root / "host"}"']
        lines += [f"[hosts.{name}.labels]", 'model = "/models/toy"']
    lines += ["[groups]", f"every = {json.dumps(list(names))}"]
    (toy.root / "config").mkdir(exist_ok=True)
    (toy.root / "config" / "hosts.toml").write_text("\n".join(lines) + "\n")


def running(mark: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if mark in line and "launch_server" in line and "-c" not in line.split():
                    yield line


def entries(journal: Path) -> list[dict[str, Any]]:
    """Of the whole lines."""
    return [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]]


def states(journal: Path) -> dict[str, str]:
    """The last state of each step."""
    return {one["id"]: one["state"] for one in entries(journal) if one["kind"] == "step"}


def outstanding(journal: Path) -> list[str]:
    """Changes that were not given back."""
    lines = entries(journal)
    back = {one["change"] for one in lines if one["kind"] == "undone"}
    return [one["what"] for one in lines if one["kind"] == "change" and one["id"] not in back]
