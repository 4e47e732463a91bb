"""What was seen of a host, as values: its installed files, its servers, their answers. `diag.probe` fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diag.verdict.compare import TextVerdict

if TYPE_CHECKING:
    from diag.fixes.entry import Severity
    from diag.hosts.inventory import Expected
    from diag.source.detect import Detection


@dataclass(frozen=True)
class InstalledFault:
    """What one installed file says about one fault of the catalogue. text: the file, for showing its lines;
    severity, backends, graphs_only, mends: as in `diag.fixes.entry`."""

    fault: str
    title: str
    package: str
    version: str | None
    site_packages: str
    file: str
    integrity: str
    modified_at_unix: float | None
    detection: Detection
    text: str = field(repr=False)
    severity: Severity = "fault"
    backends: tuple[str, ...] = ("triton",)
    graphs_only: bool = False
    mends: bool = True


@dataclass(frozen=True)
class ServerHealth:
    """One running server: effective is what it says is in force; texts are its answers to the suite, judged.

    unknown: why it could not be asked; "" otherwise. asked: False where the person wanted it left alone.
    """

    facts: Mapping[str, Any]
    effective: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[TextVerdict, ...] = ()
    unknown: str = ""
    asked: bool = True

    @property
    def garbled(self) -> tuple[TextVerdict, ...]:
        return tuple(text for text in self.texts if not text.healthy and text.kind != "no_answer")

    @property
    def silent(self) -> tuple[TextVerdict, ...]:
        return tuple(text for text in self.texts if text.kind == "no_answer")


@dataclass(frozen=True)
class HostReport:
    """document: what probes/host.py answered, file contents taken out; expected: by the inventory."""

    host: str
    document: Mapping[str, Any]
    faults: tuple[InstalledFault, ...]
    servers: tuple[ServerHealth, ...]
    suite: str
    expected: Expected | None = None

    @property
    def unknown(self) -> list[Mapping[str, str]]:
        return list(self.document["unknown"])
