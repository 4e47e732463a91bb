"""What `diag probe host GROUP` says: each host's answer in short, and every difference between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diag.hosts.fleet import Result
from diag.hosts.parity import Difference
from diag.probe import HostReport
from diag.report import host as host_report
from diag.report.text import one_line
from diag.verdict.findings import exit_code, findings

SCHEMA = 1


def document(group: str, results: Sequence[Result[HostReport]], found: Sequence[Difference]) -> dict[str, Any]:
    """The JSON document; a host that failed has an error in place of its own document."""
    hosts: dict[str, Any] = {}
    for result in results:
        if result.value is not None:
            hosts[result.host.name] = host_report.document(result.value, findings(result.value))
        elif result.error is not None:
            hosts[result.host.name] = {"error": result.error.to_json()}
    differences = [difference.to_json() for difference in found]
    return {"schema": SCHEMA, "group": group, "hosts": hosts, "differences": differences}


def status(results: Sequence[Result[HostReport]], found: Sequence[Difference]) -> int:
    """1: a fault, or a difference that matters; else the code of the first host that failed; else 3 or 0."""
    codes = [exit_code(findings(result.value)) for result in results if result.value is not None]
    if 1 in codes or any(difference.matters for difference in found):
        return 1
    failed = [result.error.exit_code for result in results if result.error is not None]
    return failed[0] if failed else 3 if 3 in codes else 0


_STYLE = {"fault": "red", "unknown": "yellow", "notice": ""}


def page(results: Sequence[Result[HostReport]], found: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """(style, line)"""
    for result in results:
        if result.error is not None:
            yield "bold red", f"{result.host.name}: not looked at"
            yield "", f"  {result.error.what}"
            yield "dim", f"          → {result.error.next}"
        elif result.value is not None:
            yield from _host(result.value)
    yield "", ""
    compared = sum(result.value is not None for result in results)
    if compared < 2:
        yield "yellow", "differences: not compared, fewer than two hosts answered"
    elif not found:
        yield "green", f"differences: none between {compared} hosts in versions, files, flags and environment"
    else:
        yield "bold", f"differences between {compared} hosts: {len(found)}"
    for difference in found:
        yield from _difference(difference)


def _host(report: HostReport) -> Iterator[tuple[str, str]]:
    lines = host_report.page(report, findings(report))
    for style, line in lines:
        if not line:
            return  # the rest is the host's own page
        if not line.startswith("  notice"):
            yield style, line


def _difference(difference: Difference) -> Iterator[tuple[str, str]]:
    yield "red" if difference.matters else "yellow", f"  {difference.what}"
    by_value: dict[str, list[str]] = {}
    for host, value in difference.values.items():
        by_value.setdefault(value, []).append(host)
    for value, hosts in sorted(by_value.items(), key=lambda item: -len(item[1])):
        yield "", f"    {one_line(value, 80)}: {one_line(', '.join(hosts), 100)}"
