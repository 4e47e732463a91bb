"""What the catalogue says of one fault: the shape of each module of faults here. How to add one: docs/fixes.md."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from diag.errors import PreconditionFailed
from diag.source.detect import Detection

Severity = Literal["fault", "notice"]
Kind = Literal["fix", "injection"]


@dataclass(frozen=True)
class Fix:
    """One fault, and the fix where the source can mend it.

    id: what the person types. title: one line without a full stop. story: what is wrong; why: why it matters; do: what
    to do about it, in order. package: the distribution's import name. file: inside site-packages. cls: the class of it.
    affected, fixed_in: releases of the package, for a person; what counts is what `detect` says of the file.
    backends: values of --attention-backend that run this code. severity: for a server with such a backend, `fault`, or
    `notice` for what needs more than that to do harm; for any other server it is a notice (`told`).
    detect: the state of the fault in a text; never raises. mend: the mended text, or None where no edit of this file
    mends it. kind: an injection makes a fault instead, for trying things; its `present` means that it can be applied,
    `fixed` that it is. oracle: the installed code can be run without a server to show it (`diag probe source
    --oracle`).
    """

    id: str
    title: str
    story: str
    why: str
    do: tuple[str, ...]
    package: str
    file: str
    cls: str
    affected: str
    fixed_in: str
    backends: tuple[str, ...]
    severity: Severity
    detect: Callable[[str], Detection]
    mend: Callable[[str], str] | None = None
    oracle: bool = False
    graphs_only: bool = False
    kind: Kind = "fix"

    def told(self, backends: Collection[str]) -> Severity:
        """How it is told to someone who serves with these backends."""
        return self.severity if any(backend in backends for backend in self.backends) else "notice"

    def rewrite(self, text: str) -> str:
        """The mended text. Raises FileNotAsExpected for a text that `mend` was not made for, and PreconditionFailed,
        with what to do instead, where there is no patch."""
        if self.mend is None:
            raise PreconditionFailed(
                f"diag has no patch for {self.id}: no edit of {self.file} alone mends it.",
                next=self.do[0],
                details=list(self.do[1:]),
            )
        return self.mend(text)
