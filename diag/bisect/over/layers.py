"""What is put before a host's environment for one trial: the wheel of a version, or the tree of a commit.

Each holds a program on the host that removes what it put there when we are done, killed or cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from diag.errors import DiagError, HostProgramFailed
from diag.hosts import courier
from diag.hosts.courier import Event
from diag.hosts.transport import Transport
from diag.serving.overlay import Overlays
from diag.source import wheels
from diag.source.wheels import Target

LEASE_S = 60.0
SWITCH_S = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Laid:
    """at: the version or commit that is really there. env: for what is started on it. folder: where it lies.
    lacking: why it cannot be tried, "" where it can."""

    at: str
    folder: str
    env: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    lacking: str = ""


class Layers(Protocol):
    """left_behind: runs whose folders were found and removed when this began."""

    left_behind: tuple[str, ...]

    def lay(self, place: str, say: Say) -> Laid: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Before:
    """The environment that something is put before. env: what the plan sets."""

    python: str
    package: str
    env: Mapping[str, str]


class Wheels:
    """Versions of one package."""

    def __init__(self, transport: Transport, mark: str, before: Before, target: Target) -> None:
        self._before, self._target = before, target
        self._overlays = Overlays(transport, mark)
        self.left_behind = self._overlays.left_behind

    def lay(self, place: str, say: Say) -> Laid:
        before = self._before
        say(f"the wheel {before.package} {place}")
        wheel: Path = wheels.fetch(before.package, place, target=self._target)
        laid = self._overlays.lay(wheel, before.package, python=before.python, env=before.env, say=say)
        warnings = tuple(
            f"{name} had been changed in the overlay; it is as in the wheel again" for name in laid.changed
        )
        details = {"wheel": wheel.name, "sha256": laid.sha256, "origin": laid.origin}
        return Laid(laid.version, laid.folder, {"PYTHONPATH": laid.pythonpath}, warnings, details)

    def close(self) -> None:
        self._overlays.close()


class Trees:
    """Commits of one repository, checked out in a worktree of this run's own. before None: nothing is started from
    PYTHONPATH; source: the folder in the tree that packages lie in, where that is not python/, src/ or the top."""

    def __init__(
        self,
        transport: Transport,
        mark: str,
        repo: str,
        before: Before | None = None,
        *,
        source: str | None = None,
        root: Path | None = None,
    ) -> None:
        """root: where worktrees lie; None: in the cache folder of the host's user."""
        args = {"repo": repo, "mark": mark, "lease_s": LEASE_S, "root": str(root) if root is not None else None}
        self._before, self._source = before, source
        self._conversation = courier.converse(transport, "checkout", args)
        try:
            holds = self._event("holds")
        except BaseException as error:
            self._conversation.__exit__(type(error), error, None)
            raise
        self.left_behind = tuple(str(run) for run in holds["swept"])

    def lay(self, place: str, say: Say) -> Laid:
        say(f"commit {place[:12]} to be checked out")
        message: dict[str, object] = {"cmd": "switch", "commit": place}
        if self._before is not None:
            before = self._before
            message |= {"package": before.package, "python": before.python, "env": dict(before.env)}
            message["source"] = self._source
        try:
            self._conversation.send(message)
        except HostProgramFailed:
            self._conversation.next(SWITCH_S)  # why it reads no more
            raise
        told = self._event("at")
        changed = [line[3:] for line in told["changed"]]
        warnings = (f"the tree differs from the commit: {', '.join(changed[:5])}",) if changed else ()
        env = {"PYTHONPATH": told["pythonpath"]} if "pythonpath" in told else {}
        details = {"tree": told["folder"], **({"origin": told["origin"]} if "origin" in told else {})}
        lacking = ""
        if "lacking" in told and self._before is not None:
            where = self._source or "python/, src/ or the top"
            lacking = f"the commit has no package {self._before.package} in {where} of its tree"
        return Laid(told["commit"], told["folder"], env, warnings, details, lacking)

    def close(self) -> None:
        self._conversation.close()

    def _event(self, wanted: str) -> dict[str, Any]:
        item = self._conversation.next(SWITCH_S)
        if isinstance(item, Event) and item.data.get("event") == wanted:
            return item.data
        raise self._conversation.failed(f"did not answer '{wanted}' within {SWITCH_S:g} s")


class Kept:
    """Layers that are made when they are first wanted, and made anew after the link was lost."""

    def __init__(self, make: Callable[[], Layers], note: Callable[[str], None]) -> None:
        self._make, self._note = make, note
        self._layers: Layers | None = None

    def lay(self, place: str, say: Say) -> Laid:
        if self._layers is None:
            self._layers = self._make()
            for run in self._layers.left_behind:
                self._note(f"removed what run {run} had left behind")
        return self._layers.lay(place, say)

    def close(self) -> None:
        """A host that cannot be told removes by itself what is there, when it hears nothing more from us."""
        layers, self._layers = self._layers, None
        if layers is not None:
            with contextlib.suppress(DiagError):
                layers.close()
