"""`diag probe host` in one function: one SSH connection, one program sent, one answer, and what follows from it.

A host name becomes a `HostReport`: what the host says (facts, environments, servers, sources), what its installed
files say (faults of the catalogue), and what its running servers answer (a short prompt suite, judged).
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from diag.errors import DiagError, PackageNotInstalled
from diag.fixes import catalogue
from diag.hosts import courier
from diag.hosts.transport import Transport
from diag.serving.engine import NAMES, engine_of
from diag.verdict.host import HostReport, InstalledFault, ServerHealth

__all__ = ["HostReport", "InstalledFault", "ServerHealth", "host"]

if TYPE_CHECKING:
    from diag.verdict import prompts

TIMEOUT_S = 120.0
DEFAULT_SUITE = "quick"

Say = Callable[[str], None]


def host(
    transport: Transport,
    *,
    python: str | None = None,
    suite_name: str = "quick",
    ask: bool = True,
    verify_all: bool = False,
    say: Say = lambda line: None,
) -> HostReport:
    """Raises HostError of any kind, and PackageNotInstalled when `python` was named and has no engine."""
    if suite_name != DEFAULT_SUITE:
        _suite(suite_name)  # it may be wrong, and that is said before anything is done
    files = sorted({fix.file for fix in catalogue.FIXES})
    say("reading the host")
    named = python if python is not None else transport.host.python
    args = {"files": files, "python": named, "verify_all": verify_all}
    asked = time.time()
    document = courier.call(transport, "host", args, timeout_s=TIMEOUT_S, meanwhile=lambda: _suite(suite_name))
    questions = _suite(suite_name)
    document["facts"]["clock_skew_s"] = _skew(document["facts"], asked, time.time())
    faults = tuple(_faults(document))
    if python is not None and not faults:
        raise PackageNotInstalled(
            f"No engine that diag knows is installed for {python} on {transport.host.name}.",
            next="Leave --python out: diag then looks at running servers and the usual places.",
            details=[f"looked at: {env['site_packages']}" for env in document["environments"]],
        )
    servers = tuple(_server(transport, facts, questions, ask, say) for facts in document["servers"])
    return HostReport(transport.host.name, document, faults, servers, questions.name, transport.host.expected)


@lru_cache(maxsize=4)
def _suite(name: str) -> prompts.Suite:
    from diag.verdict import prompts  # what it needs takes as long to load as the host takes to answer

    return prompts.load(name)


def _skew(facts: Mapping[str, Any], asked: float, answered: float) -> float | None:
    """Seconds that the host's clock is ahead of this one; 0 where that may be no more than the time of the answer."""
    told = facts.get("clock_unix")
    if told is None:
        return None
    ahead = float(told) - (asked if told < asked else min(told, answered))
    return round(ahead, 1)


def _faults(document: Mapping[str, Any]) -> Iterator[InstalledFault]:
    """Takes the file contents out of the document on the way: they are large, and shown only in part."""
    for source in document["sources"]:
        for file in source["files"]:
            packed = file.pop("content_b64", None)
            if packed is None:
                continue
            text = zlib.decompress(base64.b64decode(packed)).decode("utf-8", "surrogateescape")
            for fix in catalogue.FIXES:
                if fix.file == file["path"]:
                    yield InstalledFault(
                        fault=fix.id,
                        title=fix.title,
                        package=fix.package,
                        version=source["version"],
                        site_packages=source["site_packages"] or source["imported_from"],
                        file=file["path"],
                        integrity=file["integrity"],
                        modified_at_unix=file.get("mtime_unix"),
                        detection=fix.detect(text),
                        text=text,
                        severity=fix.severity,
                        backends=fix.backends,
                        graphs_only=fix.graphs_only,
                        mends=fix.mend is not None,
                    )


def _server(
    transport: Transport, facts: Mapping[str, Any], questions: prompts.Suite, ask: bool, say: Say
) -> ServerHealth:
    if facts.get("orphan"):
        return ServerHealth(facts, unknown="it is a worker whose server is gone")
    if facts["engine"] not in NAMES:
        return ServerHealth(facts, unknown=f"diag does not speak to {facts['engine']} servers yet")
    if facts.get("port") is None:
        return ServerHealth(facts, unknown="its port is not known")
    # Loaded where there is a server to ask, and there only: they take longer than connecting does.
    import httpx

    from diag.hosts import http
    from diag.serving.suites import Scoring
    from diag.serving.suites import ask as ask_all
    from diag.verdict.judging import Judge

    where = f"the server on port {facts['port']}"
    address = facts.get("host") or "127.0.0.1"
    if address in ("0.0.0.0", "::"):
        address = "127.0.0.1"
    try:
        with http.http_client(transport, facts["port"], address) as connection:
            client = engine_of(facts["engine"]).client(connection)
            say(f"asking {where} for its configuration")
            effective = client.server_info()
            if not ask:
                return ServerHealth(facts, effective, asked=False)
            asked = ask_all(client, questions, questions.max_new_tokens, lambda what: say(f"{where}: {what}"))
            judge = Judge(questions, Scoring(client, questions))
            return ServerHealth(facts, effective, tuple(judge.unaided(asked)))
    except httpx.HTTPError as error:
        return ServerHealth(facts, unknown=f"it does not answer: {error or type(error).__name__}")
    except DiagError as error:
        return ServerHealth(facts, unknown=error.what)
