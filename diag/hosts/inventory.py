"""The hosts that the user has named, from TOML files.

schema = 1
[hosts.gpu1]
address = "10.0.0.5"
user = "ops"
python = "/opt/sglang/bin/python"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from diag import paths
from diag.errors import InventoryError, UnknownHost
from diag.hosts import ssh_config

PROJECT_FILE = "diag.toml"
LOCAL = "local"

_UserPath = Annotated[
    Path, BeforeValidator(lambda value: Path(value).expanduser() if isinstance(value, str) else value)
]


class Host(BaseModel):
    """One host. All that is needed to reach it; nothing is looked up elsewhere at connect time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    address: str = Field(pattern=r"^[^\s-][^\s]*$", description='host name, IP address, or "local"')
    port: int = Field(default=22, ge=1, le=65535)
    user: str | None = Field(default=None, pattern=r"^[^\s-][^\s]*$", description="default: who you are here")
    identity_file: _UserPath | None = Field(default=None, description="only this key is offered")
    known_hosts: _UserPath | None = Field(default=None, description="read instead of ~/.ssh/known_hosts")
    python: str | None = Field(default=None, min_length=1, description="the engine's interpreter")
    helper_python: str | None = Field(default=None, min_length=1, description="runs our probes; 3.8 or newer")
    sudo: bool = Field(default=False, description="fixes run there by `sudo -n`, for an environment that root owns")
    env: dict[str, str] = Field(default_factory=dict, description="set for our programs on the host")
    labels: dict[str, str] = Field(default_factory=dict)
    jump: Host | None = Field(default=None, description="reached through this host; in a file: its name")
    connect_timeout_s: float = Field(default=10, gt=0, le=600)

    @field_validator("env")
    @classmethod
    def _settable(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
                raise ValueError(f"not the name of an environment variable: {name!r}")
            if "\0" in value:
                raise ValueError(f"{name}: a value cannot contain NUL")
        return env


@dataclass(frozen=True)
class Inventory:
    """hosts: by name; origin: the file each name comes from; files: those that were read."""

    hosts: Mapping[str, Host]
    origin: Mapping[str, Path] = field(default_factory=dict)
    files: Sequence[Path] = ()

    def get(self, name: str) -> Host:
        """A name that only ~/.ssh/config knows is taken from there; "local" is this machine.

        Raises UnknownHost, which names the nearest names and the files that were read."""
        if name in self.hosts:
            return self.hosts[name]
        if name == LOCAL:
            return Host(name=LOCAL, address=LOCAL)
        from_ssh = ssh_config.resolve(name)
        if from_ssh is not None:
            return _from_ssh(from_ssh)
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownHost:
        near = difflib.get_close_matches(name, self.hosts, n=3, cutoff=0.5)
        details = [f"did you mean: {', '.join(near)}"] if near else []
        details += [f"read: {path}" for path in self.files] or ["no inventory file was found"]
        if name == "lab":
            return UnknownHost("The lab is not up: there is no host named 'lab'.", next="Start it: diag lab up")
        return UnknownHost(
            f"There is no host named {name!r} in the inventory.",
            next=f"Add [hosts.{name}] to {paths.config_dir() / 'hosts.toml'}, or see: diag host list",
            details=details,
        )


def default_files(start: Path | None = None) -> list[Path]:
    """Where an inventory may be, first one wins: ./diag.toml or a parent's, hosts.toml, hosts.d/*.toml."""
    here = (start or Path.cwd()).resolve()
    project = next(
        (folder / PROJECT_FILE for folder in (here, *here.parents) if (folder / PROJECT_FILE).is_file()), None
    )
    config = paths.config_dir()
    found = [project] if project is not None else []
    found += [config / "hosts.toml"] if (config / "hosts.toml").is_file() else []
    return found + sorted((config / "hosts.d").glob("*.toml"))


def suggested_files() -> list[Path]:
    """Where a first inventory would go: for this project, or for this user."""
    return [Path.cwd() / PROJECT_FILE, paths.config_dir() / "hosts.toml"]


def load(files: Sequence[Path] | None = None) -> Inventory:
    """Read the given files, or the default ones. Raises InventoryError with every fault of the first bad file."""
    chosen = list(files) if files is not None else default_files()
    entries: dict[str, _Entry] = {}
    for path in chosen:
        for entry in _read(path):
            entries.setdefault(entry.host.name, entry)
    hosts = {name: _with_jump(name, entries, ()) for name in entries}
    return Inventory(hosts, {name: entry.path for name, entry in entries.items()}, chosen)


@dataclass(frozen=True)
class _Entry:
    path: Path
    host: Host
    jump: str | None


def _with_jump(name: str, entries: Mapping[str, _Entry], behind: tuple[str, ...]) -> Host:
    entry = entries[name]
    if entry.jump is None:
        return entry.host
    if entry.jump not in entries or entry.jump in (name, *behind):
        why = "leads back to itself" if entry.jump in entries else "is not a host of the inventory"
        raise InventoryError(
            f"{entry.path}: hosts.{name}.jump: {entry.jump!r} {why}.", next="Name another host, or remove jump."
        )
    return entry.host.model_copy(update={"jump": _with_jump(entry.jump, entries, (name, *behind))})


def _read(path: Path) -> list[_Entry]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InventoryError(f"{path}: the inventory cannot be read: {error}.", next="Correct the file.") from None
    problems = list(_outer_problems(document))
    hosts = []
    if not problems:
        for name, entry in document.get("hosts", {}).items():
            try:
                hosts.append(_Entry(path, _host(name, entry, path.parent), entry.get("jump")))
            except ValidationError as error:
                problems += [_problem(path, text, name, detail) for detail in error.errors()]
    if problems:
        raise InventoryError(f"{path}: the inventory is wrong.", details=problems, next="Correct the file.")
    return hosts


def _outer_problems(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("schema") != 1:
        yield f"schema must be 1, not {document.get('schema')!r}"
    for key in document.keys() - {"schema", "hosts"}:
        yield f"unknown key {key!r}; known are schema and hosts"
    hosts = document.get("hosts", {})
    if not isinstance(hosts, dict):
        yield "hosts must be a table: write [hosts.NAME]"
        return
    for name, entry in hosts.items():
        if not isinstance(entry, dict):
            yield f"hosts.{name} must be a table: write [hosts.{name}]"
        elif "name" in entry:
            yield f"hosts.{name}: the name is the one in the brackets; remove the key name"
        elif not isinstance(entry.get("jump", ""), str):
            yield f"hosts.{name}.jump must be the name of another host"


def _host(name: str, entry: Mapping[str, Any], folder: Path) -> Host:
    host = Host(**{**{key: value for key, value in entry.items() if key != "jump"}, "name": name})
    # A relative path in a file means: relative to that file.
    moved = {
        key: folder / value
        for key in ("identity_file", "known_hosts")
        if (value := getattr(host, key)) is not None and not value.is_absolute()
    }
    return host.model_copy(update=moved)


def _from_ssh(found: ssh_config.Resolved) -> Host:
    return Host(
        name=found.name,
        address=found.address,
        port=found.port,
        user=found.user,
        identity_file=found.identity_file,
        known_hosts=found.known_hosts,
        jump=_from_ssh(found.jump) if found.jump is not None else None,
    )


def _problem(path: Path, text: str, name: str, detail: Any) -> str:
    keys = [str(part) for part in detail["loc"]]
    line = _line_of(text, name, keys[0] if keys else "")
    where = f"{path}:{line}" if line is not None else str(path)
    known = (
        f"; known are {', '.join(sorted(set(Host.model_fields) - {'name'}))}"
        if detail["type"] == "extra_forbidden"
        else ""
    )
    return f"{where}: hosts.{'.'.join([name, *keys])}: {detail['msg']}{known}"


def _line_of(text: str, name: str, key: str) -> int | None:
    """Line (from 1) of `key` in [hosts.NAME], or of that header; None where it is written in another form."""
    header = re.compile(rf"\s*\[\s*hosts\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*(\.|\])")
    entry = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]")
    found = None
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("["):
            inside = header.match(line) is not None
            found = number if inside and found is None else found
        elif inside and key and entry.match(line):
            return number
    return found
