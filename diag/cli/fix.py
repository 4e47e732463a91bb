"""`diag fix`: mend the installed source of an engine on a host, and give it back as it was."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, connected, console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from diag.fixes.catalogue import Fix
    from diag.fixes.transaction import Installed, Outcome, Plan, Process, Standing
    from diag.source.detect import Detection

SCHEMA = 1

_SITE = click.option("--site-packages", metavar="PATH", help="This installation on the host, instead of the one found.")


@click.group("fix")
def fix() -> None:
    """Mend the installed source of an engine, and give it back as it was, to the byte.

    What is done on the host, step by step, and what is left there: docs/fixes.md.
    """


@fix.command("list")
@JSON
def list_fixes(as_json: bool) -> None:
    """List the faults that are known, and the injections, which make one to try things with."""
    from diag.fixes.catalogue import FIXES, INJECTIONS

    if as_json:
        print_json({"schema": SCHEMA, "fixes": [_fix_document(each) for each in (*FIXES, *INJECTIONS)]})
        return
    for each in (*FIXES, *INJECTIONS):
        mark = "" if each.mend is not None else "  (no patch: see diag fix show)"
        click.echo(f"{each.id:24} {each.package} {each.affected}: {each.title}{mark}")


@fix.command("show")
@click.argument("fix_id", metavar="ID")
@JSON
def show(fix_id: str, as_json: bool) -> None:
    """Tell what the fix ID mends, where and how."""
    from diag.fixes.catalogue import get

    found = get(fix_id)
    if as_json:
        print_json({"schema": SCHEMA, **_fix_document(found), "story": found.story})
        return
    click.echo(f"{found.id}: {found.title}\n")
    click.echo(click.wrap_text(found.story, width=100) + "\n")
    click.echo(f"file      {found.file}")
    upstream = "" if found.kind == "injection" else f"; fixed upstream in {found.fixed_in}"
    click.echo(f"affected  {found.package} {found.affected}{upstream}")
    if found.mend is None:
        click.echo("\nThere is no patch. What to do instead:")
        for step in found.do:
            click.echo(click.wrap_text(f"- {step}", width=100, initial_indent="  ", subsequent_indent="    "))


@fix.command("status")
@click.argument("name")
@click.argument("fix_id", metavar="ID")
@_SITE
@JSON
def status(name: str, fix_id: str, site_packages: str | None, as_json: bool) -> int:
    """Tell whether the fault ID is in the source on host NAME, and which servers run which code. Touches nothing.

    Exit code 0: fixed, or not applicable; 1: the fault is there (of an injection: it is applied); 3: it cannot be told,
    or a change was interrupted.
    """
    from diag.fixes import transaction
    from diag.fixes.catalogue import get

    found = get(fix_id)
    with connected(name) as transport:
        installed = transaction.inspect(transport, found, site_packages)
    detection = found.detect(installed.text)
    if as_json:
        print_json(_document("status", name, found, installed, detection, installed.standing))
    else:
        out = console()
        _page(out, name, found, installed, detection, installed.standing)
        _advice(out, name, found, detection, installed.standing)
    if installed.standing.state in ("outstanding",) or detection.state == "unknown":
        return 3
    return 1 if detection.state == ("fixed" if found.kind == "injection" else "present") else 0


@fix.command("apply")
@click.argument("name")
@click.argument("fix_id", metavar="ID")
@click.option("--diff", "diff_only", is_flag=True, help="Show the patch; touch nothing.")
@click.option(
    "--check", "check_only", is_flag=True, help="Check all that is needed; touch nothing. 5: it would refuse."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_SITE
@JSON
def apply(
    name: str,
    fix_id: str,
    diff_only: bool,
    check_only: bool,
    yes: bool,
    site_packages: str | None,
    as_json: bool,
) -> int:
    """Mend the source on host NAME. Asks first, when there is a terminal to ask on."""
    from diag.fixes import transaction
    from diag.fixes.catalogue import get

    found = get(fix_id)
    with connected(name) as transport:
        installed = transaction.inspect(transport, found, site_packages)
        if not diff_only:
            transaction.refuse_a_guess(installed, transport.host, site_packages)
        change = transaction.plan(found, installed)
        if check_only:
            return _show_check(name, found, change, transaction.check(transport, found, change), diff_only, as_json)
        if diff_only:
            return _show_diff(name, found, change, as_json)
        if change.new_text is not None and not yes and not as_json and sys.stdin.isatty():
            _ask(name, change)
        outcome = transaction.apply(transport, found, change)
    return _show_outcome("apply", name, found, outcome, as_json)


@fix.command("revert")
@click.argument("name")
@click.argument("fix_id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when someone else changed the file since; what they wrote is kept.")
@_SITE
@JSON
def revert(name: str, fix_id: str, force: bool, site_packages: str | None, as_json: bool) -> int:
    """Give the original source on host NAME back, to the byte."""
    from diag.fixes import transaction
    from diag.fixes.catalogue import get

    found = get(fix_id)
    with connected(name) as transport:
        installed = transaction.inspect(transport, found, site_packages)
        transaction.refuse_a_guess(installed, transport.host, site_packages)
        outcome = transaction.revert(transport, found, installed, force=force)
    return _show_outcome("revert", name, found, outcome, as_json)


def _ask(name: str, change: Plan) -> None:
    from diag.report.text import visible

    click.echo(visible(change.diff), err=True)
    click.confirm(visible(f"Change {change.installed.path} on {name}?"), abort=True, err=True)


# --- documents ---------------------------------------------------------------------------------------------


def _fix_document(found: Fix) -> dict[str, Any]:
    names = ("id", "kind", "title", "package", "file", "affected", "fixed_in")
    return {name: getattr(found, name) for name in names}


def _document(
    command: str, name: str, found: Fix, installed: Installed, detection: Detection, standing: Standing
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": f"fix {command}",
        "host": name,
        "fix": found.id,
        "package": found.package,
        "version": installed.version,
        "site_packages": installed.site_packages,
        "python": installed.python,
        "others": list(installed.others),
        "file": {"path": found.file, "integrity": installed.integrity, "sha256": installed.sha256},
        "fault": {
            "id": found.id,
            "state": detection.state,
            "why": detection.why,
            "sites": [
                {"file": found.file, "symbol": site.symbol, "line": site.line, "text": site.text, "role": site.role}
                for site in detection.sites
            ],
        },
        "state": standing.state,
        "outstanding": standing.outstanding,
        "journal": standing.journal,
        "changed_at_utc": _utc(standing.changed_at_unix),
        "lock": standing.holder,
        "processes": [_process_document(each) for each in standing.processes],
        "restart_needed": list(standing.restart_needed),
        "unknown": list(standing.unknown),
    }


def _process_document(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "argv": list(process.argv),
        "port": process.port,
        "started_at_utc": _utc(process.started_at_unix),
        "code": process.code,
        "why": process.why,
        "worker_of": process.worker_of,
    }


def _utc(unix: float | None) -> str | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- pages -------------------------------------------------------------------------------------------------

_FAULT = {
    "present": ("red", "present"),
    "fixed": ("green", "fixed"),
    "not_applicable": ("green", "not applicable"),
    "unknown": ("yellow", "cannot tell"),
}
_INJECTION = {**_FAULT, "present": ("green", "not injected"), "fixed": ("red", "injected")}


def _show_diff(name: str, found: Fix, change: Plan, as_json: bool) -> int:
    from diag.report.text import visible

    if as_json:
        document = _document("apply --diff", name, found, change.installed, change.detection, change.installed.standing)
        print_json({**document, "diff": change.diff})
    elif change.new_text is None:
        click.echo(f"Nothing to do: {change.detection.why}", err=True)
    elif sys.stdout.isatty():
        out = console()
        for line in visible(change.diff).splitlines():
            out.print(line, style={"+": "green", "-": "red", "@": "cyan"}.get(line[:1], ""))
    else:
        click.echo(change.diff, nl=False)
    return 0


def _show_check(name: str, found: Fix, change: Plan, would: str, diff_too: bool, as_json: bool) -> int:
    from diag.report.text import visible

    if as_json:
        document = _document(
            "apply --check", name, found, change.installed, change.detection, change.installed.standing
        )
        print_json({**document, "would": would, **({"diff": change.diff} if diff_too else {})})
        return 0
    said = "Nothing to do" if would == "nothing" else f"It would be applied to {change.installed.path}"
    click.echo(visible(f"{said}: {change.detection.why}"), err=diff_too)
    return _show_diff(name, found, change, as_json) if diff_too and change.diff else 0


def _show_outcome(act: str, name: str, found: Fix, outcome: Outcome, as_json: bool) -> int:
    if as_json:
        document = _document(act, name, found, outcome.installed, outcome.detection, outcome.standing)
        proof = outcome.oracle and {"verdict": outcome.oracle.verdict, "why": outcome.oracle.why}
        more = {"changed": outcome.changed, "recovered": outcome.recovered, "kept": list(outcome.kept), "oracle": proof}
        print_json({**document, **more})
        return 0
    from diag.report.text import visible

    out = console()
    if outcome.recovered is not None:
        out.print(f"An interrupted change was {outcome.recovered} first.", style="yellow")
    if outcome.changed:
        done = "applied" if act == "apply" else "reverted: the file is the original again, to the byte"
        out.print(f"{found.id} {done}.", style="bold green")
    elif outcome.recovered is None:
        out.print(f"Nothing to do for {found.id}.", style="bold")
    for path in outcome.kept:
        out.print(visible(f"What someone else had written there is kept: {path}"), style="yellow")
    if outcome.oracle is not None:
        out.print(visible(f"The new code was run before: {outcome.oracle.verdict}. {outcome.oracle.why}"))
    _page(out, name, found, outcome.installed, outcome.detection, outcome.standing)
    _advice(out, name, found, outcome.detection, outcome.standing)
    return 0


def _page(out: Console, name: str, found: Fix, installed: Installed, detection: Detection, standing: Standing) -> None:
    from diag.report.text import one_line, visible

    colour, word = (_INJECTION if found.kind == "injection" else _FAULT)[detection.state]
    rows = [
        ("host", name, ""),
        ("package", f"{found.package} {installed.version or '(version unknown)'}", ""),
        ("file", installed.path, ""),
        ("integrity", f"{installed.integrity} (wheel RECORD)", "" if installed.integrity == "pristine" else "yellow"),
        ("fault", f"{word}: {detection.why}", colour),
        ("fix", standing.state.replace("_", " "), ""),
    ]
    if standing.journal is not None:
        rows.append(("journal", standing.journal, ""))
    rows += [("also in", other, "yellow") for other in installed.others]
    for key, value, style in rows:
        out.print(f"{key:10}", end="", style="dim")
        out.print(visible(str(value)), style=style)
    for site in detection.sites:
        if site.source == "server" and site.role != "definition" and detection.state in ("present", "unknown"):
            out.print(visible(f"  {site.line:>5} | {site.text}  [{site.role}]"))
    for process in standing.processes:
        what = f"worker {process.pid} of {process.worker_of}"
        if process.worker_of is None:
            what = f"server {process.pid}, port {process.port}"
        text = f"  {what}, since {_utc(process.started_at_unix)}: {process.code} code: {process.why}"
        out.print(visible(text), style="yellow" if process.code != "current" else "")
        out.print(f"    {one_line(' '.join(process.argv))}", style="dim")
    for gap in standing.unknown:
        out.print(visible(f"  could not look at {gap['what']}: {gap['why']}"), style="yellow")


def _advice(out: Console, name: str, found: Fix, detection: Detection, standing: Standing) -> None:
    if standing.outstanding is not None:
        out.print(f"A change ({standing.outstanding}) was interrupted. The file is wholly old or wholly new.")
        out.print(f"next: diag fix apply {name} {found.id}, or diag fix revert {name} {found.id}: both end it first")
    elif standing.stale:
        pids = ", ".join(map(str, standing.restart_needed))
        out.print(f"Started before the file changed, so still running the old code: {pids}.", style="bold yellow")
        out.print("next: restart these servers")
    elif detection.state == "present" and found.kind == "fix":
        out.print(f"next: diag fix apply {name} {found.id} --diff   (shows the patch, touches nothing)")
