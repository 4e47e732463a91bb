"""Released wheels from the package index, fetched once into the cache: what a release really contains.

A wheel is only read (as a zip archive), never installed or imported here.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from diag import paths
from diag.errors import PreconditionFailed

FETCH_TIMEOUT_S = 900.0
LIST_TIMEOUT_S = 120.0
OLDEST_GLIBC = 5  # manylinux1


@dataclass(frozen=True)
class Target:
    """The CPython that wheels are for. platforms: their tags, the most specific first."""

    python_version: str
    platforms: tuple[str, ...]

    @cached_property
    def tags(self) -> frozenset[Tag]:
        major, minor = (int(part) for part in self.python_version.split(".")[:2])
        own = cpython_tags((major, minor), [f"cp{major}{minor}"], self.platforms)
        return frozenset([*own, *compatible_tags((major, minor), f"cp{major}{minor}", self.platforms)])

    @property
    def options(self) -> list[str]:
        """As pip is told it."""
        platforms = [word for platform in self.platforms for word in ("--platform", platform)]
        return ["--only-binary=:all:", "--python-version", self.python_version, "--implementation", "cp", *platforms]

    def __str__(self) -> str:
        return f"Python {self.python_version} on {self.platforms[0]}"


# Engines ship for Linux alone, whatever the laptop is; the most specific tag that a release offers wins.
LINUX = Target(
    "3.11",
    ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
)


def target_of(facts: Mapping[str, str]) -> Target:
    """From what an interpreter says of itself: {"version": "3.11.2", "implementation", "system", "machine", "libc":
    "glibc 2.36", "release": "14.5" (macOS)}. Raises PreconditionFailed for one that no wheel is looked for."""
    version, machine = ".".join(facts["version"].split(".")[:2]), facts["machine"]
    libc, _, release = facts.get("libc", "").partition(" ")
    if facts["implementation"] == "cpython" and facts["system"] == "linux" and libc == "glibc":
        return Target(version, tuple(_manylinux(int(release.split(".")[1]), machine)))
    if facts["implementation"] == "cpython" and facts["system"] == "darwin":
        major, _, rest = facts["release"].partition(".")
        return Target(version, tuple(mac_platforms((int(major), int(rest.split(".")[0] or 0)), machine)))
    said = " ".join(facts[name] for name in ("implementation", "version", "system", "machine"))
    raise PreconditionFailed(
        f"Wheels are not looked for: the interpreter is {said} {libc or 'of an unknown C library'}.",
        next="CPython on Linux with glibc, or on macOS, is what wheels are fetched for.",
    )


def _manylinux(glibc: int, machine: str) -> Iterator[str]:
    """Newest first. glibc: the minor version, of 2."""
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for minor in range(glibc, OLDEST_GLIBC - 1, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in legacy:
            yield f"{legacy[minor]}_{machine}"
    yield f"linux_{machine}"


def versions(package: str, target: Target | None = LINUX, *, pre: bool = False) -> list[str]:
    """Released versions that have a wheel for `target`, oldest first, as the index of pip's configuration says.

    Yanked ones are not among them. pre: pre-releases too. target None: whatever this interpreter could install, from
    source too. [] where no wheel fits; PreconditionFailed where the index does not know the package or cannot be asked.
    """
    options = [*(target.options if target is not None else []), *(["--pre"] if pre else [])]
    command = _pip("index", "versions", *options, package)
    code, said, errors = _run(command, LIST_TIMEOUT_S, f"Listing the versions of {package}")
    if code == 0:
        return _listed(said)
    if target is not None and "No matching distribution" in errors and versions(package, None, pre=True):
        return []
    raise PreconditionFailed(
        f"The package index does not list {package}.",
        next="Check the name, and that the index which pip is configured for can be reached from here.",
        details=_last(errors),
    )


def _listed(said: str) -> list[str]:
    found = re.search(r"^Available versions: (.*)$", said, re.M)
    return sorted(found[1].split(", "), key=Version) if found else []


def sha256(wheel: Path) -> str:
    with wheel.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(package: str, version: str, *, target: Target = LINUX, timeout_s: float = FETCH_TIMEOUT_S) -> Path:
    """The wheel of one release, as a file in the cache (`<cache>/wheels`); downloads it when it is not there.

    Dependencies are not fetched. Two processes may fetch at once: a wheel appears under its name only when it
    is complete. Raises PreconditionFailed when the release cannot be had, with the last lines of pip.
    """
    folder = paths.cache_dir() / "wheels"
    cached = _cached(folder, package, version, target)
    if cached is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        _download(package, version, target, Path(scratch), timeout_s)
        for wheel in Path(scratch).glob("*.whl"):
            wheel.replace(folder / wheel.name)
    fetched = _cached(folder, package, version, target)
    if fetched is None:
        raise PreconditionFailed(
            f"pip downloaded {package}=={version} but left no wheel of that name in {folder}.",
            next="Look at the folder, remove what is in it, and try again.",
        )
    return fetched


def cached(package: str, version: str, *, target: Target = LINUX) -> Path | None:
    """The wheel of one release when it was fetched before."""
    return _cached(paths.cache_dir() / "wheels", package, version, target)


def read(wheel: Path, member: str) -> bytes:
    """The bytes of one file inside the wheel. Raises PreconditionFailed when it has no such file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except KeyError:
        raise PreconditionFailed(
            f"{wheel.name} has no file {member}.",
            next="This release keeps it elsewhere, or does not have it.",
        ) from None
    except zipfile.BadZipFile as broken:
        raise PreconditionFailed(
            f"{wheel} is not a readable wheel: {broken}.", next="Remove it; it is fetched again."
        ) from None


def _cached(folder: Path, package: str, version: str, target: Target) -> Path | None:
    return next(iter(sorted(_named(folder, package, version, target))), None)


def _named(folder: Path, package: str, version: str, target: Target) -> Iterator[Path]:
    """Wheels of this release that fit; the name in any spelling."""
    for wheel in folder.glob("*.whl"):
        try:
            name, released, _, tags = parse_wheel_filename(wheel.name)
            fits = released == Version(version)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        if fits and name == canonicalize_name(package) and tags & target.tags:
            yield wheel


def _download(package: str, version: str, target: Target, into: Path, timeout_s: float) -> None:
    """pip holds what it downloads against the hash that the index tells."""
    words = ("--quiet", "--no-deps", "--dest", str(into), *target.options, f"{package}=={version}")
    code, _, errors = _run(_pip("download", *words), timeout_s, f"Fetching {package}=={version}")
    if code != 0:
        raise _not_fetched(package, version, target, errors)


def _pip(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "--no-input"]


def _run(command: Sequence[str], timeout_s: float, what: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise PreconditionFailed(
            f"{what} took longer than {timeout_s:.0f} s.",
            next="Check the connection to the package index and try again.",
        ) from None
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _last(said: str) -> list[str]:
    return [line.strip()[:200] for line in said.splitlines() if line.strip() and "WARNING" not in line][-5:]


def _not_fetched(package: str, version: str, target: Target, said: str) -> PreconditionFailed:
    if "No module named pip" in said:
        advice = f"Install pip for {sys.executable} (python -m ensurepip)."
    elif "from versions: none" in said or "Could not find a version" not in said:
        advice = "Check that the package index can be reached from here."
    else:
        advice = f"Check the version: the index answered, and has no such release for {target}."
    return PreconditionFailed(f"The wheel {package}=={version} could not be fetched.", next=advice, details=_last(said))
