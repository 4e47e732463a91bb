"""What `diag probe source` and `diag source` look at: a host, a wheel, a folder or a release, read into one shape."""

from __future__ import annotations

import base64
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from diag import bundle
from diag.errors import PackageNotInstalled, PreconditionFailed, UnknownHost, UsageError
from diag.source import wheels

if TYPE_CHECKING:
    from diag.hosts.inventory import Host
    from diag.hosts.transport import Transport

Kind = Literal["host", "wheel", "folder", "release"]
Integrity = Literal["pristine", "edited", "missing", "unlisted"]
Say = Callable[[str], None]

TIMEOUT_S = 60.0
PACKAGE = "sglang"

_RELEASE = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)\Z")
_VERSION = re.compile(r"""^(?:__version__|version)\b[^=\n]*=.*?['"]([0-9][^'"]*)['"]\s*$""", re.M)


@dataclass(frozen=True)
class Target:
    """What a person typed, resolved. One of host, path and version is set, by kind."""

    typed: str
    kind: Kind
    host: Host | None = None
    path: Path | None = None
    version: str | None = None
    package: str = PACKAGE


@dataclass(frozen=True)
class SourceFile:
    """One file. integrity: by the wheel's RECORD; content: None where it is not there, or too large."""

    path: str
    integrity: Integrity
    sha256: str | None
    content: bytes | None = field(repr=False)
    why: str = ""

    @property
    def text(self) -> str:
        return (self.content or b"").decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Installation:
    """A package and the files that were asked for. where: the site-packages folder, or the wheel; servers: argv of
    those that run from it; near: for a file that is not there, paths like it; unknown: [{what, why}]."""

    target: Target
    package: str
    version: str | None
    where: str
    python: str | None
    files: tuple[SourceFile, ...]
    others: tuple[str, ...] = ()
    servers: tuple[tuple[str, ...], ...] = ()
    near: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: tuple[Mapping[str, str], ...] = ()

    def file(self, path: str) -> SourceFile:
        return next(file for file in self.files if file.path == path)


def resolve(typed: str, package: str = PACKAGE) -> Target:
    """A path where it looks like one, a release where it has `==`, a host of the inventory, else a path that exists.
    A folder with the name of a host is meant with `./`. Raises UnknownHost and UsageError."""
    from diag.hosts import inventory

    release = _RELEASE.match(typed)
    if release is not None:
        return Target(typed, "release", version=release[2], package=release[1])
    path = Path(typed).expanduser()
    if "/" in typed or typed.startswith((".", "~")) or typed.endswith(".whl"):
        return _path(typed, path, package)
    known = inventory.load()
    try:
        return Target(typed, "host", host=known.get(typed), package=package)
    except UnknownHost:
        if path.exists():
            return _path(typed, path, package)
        raise


def _path(typed: str, path: Path, package: str) -> Target:
    if path.is_dir():
        return Target(typed, "folder", path=path, package=package)
    if path.is_file() and zipfile.is_zipfile(path):
        return Target(typed, "wheel", path=path, package=package)
    what = "is neither a wheel nor a folder" if path.exists() else "does not exist"
    raise UsageError(
        f"{typed} {what}.",
        next="Name a host, a wheel file, a folder that holds the package, or sglang==VERSION.",
    )


def read(
    target: Target,
    files: Sequence[str],
    *,
    transport: Transport | None = None,
    python: str | None = None,
    say: Say = lambda line: None,
) -> Installation:
    """The installation with these files. transport: to the host, for a host.

    Raises PackageNotInstalled, PreconditionFailed for a release that cannot be had, and HostError.
    """
    if target.kind == "host":
        if transport is None:
            raise ValueError("a host is read over a transport")
        return _host(target, files, transport, python)
    if target.kind == "release":
        if wheels.cached(target.package, target.version or "") is None:
            say(f"fetching {target.typed}")
        return _wheel(target, wheels.fetch(target.package, target.version or ""), files)
    path = cast(Path, target.path)
    return _wheel(target, path, files) if target.kind == "wheel" else _folder(target, path, files)


# --- a host -------------------------------------------------------------------------------------------------------


