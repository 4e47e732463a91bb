"""The hosts that the user has named, from TOML files.

schema = 1
[hosts.gpu1]
address = "10.0.0.5"
user = "ops"
python = "/opt/sglang/bin/python"
[groups]
ranks = ["gpu1", "gpu2"]
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, field_validator

from diag import paths
from diag.errors import InventoryError, UnknownHost, UsageError
from diag.hosts import ssh_config

PROJECT_FILE = "diag.toml"
LOCAL = "local"
ALL = "all"
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
_CONTAINER = (
    r"^((docker|podman):[A-Za-z0-9][\w.-]*|kubectl:[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9-]*)?)$"
)

_GPUS = r"^[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*$"

_UserPath = Annotated[
    Path, BeforeValidator(lambda value: Path(value).expanduser() if isinstance(value, str) else value)
]


class Expected(BaseModel):
    """What this host should have; what differs is a finding of `diag probe host`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_count: int | None = Field(default=None, ge=0)
    gpu_name: str | None = Field(default=None, min_length=1, description="part of the name that nvidia-smi prints")
    driver: str | None = Field(default=None, min_length=1, description="beginning of the driver's version")
    memory_gib: float | None = Field(default=None, gt=0, description="at least")
    disk_free_gib: float | None = Field(default=None, gt=0, description="at least, on every file system looked at")
    packages: dict[str, str] = Field(default_factory=dict, description="name to version, in the engine's environment")


class Host(BaseModel):
    """One host. All that is needed to reach it; nothing is looked up elsewhere at connect time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    address: str = Field(pattern=r"^[^\s-][^\s]*$", description='host name, IP address, or "local"')
    port: int = Field(default=22, ge=1, le=65535)
    user: str | None = Field(default=None, pattern=r"^[^\s-][^\s]*$", description="default: who you are here")
    identity_file: _UserPath | None = Field(default=None, description="only this key is offered")
    known_hosts: _UserPath | None = Field(default=None, description="read instead of ~/.ssh/known_hosts")
    python: str | None = Field(default=None, min_length=1, description="the engine's interpreter")
    helper_python: str | None = Field(default=None, min_length=1, description="runs our probes; 3.8 or newer")
    transport: Literal["auto", "paramiko", "openssh"] = Field(
        default="auto", description="auto: Paramiko, unless only OpenSSH can do what this host needs"
    )
    ssh_name: str | None = Field(
        default=None, pattern=r"^[^\s-][^\s]*$", description="what OpenSSH is given instead of address"
    )
    container: str | None = Field(
        default=None, pattern=_CONTAINER, description="docker:NAME, podman:NAME or kubectl:NAMESPACE/POD[/CONTAINER]"
    )
    sudo: bool = Field(default=False, description="fixes run there by `sudo -n`, for an environment that root owns")
    env: dict[str, SecretStr] = Field(default_factory=dict, description="set for our programs on the host")
    labels: dict[str, str] = Field(default_factory=dict)
    jump: Host | None = Field(default=None, description="reached through this host; in a file: its name")
    connect_timeout_s: float = Field(default=10, gt=0, le=600)
    gpu_sets: tuple[Annotated[str, Field(pattern=_GPUS)], ...] = Field(
        default=(), description='each is a place for one server of a bisection: ["0,1", "2,3"]'
    )
    expected: Expected | None = Field(default=None, description="compared with what is found")

    @field_validator("env")
    @classmethod
    def _settable(cls, env: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in env.items():
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
                raise ValueError(f"not the name of an environment variable: {name!r}")
            if "\0" in value.get_secret_value():
                raise ValueError(f"{name}: a value cannot contain NUL")
        return env

    @field_validator("gpu_sets")
    @classmethod
    def _apart(cls, sets: tuple[str, ...]) -> tuple[str, ...]:
        gpus = [gpu for one in sets for gpu in one.split(",")]
        twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
        if twice is not None:
            raise ValueError(f"GPU {twice} is named twice: sets have no GPU in common")
        return sets

    def slots(self) -> tuple[Host, ...]:
        """A host for each of its sets of GPUs, NAME.gpu0-1; where it has none, itself."""
        return tuple(
            self.model_copy(update={"name": f"{self.name}.gpu{one.replace(',', '-')}", "gpu_sets": (one,)})
            for one in self.gpu_sets
        ) or (self,)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of a slot: those that its servers may see; none: all."""
        return tuple(self.gpu_sets[0].split(",")) if len(self.gpu_sets) == 1 else ()


