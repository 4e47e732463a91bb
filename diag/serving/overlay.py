"""A wheel laid over a host's environment, in a folder of its own, for the time of a run.

    with Overlays(transport, mark) as overlays:
        laid = overlays.lay(wheel, "sglang", python="/opt/venv/bin/python")
        ... start the server with PYTHONPATH=laid.pythonpath ...

Nothing is installed: PYTHONPATH puts the folder before site-packages, and the interpreter is asked whether it really
imports from there. The wheel is sent over the connection that is open anyway and kept on the host by its hash. A
program there (probes/overlay.py) holds the folder and removes it when we close, are killed or are cut off; what a
host that went down left behind, the next run removes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.errors import HostProgramFailed
from diag.hosts import courier
from diag.hosts.courier import Event
from diag.hosts.transport import Transport
from diag.source import wheels

LEASE_S = 60.0
"""The host removes the folder when it has heard nothing for this long."""
ANSWER_S = 180.0
"""A folder of the same run is waited for, until whoever held it before has let go (probes/overlay_hold.py)."""
LAY_S = 900.0
"""Half a gigabyte is unpacked and hashed in about 10 s; a slow disk takes its time."""
PIECE_BYTES = 96 * 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class Laid:
    """pythonpath: what the server's PYTHONPATH must be, the folder first. version, origin: what the interpreter finds
    there. changed: files that somebody had changed since they were unpacked before; they are as in the wheel again."""

    folder: str
    pythonpath: str
    version: str
    origin: str
    sha256: str
    changed: tuple[str, ...] = ()


class Overlays:
    """mark: the run's, as on its processes: the folder is not removed under a server that still runs. left_behind:
    runs whose overlays were found and removed at the start."""

    def __init__(self, transport: Transport, mark: str) -> None:
        self._conversation = courier.converse(transport, "overlay", {"mark": mark, "lease_s": LEASE_S})
        try:
            holds = self._event("holds", ANSWER_S)
        except BaseException as error:
            self._conversation.__exit__(type(error), error, None)
            raise
        self.left_behind = tuple(str(run) for run in holds["swept"])

    def lay(
        self,
        wheel: Path,
        package: str,
        *,
        python: str,
        env: Mapping[str, str] | None = None,
        say: Say = lambda what: None,
    ) -> Laid:
        """python, env: as the server will be started. Raises PreconditionFailed where the disk is full, the wheel
        arrives damaged, or the interpreter does not import from the folder."""
        digest = wheels.sha256(wheel)
        self._send(wheel, digest, say)
        say(f"{wheel.name} to be laid out")
        asked = {"cmd": "lay", "sha256": digest, "name": wheel.name, "package": package, "python": python}
        self._tell({**asked, "env": dict(env or {})})
        told = self._event("laid", LAY_S)
        return Laid(told["folder"], told["pythonpath"], told["version"], told["origin"], digest, tuple(told["changed"]))

    def close(self) -> None:
        """The folder is gone when this returns."""
        self._conversation.close()

    def __enter__(self) -> Overlays:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._conversation.__exit__(kind, error, trace)

    def _send(self, wheel: Path, digest: str, say: Say) -> None:
        """What the host does not have of it yet."""
        size = wheel.stat().st_size
        self._tell({"cmd": "have", "sha256": digest, "name": wheel.name, "size_bytes": size})
        have = int(self._event("have", ANSWER_S)["bytes"])
        if have == size:
            return
        with wheel.open("rb") as stream:
            stream.seek(have)
            while piece := stream.read(PIECE_BYTES):
                have += len(piece)
                say(f"{wheel.name} to be sent ({have / size:.0%} of {size / 1e6:.0f} MB)")
                self._tell({"cmd": "piece", "data": base64.b64encode(piece).decode()})
        self._event("stored", ANSWER_S)

    def _tell(self, message: Mapping[str, object]) -> None:
        try:
            self._conversation.send(message)
        except HostProgramFailed:
            self._conversation.next(ANSWER_S)  # why it reads no more
            raise

    def _event(self, wanted: str, timeout_s: float) -> dict[str, Any]:
        item = self._conversation.next(timeout_s)
        if isinstance(item, Event) and item.data.get("event") == wanted:
            return item.data
        raise self._conversation.failed(f"did not answer '{wanted}' within {timeout_s:g} s")


def interpreter(
    transport: Transport, python: str, package: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What an interpreter on the host says of itself, for `wheels.target_of`; and, as "installed", which version of the
    package it has, or ""."""
    asked = {"python": python, "package": package, "env": dict(env or {})}
    return courier.call(transport, "overlay", asked, timeout_s=ANSWER_S)
