"""One server on a host, for the time of a `with`.

    with start(transport, Launch(...), on_progress) as server:
        server.client.generate(...)

It is owned by a supervisor on the host (probes/supervise.py) at the other end of one SSH channel: if we are
interrupted, killed or cut off, the supervisor sees its input end and stops everything that the server started.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diag.errors import DiagError, HostProgramFailed, ServerNotHealthy
from diag.hosts import courier, http
from diag.hosts.transport import Transport
from diag.serving.client import Client, Prompt
from diag.serving.engine import engine_of
from diag.verdict import telemetry

STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class Launch:
    """argv may hold "{port}"; port None lets the host choose a free one. engine: whose words it speaks; env goes over
    what the engine itself wants there. ready_path: where that is not the engine's own."""

    argv: Sequence[str]
    run_id: str
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    ready_path: str | None = None
    ready_timeout_s: float = 600.0
    log_lines: int = 20
    engine: str = "sglang"


@dataclass(frozen=True)
class Progress:
    """What the host says while a server starts: phase is started, waiting or ready."""

    phase: str
    elapsed_s: float
    last_log: str = ""


@dataclass
class Server:
    """A healthy server. `stopped` is filled in after the `with`: what was needed to stop it, and what is left.
    halt: have it stopped now, from any thread; requests that are under way fail."""

    port: int
    pid: int
    ready_after_s: float
    client: Client
    halt: Callable[[], None] = lambda: None
    stopped: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def start(
    transport: Transport, launch: Launch, on_progress: Callable[[Progress], None] | None = None
) -> Iterator[Server]:
    """Start, wait until healthy, yield, stop. Raises PortInUse, ServerDied, ServerNotHealthy, LinkLost; in each case
    nothing that it started is left."""
    engine = engine_of(launch.engine)
    args = {
        "argv": list(launch.argv),
        "env": {**engine.environment(launch.argv), **launch.env},
        "cwd": None,
        "port": launch.port if launch.port is not None else "auto",
        "run_id": launch.run_id,
        "ready": {"path": launch.ready_path or engine.ready_path, "deadline_s": launch.ready_timeout_s},
        "lease_s": 60,
        "stop_grace_s": STOP_GRACE_S,
        "log_lines": launch.log_lines,
        "watch": telemetry.NAN,
    }
    with courier.converse(transport, "supervise", args) as conversation:
        server = _wait_until_ready(transport, conversation, launch, on_progress)
        try:
            if not engine.ready_generates:
                _generate(server, transport.host.name)
            yield server
        finally:
            server.stopped.update(_stop(conversation))
            server.client.close()


def _wait_until_ready(
    transport: Transport,
    conversation: courier.Conversation,
    launch: Launch,
    on_progress: Callable[[Progress], None] | None,
) -> Server:
    started_at = time.monotonic()
    pid = port = 0
    for event in (item.data for item in conversation.events(launch.ready_timeout_s + 60)):
        phase = str(event.get("event"))
        if phase == "started":
            pid, port = int(event["pid"]), int(event["port"])
        if on_progress is not None:
            on_progress(Progress(phase, time.monotonic() - started_at, str(event.get("last_log") or "")))
        if phase == "ready":
            client = engine_of(launch.engine).client(http.http_client(transport, port))
            return Server(port, pid, float(event["after_s"]), client, halt=lambda: _ask_to_stop(conversation))
    ended = conversation.end.document if conversation.end is not None else {}
    raise HostProgramFailed(
        f"The supervisor on {transport.host.name} ended before the server was ready: {ended.get('reason')}.",
        next="Something on the host stopped it: look at who sent it a signal.",
    )


def _generate(server: Server, host: str) -> None:
    """One token: a health path that only tells that the engine lives is not enough."""
    answer = server.client.generate(Prompt("ready", "Hi"), 1)
    if answer.error:
        raise ServerNotHealthy(
            f"The server on {host} says that it is healthy, and generates nothing: {answer.error}.",
            next="Look at its log: diag server logs.",
        )


def _ask_to_stop(conversation: courier.Conversation) -> None:
    with contextlib.suppress(DiagError):
        conversation.send({"cmd": "stop"})


def _stop(conversation: courier.Conversation) -> dict[str, Any]:
    """Ask, then close: closing alone would do, but "asked" reads better in a record than "laptop gone"."""
    _ask_to_stop(conversation)
    return conversation.close() or {}
