"""The oracle, from the laptop: run an installed backend's own metadata builders and see whether they are right.

    answer = ask(transport, site_packages, python)       on a host, by one exec
    answer = ask_local(wheel_or_folder)                  here, in a process of its own, where torch is installed
    agree(detection, answer)                             a sentence when reading and running say different things

What is run, and what it is compared with: kernels/metadata.py. This module needs no torch.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from diag import bundle
from diag.errors import HostProgramFailed, NoPythonOnHost, PackageNotInstalled, PreconditionFailed

if TYPE_CHECKING:
    from diag.hosts.transport import Transport
    from diag.source.detect import Detection

Verdict = Literal["right", "wrong", "cannot_tell"]
Real = Literal["auto"] | bool

TIMEOUT_S = 120.0
SCHEMA = 1
FAULT = "mask-indptr"
"""The fault that this oracle is about."""


@dataclass(frozen=True)
class OracleAnswer:
    """verdict: right, wrong, or cannot_tell, for the reason in `why`. summary: paths, fields, and from which batch
    size on. notes: what else was seen, a graph's mask buffer that is too small, say. real_import: with the engine
    itself around the backend instead of stand-ins. document: everything, each case with the numbers got and wanted."""

    verdict: Verdict
    why: str
    summary: str
    package_version: str | None = None
    real_import: bool = False
    uses_triton: bool = False
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Subject:
    """A wheel, or a folder that holds `sglang`; text: this as the backend file instead of the one that is there."""

    where: Path
    text: str | None = None


def ask(
    transport: Transport, site_packages: str, python: str, *, real: Real = "auto", timeout_s: float = TIMEOUT_S
) -> OracleAnswer:
    """Run the file that is installed in `site_packages` on the host, by the engine's interpreter `python` there.

    Raises the HostError of a connection that fails; everything else is an answer.
    """
    try:
        return answer(_call(transport, {"site_packages": site_packages, "real": real}, python, timeout_s))
    except (HostProgramFailed, NoPythonOnHost) as error:
        return _cannot_tell(str(error))


def ask_text(
    transport: Transport, fix_id: str, site_packages: str, python: str, text: str, *, timeout_s: float = TIMEOUT_S
) -> OracleAnswer | None:
    """What `ask` would say if `text` were the installed backend file, which is not touched. None: no oracle for it.

    Raises the HostError of a connection that fails; everything else is an answer.
    """
    if fix_id != FAULT:
        return None
    args = {"site_packages": site_packages, "text": text}
    try:
        return answer(_call(transport, args, python, timeout_s))
    except (HostProgramFailed, NoPythonOnHost) as error:
        return _cannot_tell(str(error))


def ask_local(where: Path, *, text: str | None = None, real: Real = False) -> OracleAnswer:
    """The same for a wheel or an unpacked folder, here. Raises PreconditionFailed for something that is neither."""
    return ask_local_all([Subject(where, text)], real=real)[0]


def ask_local_all(
    subjects: Sequence[Subject], *, real: Real = False, each_timeout_s: float = TIMEOUT_S
) -> list[OracleAnswer]:
    """One answer for each subject, in order; torch is loaded once, and each file runs in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        why = "The oracle runs the installed file with torch, which is not installed here: pip install 'diag[lab]'."
        return [_cannot_tell(why) for _ in subjects]
    with tempfile.TemporaryDirectory(prefix="diag-oracle-") as scratch:
        folders = [str(_unpacked(each, Path(scratch) / str(index))) for index, each in enumerate(subjects)]
        return _run_here(folders, real, each_timeout_s)


def _run_here(folders: list[str], real: Real, each_timeout_s: float) -> list[OracleAnswer]:
    from diag.hosts.inventory import LOCAL, Host
    from diag.hosts.transport import connect

    with connect(Host(name="here", address=LOCAL)) as transport:
        try:
            args = {"site_packages": folders, "real": real, "limit_s": each_timeout_s}
            done = _call(transport, args, sys.executable, TIMEOUT_S + each_timeout_s * len(folders))
        except HostProgramFailed as error:
            return [_cannot_tell(str(error)) for _ in folders]
    return [answer(document) for document in done["results"]]


