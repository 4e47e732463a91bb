"""`diag runs`: what was run so far, from the record of all journals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, console, print_json

if TYPE_CHECKING:
    from diag.bisect.trial import Trial
    from diag.records.runs import Run, Whole
    from diag.report.share import Share


@click.group()
def runs() -> None:
    """Bisections, playbooks and probes so far. Each has a journal with all that was seen, and why it was done."""


def warn(why: str) -> None:
    from diag.report.text import visible

    click.echo(f"note: {visible(why)}", err=True)


@runs.command("list")
@click.option("--program", type=click.Choice(["bisect", "playbook", "probe"]), help="Only these.")
@click.option("--host", metavar="NAME", help="Only what was about this host.")
@JSON
def list_runs(program: str | None, host: str | None, as_json: bool) -> int:
    """List them, newest first: how they ended, and whether one can be gone on with."""
    from diag.records import runs as records

    found = [
        run
        for run in records.listed(warn=warn)
        if program in (None, run.program) and (host is None or host in run.hosts)
    ]
    if as_json:
        print_json({"schema": 1, "runs": [_row(run) for run in found]})
        return 0
    if not found:
        click.echo("No runs yet.")
    for run in found:
        click.echo(_line(run))
    return 0


def _line(run: Run) -> str:
    from diag.report.text import one_line

    where = ", ".join(run.hosts) or "this machine"
    count = f"{run.steps} steps" if run.program == "playbook" else f"{run.trials} trials" if run.trials else ""
    culprit = f": {run.culprit}" if run.culprit else ""
    text = f"{run.run}  {run.program:8} {where:14} {run.name:20} {count:>11}  {run.ended}{culprit}"
    return one_line(text, 160)


@runs.command()
@click.argument("run")
@JSON
def show(run: str, as_json: bool) -> int:
    """Replay the reasoning of RUN: why each trial was made, or each step, and what it showed."""
    from diag.bisect.trial import Trial
    from diag.records import runs as records
    from diag.report.text import visible

    found = records.whole(run, warn=warn)
    if as_json:
        print_json(
            {
                "schema": 1,
                **_row(found.run),
                "entries": [Trial.from_json(found.read(trial.line)).to_json() for trial in found.trials],
                "steps": [_step(found, step.line) for step in found.steps],
            }
        )
        return 0
    out = console()
    out.print(visible(f"{run}: {found.run.name} on {', '.join(found.run.hosts) or 'this machine'}"), style="bold")
    for style, line in (*_trials(found), *_steps(found)):
        out.print(visible(line), style=style)
    for host, why in found.left_out.items():
        out.print(visible(f"{host} was left out: {why}"), style="yellow")
    out.print(visible(f"ended: {found.run.ended}"))
    if found.run.verdict is None and not found.run.held:
        out.print(_go_on(found.run))
    return 0


def _go_on(run: Run) -> str:
    if run.program == "probe":
        return "next: probe it again"
    return f"next: diag {'playbook resume' if run.program == 'playbook' else 'bisect --resume'} {run.run}"


def _trials(found: Whole) -> Iterator[tuple[str, str]]:
    from diag.bisect.trial import Trial
    from diag.report.bisect import OUTCOME_STYLE, trial_line

    bad = dict(found.trials[1].config) if len(found.trials) > 1 else {}
    for row in found.trials:
        trial = Trial.from_json(found.read(row.line))
        on = f" · {trial.host}" if len(found.run.hosts) > 1 else ""
        yield "dim", f"{trial.number:3}{on} · {trial.purpose}"
        yield OUTCOME_STYLE[trial.outcome], f"    {trial_line(trial, {**trial.config, **bad})}"
        for warning in (*_notes(trial), *trial.warnings):
            yield "yellow", f"    {warning}"


def _notes(trial: Trial) -> Iterator[str]:
    from diag.bisect.trial import Outcome

    if trial.outcome is Outcome.INFRA:
        yield f"counts for nothing ({trial.signature or 'our side'}); tried again where that could help"
    elif trial.signature:
        yield f"signature: {trial.signature}"


STATE_STYLE = {"failed": "red", "undone": "yellow", "skipped": "dim", "begun": "dim", "done": "green"}


def _steps(found: Whole) -> Iterator[tuple[str, str]]:
    for step in found.steps:
        if step.state != "begun":
            took = f"{step.seconds:7.1f} s" if step.seconds is not None else " " * 9
            yield STATE_STYLE.get(step.state, ""), f"{step.state:8} {took}  {step.step} ({step.kind})"


def _step(found: Whole, line: int) -> dict[str, Any]:
    entry = found.read(line)
    return {name: entry.get(name) for name in ("id", "step", "state", "seconds", "at_unix", "result")}


@runs.command()
@click.argument("run")
@JSON
def rm(run: str, as_json: bool) -> int:
    """Remove RUN and its journal. Refused while it is being worked on."""
    import shutil

    from diag.journal import Journal
    from diag.records import runs as records

    folder = records.folder_of(run)
    if not (folder / "journal.jsonl").is_file():
        records.whole(run, warn=warn)  # says that it is not there, and what is near
    with Journal.reopen(folder, run):
        shutil.rmtree(folder)
    return _done([run], folder, f"removed {folder}", as_json)


def _done(names: list[str], file: Path, said: str, as_json: bool) -> int:
    if as_json:
        print_json({"schema": 1, "runs": names, "file": str(file)})
    else:
        click.echo(said)
    return 0


@runs.command()
@click.argument("before")
@click.argument("after")
@JSON
def diff(before: str, after: str, as_json: bool) -> int:
    """What changed between the runs BEFORE and AFTER: versions, files, flags, environment, verdict, culprit, rates."""
    from diag.records import changes
    from diag.records import runs as records
    from diag.report import run as reports
    from diag.report.text import one_line

    wholes = [records.whole(run, warn=warn) for run in (before, after)]
    made = [reports.document(whole) for whole in wholes]
    facts = [whole.said_of_hosts() for whole in wholes]
    found = changes.changes(made[0], made[1], facts)
    if as_json:
        print_json({"schema": 1, "before": before, "after": after, "changes": [one.to_json() for one in found]})
        return 0
    out, group = console(), ""
    for one in found:
        if one.group != group:
            group = one.group
            out.print(one_line(group), style="bold")
        out.print(f"  {one_line(one.what, 60)}: {one_line(one.before, 120)} -> {one_line(one.after, 120)}")
    silent = [run for run, told in zip((before, after), facts) if not told]
    if silent:
        out.print(f"not compared: {', '.join(silent)} does not hold what its hosts said of themselves", style="dim")
    if not found:
        out.print("nothing that is recorded differs")
    return 0


@runs.command()
@click.argument("run")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--share", is_flag=True, help="Hide secrets; replace names of people and machines, always by the same.")
@JSON
def export(run: str, file: Path, share: bool, as_json: bool) -> int:
    """Write RUN, with the runs that it began, into FILE (.tar.gz); another diag reads it: diag runs import FILE."""
    from diag.cli.report import shared_of
    from diag.records import carry
    from diag.records import runs as records

    found = records.whole(run, warn=warn)
    parts = [one.run for one in records.listed(warn=warn) if one.run.startswith(f"{run}.") and not one.problem]
    told = shared_of([found, *(records.whole(part, warn=warn) for part in parts)]) if share else None
    carry.write([run, *parts], file, (lambda line: _shared(told, line)) if told is not None else lambda line: line)
    if told is not None:
        click.echo(f"replaced: {told.summary()}; read it before you give it away", err=True)
    said = f"written: {file} ({1 + len(parts)} run{'s' if parts else ''})"
    return _done([run, *parts], file, said, as_json)


def _shared(share: Share, line: bytes) -> bytes:
    return json.dumps(share.document(json.loads(line))).encode() + b"\n"


@runs.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@JSON
def import_run(file: Path, as_json: bool) -> int:
    """Take in a run that another diag wrote with `diag runs export`."""
    from diag.records import carry

    names = carry.read(file)
    return _done(names, file, f"read: {', '.join(names)}", as_json)


@runs.command()
@JSON
def rebuild(as_json: bool) -> int:
    """Make the record of all runs anew from their journals. Needed only where somebody changed one by hand."""
    from diag.records import runs as records
    from diag.records import store

    store.remove()
    found = records.listed(warn=warn)
    trials = sum(run.trials for run in found)
    if as_json:
        print_json({"schema": 1, "runs": [_row(run) for run in found]})
    else:
        click.echo(f"{len(found)} runs with {trials} trials read from their journals")
    return 0


def _row(run: Run) -> dict[str, Any]:
    return {
        "run": run.run,
        "program": run.program,
        "name": run.name,
        "host": ", ".join(run.hosts) or None,
        "hosts": list(run.hosts),
        "plan": run.name if run.program == "bisect" else None,
        "trials": run.trials,
        "began_unix": run.began_unix,
        "ended_unix": run.ended_unix,
        "ended": run.ended,
        "culprit": run.culprit,
    }
