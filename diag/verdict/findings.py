"""What a host report amounts to: findings, each with its evidence and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from diag.verdict.host import HostReport, InstalledFault, ServerHealth

Severity = Literal["fault", "notice", "unknown"]


@dataclass(frozen=True)
class Finding:
    """id: what `diag explain` knows it by. fault: something is wrong; notice: worth knowing; unknown: could not be
    told, and why. what: one sentence naming the thing; next: what to do."""

    id: str
    severity: Severity
    what: str
    next: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def findings(report: HostReport) -> list[Finding]:
    """Worst first."""
    from diag.hosts import expectations  # which makes findings itself

    machine = expectations.findings(report.document, report.expected)
    found = [*_in_sources(report), *_in_servers(report), *machine, *_not_seen(report)]
    order = {"fault": 0, "unknown": 1, "notice": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def exit_code(found: list[Finding]) -> int:
    """1: a fault was found. 3: nothing was found, but something that matters could not be told. 0: healthy."""
    severities = {finding.severity for finding in found}
    return 1 if "fault" in severities else 3 if "unknown" in severities else 0


def _in_sources(report: HostReport) -> Iterator[Finding]:
    edited = set()
    for fault in report.faults:
        where = f"{fault.package} {fault.version or '(version unknown)'} in {fault.site_packages}"
        state, severity = fault.detection.state, fault_severity(report, fault)
        if state == "present":
            only = f" Only servers with --attention-backend {' or '.join(fault.backends)} run it."
            yield Finding(
                fault.fault,
                severity,
                f"{fault.title}: present in {where}." + ("" if severity == "fault" else only),
                f"diag fix apply {report.host} {fault.fault} --diff" if fault.mends else f"diag explain {fault.fault}",
            )
        elif state == "unknown":
            told: Severity = "unknown" if severity == "fault" else "notice"
            yield Finding(fault.fault, told, f"{where}: {fault.detection.why}", f"diag explain {fault.fault}")
        if fault.integrity == "edited" and (fault.site_packages, fault.file) not in edited:
            edited.add((fault.site_packages, fault.file))
            yield Finding(
                "file-edited",
                "notice",
                f"{fault.file} is not what the wheel of {where} holds: changed by a fix, or by hand.",
                f"diag probe source {report.host} --diff",
            )
    if not report.faults:
        yield Finding("no-engine", "notice", "No engine that diag knows is installed where it looked.", "--python PATH")
    for source in report.document["sources"]:
        checked = source.get("record_checked") or {}
        kinds = ("edited", "missing", "unlisted")
        changed = [path for kind in kinds for path in checked.get(kind, [])]
        if changed:
            # The lists are cut; the counts are whole.
            counts = checked.get("counts") or {kind: len(checked.get(kind, [])) for kind in kinds}
            many = ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts.get(kind))
            some = ", ".join(str(path) for path in changed[:5])
            yield Finding(
                "package-changed",
                "notice",
                f"{source['package']} {source['version']} is not what its wheel holds: {many} ({some}).",
                "Compare with a fresh installation, or reinstall.",
            )


def fault_severity(report: HostReport, fault: InstalledFault) -> Literal["fault", "notice"]:
    """`notice` for another backend's faults and for what stock servers do not meet, unless a running server of this
    installation meets it: that backend, and widths that differ."""
    met = any(
        server.facts.get("site_packages") == fault.site_packages
        and server.effective.get("attention_backend") in fault.backends
        and not (fault.graphs_only and server.effective.get("disable_cuda_graph"))
        and _unequal(server) is not None
        for server in report.servers
    )
    return "fault" if met or (fault.severity == "fault" and "triton" in fault.backends) else "notice"


def _in_servers(report: HostReport) -> Iterator[Finding]:
    for server in report.servers:
        name = f"The server on port {server.facts.get('port')} (pid {server.facts['pid']})"
        if server.facts.get("orphan"):
            yield Finding(
                "orphan-worker",
                "notice",
                f"Process {server.facts['pid']} is a worker whose server is gone; it may hold GPU memory and ports.",
                f"Look at it: ps -fp {server.facts['pid']}; end it if nobody needs it.",
            )
            continue
        if server.unknown:
            yield Finding("server-not-asked", "unknown", f"{name} was not judged: {server.unknown}.")
        if server.silent:
            yield Finding(
                "server-not-answering",
                "fault",
                f"{name} did not answer {len(server.silent)} of {len(server.texts)} requests: {server.silent[0].why}.",
                "Look at its log, and whether it still runs: run this again.",
            )
        if server.garbled:
            worst = max(server.garbled, key=lambda text: text.worst_gap_nats or 0.0)
            yield Finding(
                "server-garbled",
                "fault",
                f"{name} garbles {len(server.garbled)} of {len(server.texts)} answers; "
                f"'{worst.prompt}' {worst.how}: {worst.why}.",
                f"diag bisect {report.host} --plan FILE",
            )
        yield from _width(report, server, name)
        yield from _old_code(report, server, name)


def _width(report: HostReport, server: ServerHealth, name: str) -> Iterator[Finding]:
    """The two numbers whose difference makes `mask-indptr` bite, read from the running server itself."""
    unequal = _unequal(server)
    harmless = any(
        fault.fault == "mask-indptr"
        and fault.site_packages == server.facts.get("site_packages")
        and fault.detection.state in ("fixed", "not_applicable")
        for fault in report.faults
    )
    if unequal is not None and not harmless:
        width, count = unequal
        yield Finding(
            "verify-width-mismatch",
            "notice",
            f"{name} verifies {width} rows a request while the backend's fixed count is {count}: "
            "where mask-indptr is present, it bites here.",
            "diag explain mask-indptr",
        )


def _unequal(server: ServerHealth) -> tuple[int, int] | None:
    """(rows of a verify step, the backend's fixed count) where the server says both, and they differ."""
    width, count = verify_width(server.effective), server.effective.get("speculative_num_draft_tokens")
    return (width, count) if width is not None and isinstance(count, int) and width != count else None


def verify_width(effective: Mapping[str, Any]) -> int | None:
    """Rows of a verify step by the server's own configuration: what it says, else tree budget + 1."""
    said, budget = effective.get("draft_token_num"), effective.get("speculative_ddtree_budget")
    if isinstance(said, int):
        return said
    return budget + 1 if isinstance(budget, int) else None


def _old_code(report: HostReport, server: ServerHealth, name: str) -> Iterator[Finding]:
    started, site_packages = server.facts.get("started_at_unix"), server.facts.get("site_packages")
    newer = [fault.file for fault in report.faults if fault.site_packages == site_packages and _newer(fault, started)]
    files = list(dict.fromkeys(newer))
    if files:
        more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        yield Finding(
            "server-stale",
            "notice",
            f"{name} started before {files[0]}{more} was last changed: it runs the older code.",
            "Restart it to run what is installed now.",
        )


def _newer(fault: InstalledFault, started: Any) -> bool:
    changed = fault.modified_at_unix
    return isinstance(started, int | float) and changed is not None and changed > started


def _not_seen(report: HostReport) -> Iterator[Finding]:
    """A machine without a GPU is no fault; anything else that could not be looked at is said."""
    for gap in report.unknown:
        yield Finding("not-seen", "notice", f"Could not look at {gap['what']}: {gap['why']}.")
