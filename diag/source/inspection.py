"""What an installation says about each fault of the catalogue, what was done to its files, and what running it says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from diag.errors import DiagError
from diag.fixes import catalogue
from diag.fixes.entry import Fix, Severity
from diag.source import targets, wheels
from diag.source.detect import Detection
from diag.source.oracle import OracleAnswer, agree, ask, ask_local
from diag.source.targets import Installation, SourceFile

if TYPE_CHECKING:
    from diag.hosts.transport import Transport

DEFAULT_BACKENDS = ("triton",)


@dataclass(frozen=True)
class Judged:
    """One fault in one installation. severity: for who serves with the backends that were asked for."""

    fix: Fix
    file: SourceFile
    severity: Severity
    detection: Detection


@dataclass(frozen=True)
class Edit:
    """How an edited file differs from the release's wheel. diff: unified, or None with the reason in `why`."""

    path: str
    diff: str | None
    why: str = ""


@dataclass(frozen=True)
class Inspection:
    """Everything that `diag probe source` tells. backends: those the severities are for."""

    installation: Installation
    backends: tuple[str, ...]
    faults: tuple[Judged, ...]
    edits: tuple[Edit, ...] = ()
    oracle: OracleAnswer | None = None

    @property
    def count(self) -> int:
        """Faults that are present."""
        return sum(each.severity == "fault" and each.detection.state == "present" for each in self.faults)

    @property
    def disagreement(self) -> str | None:
        """A sentence where reading the source and running it say different things."""
        if self.oracle is None:
            return None
        said = (agree(each.detection, self.oracle) for each in self.faults if each.fix.oracle)
        return next((sentence for sentence in said if sentence is not None), None)

    @property
    def exit_code(self) -> int:
        """1: a fault is present. 3: something could not be told. 0: neither. Notices do not count."""
        unknown = any(each.severity == "fault" and each.detection.state == "unknown" for each in self.faults)
        return 1 if self.count else 3 if unknown or self.disagreement is not None else 0


def inspect(
    target: targets.Target,
    *,
    transport: Transport | None = None,
    python: str | None = None,
    backends: Collection[str] = (),
    oracle: bool | None = None,
    fetch: bool = False,
    say: targets.Say = lambda line: None,
) -> Inspection:
    """Everything about one installation. oracle: None means, where it costs no trip to a host and torch is here.
    fetch: get the release's wheel for a diff. Raises what `targets.read` raises."""
    files = catalogue.files(target.package)
    installation = targets.read(target, files, transport=transport, python=python, say=say)
    counted, faults = judge(installation, backends)
    say("comparing")
    changed = edits(installation, fetch=fetch)
    answer = None
    if oracle or (oracle is None and target.kind != "host" and find_spec("torch") is not None):
        say("running the installed code")
        answer = _ask(installation, transport)
    return Inspection(installation, counted, faults, changed, answer)


def _ask(installation: Installation, transport: Transport | None) -> OracleAnswer:
    if transport is None:
        return ask_local(Path(installation.where))
    return ask(transport, installation.where, installation.python or "python3")


def judge(installation: Installation, backends: Collection[str] = ()) -> tuple[tuple[str, ...], tuple[Judged, ...]]:
    """(backends that count, every fault). Without `backends`: those of running servers that decode speculatively, else
    Triton's, where the fault is met first."""
    counted = tuple(backends) or _of_servers(installation.servers) or DEFAULT_BACKENDS
    faults: list[Judged] = []
    for fix in catalogue.FIXES:
        if fix.package == installation.package:
            file = installation.file(fix.file)
            severity = fix.severity if "all" in counted else fix.told(counted)
            faults.append(Judged(fix, file, severity, _detected(fix, file)))
    return counted, tuple(faults)


def _detected(fix: Fix, file: SourceFile) -> Detection:
    if file.content is not None:
        return fix.detect(file.text)
    if file.integrity == "missing":
        return Detection("unknown", (), "The wheel's RECORD lists the file, and it is not there.")
    if file.why or file.sha256 is not None:
        return Detection("unknown", (), f"The file could not be read: {file.why or 'it is too large'}.")
    return Detection("not_applicable", (), "There is no such file in this release.")


def _of_servers(servers: Sequence[Sequence[str]]) -> tuple[str, ...]:
    found = []
    for argv in servers:
        line = " ".join(argv)
        backend = re.search(r"--attention-backend[ =](\S+)", line)
        if backend is not None and "--speculative-algorithm" in line:
            found.append(backend[1])
    return tuple(dict.fromkeys(found))


def edits(installation: Installation, *, fetch: bool) -> tuple[Edit, ...]:
    """Each edited file against the wheel of its release: when that is in the cache, or with `fetch` fetched."""
    edited = [file for file in installation.files if file.integrity == "edited" and file.content is not None]
    return tuple(_edit(installation, file, fetch) for file in edited)


def _edit(installation: Installation, file: SourceFile, fetch: bool) -> Edit:
    version = installation.version
    if version is None:
        return Edit(file.path, None, "its release is not known")
    try:
        wheel = wheels.cached(installation.package, version)
        if wheel is None and not fetch:
            return Edit(file.path, None, f"the wheel of {version} is not in the cache (--diff fetches it)")
        released = wheels.read(wheel or wheels.fetch(installation.package, version), file.path)
    except DiagError as error:
        return Edit(file.path, None, error.what)
    return Edit(file.path, unified(released.decode("utf-8", "surrogateescape"), file.text, file.path))


def unified(old: str, new: str, path: str) -> str:
    """A unified diff from the released text to the one that is there."""
    rows = difflib.unified_diff(_kept_lines(old), _kept_lines(new), f"released/{path}", f"installed/{path}")
    return "".join(row if row.endswith(("\n", "\r")) else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _kept_lines(text: str) -> list[str]:
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
