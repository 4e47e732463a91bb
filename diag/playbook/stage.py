"""What a step's function is given: the host, what was learnt before, and the only way to change anything.

A change is written into the journal, with how it is undone, before it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from diag.bisect.expr import Recorded
from diag.hosts.inventory import Host
from diag.playbook.kind import Result

if TYPE_CHECKING:
    from diag.hosts.transport import Transport
    from diag.serving.server import Server


@dataclass(frozen=True)
class Change:
    """Something on a host that is not as it was. undo: {"do": a name of undo.UNDO, and its arguments}; step: whose."""

    id: str
    step: str
    what: str
    undo: Mapping[str, Any]


class Changes(Protocol):
    """The journal's side of changing things, for one host."""

    def begun(self, step: str, what: str, undo: Mapping[str, Any]) -> Change:
        """On disk when this returns; only then may it be done."""
        ...

    def ended(self, change: Change, by: str) -> None:
        """It is not in force any more, or was never made."""
        ...

    def in_force(self) -> tuple[Change, ...]:
        """Oldest first."""
        ...


@dataclass
class Held:
    """A server that this run started; `closing.close()` stops it."""

    server: Server
    change: Change
    closing: contextlib.ExitStack


@dataclass
class Stage:
    """One step's view of the run on one host.

    connect: to the host; the same connection again, or a new one after it was lost. folder: of the playbook's file.
    results: of the steps before, by id. servers: that are up, by the step that started them. fills: what a plan's
    command is filled in with, before the host's labels. run_id: of the whole run. mark: a name for what this step
    starts on this host. say: told of progress. foreseen: of a dry run, what is known of the steps before."""

    host: Host
    connect: Callable[[], Transport]
    step: str
    run_id: str
    mark: str
    folder: Path
    changes: Changes
    results: Mapping[str, Result]
    servers: dict[str, Held]
    vars: Mapping[str, Recorded]
    fills: Mapping[str, str]
    say: Callable[[str], None] = lambda line: None
    foreseen: dict[str, str] = field(default_factory=dict)

    def transport(self) -> Transport:
        return self.connect()

    def names(self) -> dict[str, Recorded]:
        """All that an expression can ask for."""
        told = {f"{step}.{name}": v for step, result in self.results.items() for name, v in result.values.items()}
        return {**self.vars, **told}

    def change(self, what: str, **undo: Any) -> Change:
        return self.changes.begun(self.step, what, undo)

    def ended(self, change: Change) -> None:
        """By this step, on purpose."""
        self.changes.ended(change, self.step)
