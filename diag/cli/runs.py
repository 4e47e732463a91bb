"""`diag runs`: the bisections so far, from their journals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, console, print_json

if TYPE_CHECKING:
    from diag.bisect.resume import Earlier
    from diag.bisect.trial import Trial


@click.group()
def runs() -> None:
    """Bisections so far. Each has a journal with every trial, its texts and why it was tried."""


@runs.command("list")
@JSON
def list_runs(as_json: bool) -> int:
    """List them, newest first: how they ended, and whether one can be gone on with."""
    from diag.bisect import resume
    from diag.errors import DiagError
    from diag.report.text import one_line

    rows: list[dict[str, Any]] = []
    for folder in reversed(resume.list_folders()):
        try:
            rows.append(_row(resume.load(folder.name)))
        except DiagError as error:
            empty: dict[str, Any] = {"host": None, "hosts": [], "plan": None, "trials": 0}
            rows.append({"run": folder.name, **empty, "ended": error.what})
    if as_json:
        print_json({"schema": 1, "runs": rows})
        return 0
    if not rows:
        click.echo("No runs yet.")
    out = console()
    for row in rows:
        where = row["host"] or "this machine"
        text = f"{row['run']}  {where:12} {row['plan'] or '?':20} {row['trials']:3} trials  {row['ended']}"
        out.print(one_line(text, 160))
    return 0


@runs.command()
@click.argument("run")
@JSON
def show(run: str, as_json: bool) -> int:
    """Replay the reasoning of RUN: why each trial was made, and what it showed."""
    from diag.bisect import resume
    from diag.report.bisect import OUTCOME_STYLE, trial_line
    from diag.report.text import visible

    earlier = resume.load(run)
    if as_json:
        print_json({"schema": 1, **_row(earlier), "entries": [trial.to_json() for trial in earlier.trials]})
        return 0
    out = console()
    where = ", ".join(earlier.hosts) or "this machine"
    out.print(visible(f"{run}: {earlier.start['plan_name']} on {where}"), style="bold")
    bad = dict(earlier.trials[1].config) if len(earlier.trials) > 1 else {}
    for trial in earlier.trials:
        on = f" · {trial.host}" if len(earlier.hosts) > 1 else ""
        out.print(visible(f"{trial.number:3}{on} · {trial.purpose}"), style="dim")
        out.print(visible(f"    {trial_line(trial, {**trial.config, **bad})}"), style=OUTCOME_STYLE[trial.outcome])
        for warning in (*_notes(trial), *trial.warnings):
            out.print(visible(f"    {warning}"), style="yellow")
    for host, why in earlier.left_out.items():
        out.print(visible(f"{host} was left out: {why}"), style="yellow")
    out.print(visible(f"ended: {earlier.ended}"))
    if earlier.finished is None:
        out.print(f"next: diag bisect --resume {run}")
    return 0


def _notes(trial: Trial) -> Iterator[str]:
    from diag.bisect.trial import Outcome

    if trial.outcome is Outcome.INFRA:
        yield f"counts for nothing ({trial.signature or 'our side'}); tried again where that could help"
    elif trial.signature:
        yield f"signature: {trial.signature}"


@runs.command()
@click.argument("run")
def rm(run: str) -> int:
    """Remove RUN and its journal. Refused while it is being worked on."""
    import shutil

    from diag.bisect import resume
    from diag.journal import Journal

    earlier = resume.load(run)
    with Journal.reopen(earlier.folder, run):
        shutil.rmtree(earlier.folder)
    click.echo(f"removed {earlier.folder}")
    return 0


def _row(earlier: Earlier) -> dict[str, Any]:
    return {
        "run": earlier.run_id,
        "host": earlier.start["host"],
        "hosts": list(earlier.hosts),
        "plan": earlier.start["plan_name"],
        "trials": len(earlier.trials),
        "ended": earlier.ended,
    }
