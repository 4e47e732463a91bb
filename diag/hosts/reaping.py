"""Servers on a host that this diag did not just start: listed, read, and stopped with evidence before and proof after.

The work is done there, by probes/reap.py; here is what the laptop adds: evidence is on its disk before anything ends.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diag import paths
from diag.errors import HostProgramFailed, PreconditionFailed
from diag.hosts import courier
from diag.hosts.transport import Transport

STOP_GRACE_S = 10.0
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Stopped:
    """clean: all that can be seen is as it should be. proof: as probes/reap.py returns it. evidence: the file."""

    host: str
    clean: bool
    proof: dict[str, Any]
    server: dict[str, Any]
    evidence: Path


def servers(transport: Transport) -> dict[str, Any]:
    """{servers, lock, unknown}, as probes/reap.py describes them."""
    return courier.call(transport, "reap", {"do": "list"}, timeout_s=TIMEOUT_S)


def logs(transport: Transport, target: str, lines: int) -> dict[str, Any]:
    """{server, log {source, lines, why}}. Raises PreconditionFailed for a target that is not there."""
    return courier.call(transport, "reap", {"do": "logs", "target": target, "lines": lines}, timeout_s=TIMEOUT_S)


def stop(
    transport: Transport,
    target: str,
    *,
    adopt: bool = False,
    lines: int = 200,
    say: Callable[[str], None] = lambda line: None,
) -> Stopped:
    """Save the evidence, stop the server, and have it proved that nothing of it is left.

    adopt: also one that somebody else started, or that a running diag supervises.
    Raises PreconditionFailed, with nothing stopped, for a target that is not there or not ours, or when the evidence
    cannot be written; LinkLost and the like, and then what happened there is unknown.
    """
    args = {"do": "stop", "target": target, "adopt": adopt, "lines": lines, "stop_grace_s": STOP_GRACE_S}
    kept: Path | None = None
    server: dict[str, Any] = {}
    with courier.converse(transport, "reap", args) as conversation:
        for event in conversation.events(STOP_GRACE_S + TIMEOUT_S):
            server = event.data["server"]
            kept = _keep(transport.host.name, event.data)
            say(f"evidence is in {kept}; stopping pid {server['pid']}")
            conversation.send({"cmd": "stop"})
    proof = conversation.end.document if conversation.end is not None else {}
    if kept is None:
        raise HostProgramFailed(f"The program on {transport.host.name} ended without a word.", next="Run it again.")
    return Stopped(transport.host.name, bool(proof.get("clean")), proof, server, kept)


def _keep(host: str, evidence: dict[str, Any]) -> Path:
    """Written and on the disk, readable by this user alone."""
    folder = paths.state_dir() / "evidence"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}-{evidence['server']['pid']}-{stamp}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "host": host, **evidence}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PreconditionFailed(
            f"The evidence could not be written to {path}: {error.strerror}; nothing was stopped.",
            next="Make room, or set DIAG_STATE_DIR to a folder of yours.",
        ) from None
    return path