def _call(transport: Transport, args: dict[str, Any], python: str, timeout_s: float) -> dict[str, Any]:
    from diag.hosts import courier

    return courier.call(transport, "kernels.metadata", args, python=python, timeout_s=timeout_s)


def answer(document: Mapping[str, Any]) -> OracleAnswer:
    """The answer in a document of kernels/metadata.py."""
    verdict = document.get("verdict")
    if document.get("schema") != SCHEMA or verdict not in ("right", "wrong", "cannot_tell"):
        return _cannot_tell("The answer has an unknown form.")
    return OracleAnswer(
        verdict=cast(Verdict, verdict),
        why=str(document.get("why", "")),
        summary=str(document.get("summary", "")),
        package_version=document.get("package_version"),
        real_import=bool(document.get("real_import")),
        uses_triton=bool(document.get("uses_triton")),
        notes=tuple(str(note.get("text", "")) for note in document.get("notes", ())),
        seconds=float(document.get("seconds", 0.0)),
        document=document,
    )


def _cannot_tell(why: str) -> OracleAnswer:
    return OracleAnswer("cannot_tell", why, why)


# What the oracle must say for each state that the detector is sure of.
_EXPECTED: Mapping[str, Verdict] = {"present": "wrong", "fixed": "right", "not_applicable": "cannot_tell"}


def agree(detection: Detection, found: OracleAnswer) -> str | None:
    """None when what was read and what was run go together, or one of the two has no opinion; else a sentence."""
    expected = _EXPECTED.get(detection.state)
    if expected is None or found.verdict in (expected, "cannot_tell"):
        return None
    return (
        f"Reading the source says {detection.state.replace('_', ' ')} ({detection.why}), "
        f"but running it says {found.verdict} ({found.summary}): trust neither, and look at the file."
    )


# --- the files that are run


def _needed() -> tuple[str, ...]:
    modules = bundle.load("kernels.installed").REAL_MODULES
    return tuple(module.replace(".", "/") + ".py" for module in modules)


def _unpacked(subject: Subject, target: Path) -> Path:
    """The folder to hand to the oracle: the subject's own, or `target` with the few files that are executed."""
    where = subject.where
    if where.is_dir() and subject.text is None:
        return _with_engine(where).resolve()
    for name, data in _members(where):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if subject.text is not None:
        path = target / _needed()[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(subject.text.encode("utf-8", "surrogatepass"))
    return target


def _with_engine(folder: Path) -> Path:
    """The folder that holds `sglang`: itself, or `python` in a checkout of the engine."""
    for candidate in (folder, folder / "python"):
        if (candidate / "sglang").is_dir():
            return candidate
    raise PackageNotInstalled(
        f"There is no sglang in {folder}.",
        next="Give the folder that holds the package (site-packages, or a checkout).",
    )


def _members(where: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files that are executed, and of the metadata that tells the version."""
    wanted = set(_needed())
    if where.is_dir():
        folder = _with_engine(where)
        found = [path for path in (folder / name for name in sorted(wanted)) if path.is_file()]
        for path in [*found, *folder.glob("sglang-*.dist-info/METADATA")]:
            yield path.relative_to(folder).as_posix(), path.read_bytes()
        return
    try:
        with zipfile.ZipFile(where) as archive:
            for name in archive.namelist():
                parts = name.split("/")
                version = len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == "METADATA"
                if name in wanted or (version and ".." not in parts):
                    yield name, archive.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise PreconditionFailed(
            f"{where} is neither a folder nor a readable wheel: {error}",
            next="Give a wheel file, or the folder that holds the package.",
        ) from None