@dataclass(frozen=True)
class Inventory:
    """hosts: by name; origin: the file each name comes from; files: those that were read; groups: name to the names
    in it, of hosts and of other groups."""

    hosts: Mapping[str, Host]
    origin: Mapping[str, Path] = field(default_factory=dict)
    files: Sequence[Path] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

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

    def is_group(self, name: str) -> bool:
        return name not in self.hosts and (name == ALL or name in self.groups)

    def select(self, target: str, limit: str | None = None) -> list[Host]:
        """The hosts of a group, of "all", or the one host of that name, in the inventory's order.

        limit: names and patterns ("gpu1,gpu[3-5]*"); only those of them. Raises UnknownHost, and UsageError when
        nothing is left.
        """
        names = self._members(target) if self.is_group(target) else [self.get(target).name]
        if limit is not None:
            patterns = [pattern.strip() for pattern in limit.split(",")]
            names = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if not names:
            raise UsageError(
                f"No host is left of {target!r}" + (f" with --limit {limit}." if limit is not None else "."),
                next="See the names: diag host list",
            )
        return [self.get(name) for name in names]

    def slots(self, target: str) -> list[Host]:
        """Where servers can be started at the same time: of each host of `select` its slots, or the one of that
        name."""
        if target not in self.hosts:
            for host in self.hosts.values():
                for slot in host.slots():
                    if slot.name == target:
                        return [slot]
        return [slot for host in self.select(target) for slot in host.slots()]

    def _members(self, group: str) -> list[str]:
        if group == ALL and ALL not in self.groups:
            return list(self.hosts)
        found: dict[str, None] = {}
        for member in self.groups[group]:
            found.update(dict.fromkeys([member] if member in self.hosts else self._members(member)))
        return list(found)

    def _unknown(self, name: str) -> UnknownHost:
        near = difflib.get_close_matches(name, [*self.hosts, *self.groups], n=3, cutoff=0.5)
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
    groups: dict[str, _Group] = {}
    for path in chosen:
        found, grouped = _read(path)
        for entry in found:
            entries.setdefault(entry.host.name, entry)
        for group in grouped:
            groups.setdefault(group.name, group)
    hosts = {name: _with_jump(name, entries, ()) for name in entries}
    for name in groups:
        _check_group(name, groups, entries, ())
    members = {name: group.members for name, group in groups.items()}
    return Inventory(hosts, {name: entry.path for name, entry in entries.items()}, chosen, members)


@dataclass(frozen=True)
class _Entry:
    path: Path
    host: Host
    jump: str | None


@dataclass(frozen=True)
class _Group:
    path: Path
    name: str
    members: tuple[str, ...]


def _check_group(name: str, groups: Mapping[str, _Group], hosts: Mapping[str, _Entry], inside: tuple[str, ...]) -> None:
    for member in groups[name].members:
        if member in hosts:
            continue
        if member not in groups or member in (name, *inside):
            why = "contains itself" if member in groups else "is neither a host nor a group of the inventory"
            raise InventoryError(
                f"{groups[name].path}: groups.{name}: {member!r} {why}.", next="Name hosts, or other groups."
            )
        _check_group(member, groups, hosts, (name, *inside))


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


def _read(path: Path) -> tuple[list[_Entry], list[_Group]]:
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
    return hosts, [_Group(path, name, tuple(members)) for name, members in document.get("groups", {}).items()]


def _outer_problems(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("schema") != 1:
        yield f"schema must be 1, not {document.get('schema')!r}"
    for key in document.keys() - {"schema", "hosts", "groups"}:
        yield f"unknown key {key!r}; known are schema, hosts and groups"
    yield from _group_problems(document)
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


def _group_problems(document: Mapping[str, Any]) -> Iterator[str]:
    groups = document.get("groups", {})
    if not isinstance(groups, dict):
        yield 'groups must be a table: write [groups] and then NAME = ["host", "host"]'
        return
    hosts = document.get("hosts", {})
    for name, members in groups.items():
        if re.fullmatch(_NAME, name) is None:
            yield f"groups: {name!r} is no name"
        elif isinstance(hosts, dict) and name in hosts:
            yield f"groups.{name}: there is a host of that name"
        elif not isinstance(members, list) or not all(isinstance(member, str) for member in members):
            yield f"groups.{name} must be a list of names of hosts"


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
        ssh_name=found.name if found.openssh_only else None,
        transport="openssh" if found.openssh_only else "auto",
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
