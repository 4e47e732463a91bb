"""Can this host be reached and used? Stage by stage, with the time each took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diag.errors import DiagError
from diag.hosts import courier
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect, kind_of

if TYPE_CHECKING:
    from diag.hosts.ssh import ParamikoTransport

STAGES = {
    "paramiko": ("resolve", "connect", "handshake", "host key", "auth", "python", "exec"),
    "openssh": ("openssh", "python", "exec"),  # name, connection, host key and authentication are its own affair
    "local": ("python", "exec"),
}


@dataclass(frozen=True)
class Stage:
    """said: what was learnt by it, or why it failed."""

    name: str
    seconds: float
    ok: bool
    said: str = ""


@dataclass(frozen=True)
class Check:
    host: str
    transport: str
    stages: tuple[Stage, ...]
    error: DiagError | None = None

    def to_json(self) -> dict[str, Any]:
        stages = [
            {"stage": s.name, "seconds": round(s.seconds, 4), "ok": s.ok, "said": s.said or None} for s in self.stages
        ]
        return {
            "host": self.host,
            "transport": self.transport,
            "ok": self.error is None,
            "stages": stages,
            "error": self.error.to_json() if self.error is not None else None,
        }


class _Stopwatch:
    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._since = time.monotonic()

    def passed(self, name: str, said: str = "", ok: bool = True) -> None:
        now = time.monotonic()
        self.stages.append(Stage(name, now - self._since, ok, said))
        self._since = now


def check(host: Host, outer: ParamikoTransport | None = None) -> Check:
    """Never raises for what is wrong with the host: that is the answer."""
    watch = _Stopwatch()
    kind = kind_of(host)
    try:
        with connect(host, outer=outer, note=watch.passed) as transport:
            _use(transport, watch)
    except DiagError as error:
        at = next((name for name in STAGES[kind] if name not in {stage.name for stage in watch.stages}), "exec")
        watch.passed(at, error.what, ok=False)
        return Check(host.name, kind, tuple(watch.stages), error)
    return Check(host.name, kind, tuple(watch.stages))


def _use(transport: Transport, watch: _Stopwatch) -> None:
    """One exec for the interpreter and for the time that a program takes; its answer says which was found."""
    said = courier.call(transport, "hello", timeout_s=30)
    watch.passed("python", f"{said['python']} {said['version']}")
    again = courier.call(transport, "hello", timeout_s=30)
    watch.passed("exec", f"as {again['user']} on {again['hostname']}")
