"""`diag report`: what a run found, to be read, handed on, or kept by a CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, console, print_json
from diag.cli.runs import warn
from diag.errors import UsageError

if TYPE_CHECKING:
    from diag.records.runs import Whole
    from diag.report.share import Share

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("run", required=False)
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="One page that needs nothing else.")
@click.option("--markdown", is_flag=True, help="An issue, ready to paste.")
@click.option("--for", "project", type=click.Choice(["sglang", "vllm", "generic"]), help="Whose issue it is.")
@click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="For a CI gate.")
@click.option("--share", is_flag=True, help="Hide secrets; replace names of people and machines, always by the same.")
@JSON
def report(
    run: str | None,
    html_file: Path | None,
    markdown: bool,
    project: str | None,
    junit_file: Path | None,
    share: bool,
    as_json: bool,
) -> int:
    """What RUN (see: diag runs list; the latest one by default) found: the answer, why, and the table.

    Everything is read from the run's journal; what that does not hold is said to be not recorded. A run that is going
    on, or was cut off, is told as far as it came.

    Exit code: that of the run itself: 0 healthy, 1 a fault was found or the culprit named, 3 inconclusive.
    """
    from diag.report import run as reports
    from diag.wholefile import becoming

    if markdown and as_json:
        raise UsageError("--markdown and --json both go to standard output.", next="Leave one of them out.")
    found = _found(run)
    made = reports.document(found, _load)
    parts = [part for step in made["parts"] if (part := _load(step["run"])) is not None] if share else []
    shared = shared_of([found, *parts]) if share else None
    removed = ""
    if shared is not None:
        made = shared.document(made)
        removed = shared.summary()
    files = {html_file: _html, junit_file: _junit}
    for file, write in files.items():
        if file is not None:
            with becoming(file) as new:
                new.write_text(write(made, removed), encoding="utf-8")
            click.echo(f"written: {file}", err=True)
    _show(
        made,
        project,
        removed,
        markdown=markdown,
        as_json=as_json,
        quiet=html_file is not None or junit_file is not None,
    )
    if shared is not None:
        click.echo(f"replaced: {removed}; read it before you give it away", err=True)
    return int(made["exit_code"])


def _found(run: str | None) -> Whole:
    from diag.records import runs as records

    if run is None:
        every = [one for one in records.listed(warn=warn) if not one.problem and one.program != "probe"]
        # A run that a playbook began is told within it.
        own = [one for one in every if not any(one.run.startswith(f"{other.run}.") for other in every)]
        if not own:
            raise UsageError("There is no run to report yet.", next="Begin one: diag bisect NAME --plan PLAN")
        run = own[0].run
    return records.whole(run, warn=warn)


def _load(run: str) -> Whole | None:
    from diag.errors import DiagError
    from diag.records import runs as records

    try:
        return records.whole(run, warn=warn)
    except DiagError:
        return None


def _html(made: dict[str, Any], removed: str) -> str:
    from diag.report import html

    return html.page(made, removed)


def _junit(made: dict[str, Any], removed: str) -> str:
    from diag.report import junit

    return junit.suite(made)


def _show(
    made: dict[str, Any], project: str | None, removed: str, *, markdown: bool, as_json: bool, quiet: bool
) -> None:
    from diag.report import run_page
    from diag.report.text import visible

    if as_json:
        print_json(made)
    elif markdown or project is not None:
        from diag.report import markdown as issues

        chosen: Any = project or (made["engine"] if made["engine"] in ("sglang", "vllm") else "generic")
        click.echo(issues.issue(made, chosen, removed))
    elif not quiet:
        out = console()
        for style, line in run_page.page(made):
            out.print(visible(line), style=style)
    else:
        for line in made["answer"]:
            click.echo(visible(line))


def shared_of(wholes: Sequence[Whole]) -> Share:
    """Knows what the hosts of these runs said of themselves, and what the inventory has of them."""
    from diag.errors import DiagError
    from diag.hosts import inventory
    from diag.report import share

    documents = [document for one in wholes for document in one.said_of_hosts().values()]
    known, hosts = inventory.load(), []
    for name in sorted({host for one in wholes for host in one.run.hosts}):
        try:
            hosts.append(known.get(name))
        except DiagError:
            documents.append({"facts": {"hostname": name}})
    return share.of_hosts(documents, hosts, share.key())