def _host(target: Target, files: Sequence[str], transport: Transport, python: str | None) -> Installation:
    from diag.hosts import courier

    named = python if python is not None else transport.host.python
    args = {"package": target.package, "files": list(files), "python": named}
    document = courier.call(transport, "sources", args, timeout_s=TIMEOUT_S)
    return Installation(
        target=target,
        package=target.package,
        version=document["source"]["version"],
        where=document["source"]["imported_from"],
        python=document["python"],
        files=tuple(_checked(file) for file in document["source"]["files"]),
        others=tuple(document["others"]),
        servers=tuple(tuple(server["argv"] or ()) for server in document["servers"]),
        near=document["near"],
        unknown=tuple(document["unknown"]),
    )


def _checked(file: Mapping[str, Any]) -> SourceFile:
    """From a document of probes/integrity.py."""
    packed = file["content_b64"]
    content = zlib.decompress(base64.b64decode(packed)) if packed is not None else None
    why = str(file.get("why") or ("it is too large" if file["exists"] and content is None else ""))
    return SourceFile(file["path"], file["integrity"], file["sha256"], content, why)


# --- a folder -----------------------------------------------------------------------------------------------------


def _folder(target: Target, path: Path, files: Sequence[str]) -> Installation:
    base = _base(path, target.package)
    integrity, near = bundle.load("probes.integrity"), bundle.load("probes.sources").near
    document = integrity.inspect(str(base), [str(base)], target.package, list(files), False)
    checked = tuple(_checked(file) for file in document["files"])
    return Installation(
        target=target,
        package=target.package,
        version=document["version"] or _own_version(base / target.package),
        where=str(base),
        python=None,
        files=checked,
        near={file.path: near(str(base), target.package, file.path) for file in checked if file.sha256 is None},
        unknown=tuple(document["unknown"]),
    )


def _base(path: Path, package: str) -> Path:
    """The folder to import from: this one, a checkout's `python`, or the parent of the package itself."""
    for candidate in (path, path / "python", path.parent if path.name == package else path):
        if (candidate / package).is_dir():
            return candidate.resolve()
    raise PackageNotInstalled(
        f"{path} holds no folder {package}.",
        next=f"Name a site-packages folder, or any folder that holds {package}/.",
    )


def _own_version(package: Path) -> str | None:
    """What the source says of itself, where no dist-info does."""
    for name in ("_version.py", "version.py"):
        try:
            found = _VERSION.search((package / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if found is not None:
            return found[1]
    return None


# --- a wheel ------------------------------------------------------------------------------------------------------


def _wheel(target: Target, path: Path, files: Sequence[str]) -> Installation:
    try:
        with zipfile.ZipFile(path) as archive:
            return _unzipped(target, path, archive, files)
    except (zipfile.BadZipFile, OSError) as broken:
        raise PreconditionFailed(f"{path} is not a readable wheel: {broken}.", next="Fetch it again.") from None


def _unzipped(target: Target, path: Path, archive: zipfile.ZipFile, files: Sequence[str]) -> Installation:
    names = set(archive.namelist())
    info = next((name.split("/")[0] for name in sorted(names) if re.match(r"[^/]+\.dist-info/RECORD\Z", name)), None)
    if info is None or not any(name.startswith(f"{target.package}/") for name in names):
        raise PackageNotInstalled(f"{path} is no wheel of {target.package}.", next="Look at what it is: unzip -l FILE")
    record = bundle.load("probes.integrity").parse_record(archive.read(f"{info}/RECORD").decode("utf-8", "replace"))
    checked = tuple(_member(archive, names, name, record.get(name)) for name in files)
    return Installation(
        target=target,
        package=target.package,
        version=info.removesuffix(".dist-info").partition("-")[2],
        where=str(path),
        python=None,
        files=checked,
        near={file.path: _near(names, target.package, file.path) for file in checked if file.sha256 is None},
    )


def _member(archive: zipfile.ZipFile, names: set[str], name: str, entry: Any) -> SourceFile:
    import hashlib

    recorded = entry.sha256 if entry is not None else None
    if name not in names:
        return SourceFile(name, "missing" if entry is not None else "unlisted", None, None)
    content = archive.read(name)
    digest = hashlib.sha256(content).hexdigest()
    integrity: Integrity = "unlisted" if recorded is None else "pristine" if digest == recorded else "edited"
    return SourceFile(name, integrity, digest, content)


def _near(names: set[str], package: str, path: str) -> list[str]:
    every = sorted(name for name in names if name.startswith(f"{package}/") and name.endswith(".py"))
    found: list[str] = bundle.load("probes.sources").alike(every, path)
    return found
