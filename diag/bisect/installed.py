"""What the installed source says about the fault that a plan suspects: read before a bisection, and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from diag.bisect.link import Link
from diag.bisect.plan import Plan
from diag.errors import DiagError
from diag.hosts.transport import Transport

if TYPE_CHECKING:
    from diag.report.bisect import FaultySource


def faulty_sources(
    links: Mapping[str, Link], left_out: Mapping[str, str], plan: Plan, warn: Callable[[str], None]
) -> dict[str, FaultySource]:
    """By host. Failing to look changes no verdict."""
    found = {}
    for host, link in links.items():
        if plan.spec.fault is None or host in left_out:
            continue
        try:
            found[host] = _faulty_source(link.transport(), plan.spec.fault)
        except DiagError as error:
            warn(f"the installed source on {host} could not be read: {error.what}")
    return found


def _faulty_source(transport: Transport, fault: str) -> FaultySource:
    """What the installed file says about a fault of the catalogue. Raises DiagError."""
    from diag.fixes import catalogue, transaction
    from diag.report.bisect import FaultySource

    fix = catalogue.get(fault)
    installed = transaction.inspect(transport, fix)
    detection = fix.detect(installed.text)
    faulty = [site for site in detection.sites if site.source == "server" and site.role != "definition"]
    return FaultySource(
        fault=fix.id,
        title=fix.title,
        state=detection.state,
        path=installed.path,
        version=f"{fix.package} {installed.version or '(version unknown)'}",
        sha256=installed.sha256,
        lines=tuple((site.line, site.symbol.split(".")[-1], site.text) for site in faulty),
    )
