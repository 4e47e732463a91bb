"""The start line of a server: as somebody gives it, or of one that runs on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from diag.errors import PreconditionFailed, UsageError
from diag.hosts import reaping
from diag.hosts.http import http_client
from diag.hosts.transport import Transport
from diag.serving.engine import NAMES, engine_of


@dataclass(frozen=True)
class StartLine:
    """version: as the server says it, None where it does not. env: what it was started with besides, as far as it tells
    something; secrets are hidden."""

    engine: str
    version: str | None
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def of_words(argv: Sequence[str], engine: str | None) -> StartLine:
    """Raises UsageError where the words do not tell the engine and nobody else does."""
    told = engine or next((name for name in NAMES if any(name in word for word in argv[:4])), None)
    if told is None:
        raise UsageError("The command does not tell which engine it starts.", next="Say it: --engine sglang or vllm")
    return StartLine(told, None, tuple(argv))


def of_server(transport: Transport, port: str = "") -> StartLine:
    """Of the one on this port, or of the only one. Raises PreconditionFailed, UsageError, HostError of any kind."""
    host = transport.host.name
    found = [s for s in reaping.servers(transport)["servers"] if s["engine"] in NAMES and not s.get("orphan")]
    if port:
        found = [server for server in found if str(server["port"]) == port]
    if not found:
        where = f"on port {port} of {host}" if port else f"on {host}"
        raise PreconditionFailed(
            f"No server that diag knows runs {where}.",
            next="Give its start line instead: diag plan new --command LINE",
        )
    if len(found) > 1:
        ports = ", ".join(str(server["port"]) for server in found)
        raise UsageError(f"{host} has servers on ports {ports}.", next=f"Name one: {host}:{found[0]['port']}.")
    server: Mapping[str, Any] = found[0]
    version = _version(transport, server["engine"], int(server["port"]))
    return StartLine(server["engine"], version, tuple(server["argv"]), dict(server["env"]))


def _version(transport: Transport, engine: str, port: int) -> str | None:
    """A garbled server may also be one that does not answer any more."""
    try:
        with http_client(transport, port) as http:
            said = engine_of(engine).client(http).server_info().get("version")
    except httpx.HTTPError:
        return None
    return str(said) if said else None
