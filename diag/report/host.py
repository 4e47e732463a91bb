"""What `diag probe host` says: one document for programs, one page for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diag.probe import HostReport, InstalledFault, ServerHealth
from diag.report.fields import TELLING
from diag.report.text import one_line
from diag.source import listing
from diag.verdict.findings import Finding, fault_severity, verify_width

SCHEMA = 1


def document(report: HostReport, found: list[Finding]) -> dict[str, Any]:
    """The JSON document of `diag probe host --json`; its fields are described in docs/json.md."""
    told = report.document
    return {
        "schema": SCHEMA,
        "host": report.host,
        "facts": told["facts"],
        "environments": told["environments"],
        "servers": [_server_json(server) for server in report.servers],
        "sources": told["sources"],
        "caches": told.get("caches", []),
        "faults": [_fault_json(report, fault) for fault in report.faults],
        "suite": report.suite,
        "findings": [finding.to_json() for finding in found],
        "unknown": told["unknown"],
    }


def _fault_json(report: HostReport, fault: InstalledFault) -> dict[str, Any]:
    return {
        "id": fault.fault,
        "severity": fault_severity(report, fault),
        "file": fault.file,
        "state": fault.detection.state,
        "why": fault.detection.why,
        "package": fault.package,
        "version": fault.version,
        "site_packages": fault.site_packages,
        "integrity": fault.integrity,
        "sites": [
            {"file": fault.file, "symbol": site.symbol, "line": site.line, "text": site.text, "role": site.role}
            for site in fault.detection.sites
        ],
    }


def _server_json(server: ServerHealth) -> dict[str, Any]:
    return {
        **server.facts,
        "effective": dict(server.effective),
        "verify_width": verify_width(server.effective),
        "verdict": _verdict(server),
        "unknown": server.unknown or None,
        "texts": [text.to_json() for text in server.texts],
    }


def _verdict(server: ServerHealth) -> str:
    if server.unknown:
        return "unknown"
    if not server.asked:
        return "not_asked"
    if server.garbled:
        return "garbled"
    return "not_answering" if server.silent else "healthy"


def page(report: HostReport, found: list[Finding]) -> Iterator[tuple[str, str]]:
    """(style, line): what is wrong first, then the host, its engines with the lines that matter, its servers."""
    yield from _headline(report, found)
    yield "", ""
    yield from _facts(report.document["facts"])
    yield from _caches(report.document.get("caches", []))
    for environment in report.document["environments"]:
        yield from _environment(environment)
    lesser = [fault for fault in report.faults if fault_severity(report, fault) == "notice"]
    for fault in report.faults:
        if fault not in lesser:
            yield "", ""
            yield from _fault(fault)
    if lesser:
        yield "", ""
    for fault in lesser:
        state, file = _FAULT[fault.detection.state][1].lower(), fault.file.rpartition("/")[2]
        yield "dim", f"{fault.fault:23} {state} in {file} (diag explain {fault.fault})"
    for server in report.servers:
        yield "", ""
        yield from _server(server)
    if not report.servers:
        yield "", ""
        yield "dim", "servers     none is running: nothing was asked"


_STYLE = {"fault": "bold red", "unknown": "yellow", "notice": ""}


def _headline(report: HostReport, found: list[Finding]) -> Iterator[tuple[str, str]]:
    faults = sum(finding.severity == "fault" for finding in found)
    if faults:
        yield "bold red", f"{report.host}: {faults} fault{'s' if faults > 1 else ''} found"
    else:
        unknown = any(finding.severity == "unknown" for finding in found)
        yield (
            ("yellow", f"{report.host}: no fault seen, but not everything could be told")
            if unknown
            else (
                "bold green",
                f"{report.host}: healthy",
            )
        )
    for finding in found:
        yield _STYLE[finding.severity], f"  {finding.severity:7} {finding.id}: {finding.what}"
        if finding.next:
            yield "dim", f"          → {finding.next}"


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, gpus = facts["cpu"], facts["gpus"]
    yield "", f"host        {facts['hostname']} · {facts['os']} · {facts['kernel']} · {facts['machine']}"
    yield (
        "",
        f"cpu, memory {cpu['count']} × {cpu['model'] or 'unknown'} · {_gib(facts['memory_bytes'])} GiB"
        + (f", {_gib(facts['memory_available_bytes'])} available"),
    )
    for disk in facts["disk"]:
        yield "", f"disk        {disk['path']}: {_gib(disk['free_bytes'])} of {_gib(disk['total_bytes'])} GiB free"
    for gpu in gpus:
        words = [str(gpu.get("index")), str(gpu.get("name"))]
        words += [f"{gpu.get('memory_used_mib')} of {gpu.get('memory_total_mib')} MiB used"]
        units = {"temperature_c": "°C", "power_w": "W", "clock_sm_mhz": "MHz"}
        words += [f"{gpu[key]} {unit}" for key, unit in units.items() if gpu.get(key) is not None]
        yield "", f"gpu         {' · '.join(words)}"
    for row in facts.get("gpu_processes", []):
        holder = one_line(" ".join(row.get("argv") or ["(not visible here)"]), 60)
        yield "dim", f"            pid {row['pid']}: {row.get('memory_used_mib')} MiB, {holder}"
    if facts.get("slurm"):
        yield "", "slurm       " + " ".join(f"{name}={value}" for name, value in facts["slurm"].items())
    if facts["driver"]:
        yield "", f"driver      {facts['driver']} · CUDA {facts['cuda']}"


def _caches(caches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for cache in caches:
        newest = cache.get("newest_unix")
        when = "" if newest is None else datetime.fromtimestamp(newest, UTC).strftime(", newest %Y-%m-%d %H:%M UTC")
        more = "" if cache["complete"] else " or more"
        size = f"{cache['size_bytes'] / 2**20:.0f} MiB in {cache['files']} files{more}{when}"
        yield "dim", f"cache       {cache['name']}: {cache['path']}, {size}"


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    packages = environment["packages"]
    if not packages:
        return
    yield "", f"python      {environment['python']} ({environment['kind']}, {environment['python_version']})"
    yield "dim", "            " + ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


_FAULT = {
    "present": ("bold red", "PRESENT"),
    "fixed": ("green", "fixed"),
    "not_applicable": ("green", "not applicable"),
    "unknown": ("yellow", "cannot tell"),
}


def _fault(fault: InstalledFault) -> Iterator[tuple[str, str]]:
    style, word = _FAULT[fault.detection.state]
    yield style, f"{fault.fault}  {word}: {fault.detection.why}"
    yield "", f"  {fault.site_packages}/{fault.file}"
    yield "", f"  {fault.package} {fault.version or '(version unknown)'}, file {fault.integrity} by its RECORD"
    if fault.detection.state == "not_applicable":
        return
    faulty = [s for s in fault.detection.sites if s.source == "server" or fault.detection.state != "present"]
    symbol = ""
    for excerpt in listing.excerpts(fault.text, faulty, context=0):
        if excerpt.symbol != symbol:
            symbol = excerpt.symbol
            yield "", f"  {symbol}"
        for line in listing.numbered(excerpt):
            yield "red" if fault.detection.state == "present" else "", f"    {line}"


def _server(server: ServerHealth) -> Iterator[tuple[str, str]]:
    facts = server.facts
    yield "bold", f"server      {facts['engine']} on port {facts['port']}, pid {facts['pid']}, since {_utc(facts)}"
    yield "dim", f"  {one_line(' '.join(facts['argv']), 400)}"
    shown = {name: server.effective[name] for name in TELLING if server.effective.get(name) is not None}
    if shown:
        yield "", "  in force: " + " ".join(f"{name}={value}" for name, value in shown.items())
    if server.unknown:
        yield "yellow", f"  not judged: {server.unknown}"
    if not server.asked:
        yield "dim", "  not judged: it was asked for nothing but its configuration"
    for text in server.texts:
        style = "green" if text.healthy else "red"
        yield style, f"  {text.kind:9} {text.prompt} ({text.how}): {text.why}"
        yield "dim", f"            {one_line(text.text, 100)}"


def _utc(facts: Mapping[str, Any]) -> str:
    started = facts.get("started_at_unix")
    return "unknown" if started is None else datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _gib(size: Any) -> str:
    return "?" if not isinstance(size, int | float) else f"{size / 2**30:.0f}"
