"""`diag explain`: what a finding, a fault, a verdict or an error means, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, print_json

if TYPE_CHECKING:
    from diag.explain.entry import Entry

SCHEMA = 1
_WIDTH = 100


@click.command()
@click.argument("wanted", metavar="[ID]", required=False)
@JSON
def explain(wanted: str | None, as_json: bool) -> None:
    """Tell what ID means, why it matters and what to do. Without ID, list all of them.

    ID is any word that diag prints for a finding, a fault, a verdict, a rule, a sign or an error, such as mask-indptr,
    near_tie, salad or host_key_unknown. Connects to nothing.
    """
    from diag.explain.index import ENTRIES, get

    if wanted is None:
        _list(ENTRIES, as_json)
    elif as_json:
        print_json({"schema": SCHEMA, **get(wanted).to_json()})
    else:
        _page(get(wanted))


def _list(entries: tuple[Entry, ...], as_json: bool) -> None:
    from diag.explain.index import HEADINGS

    if as_json:
        listed = [{"id": each.id, "group": each.group, "title": each.title} for each in entries]
        print_json({"schema": SCHEMA, "entries": listed})
        return
    width = max(len(each.id) for each in entries)
    for group, heading in HEADINGS.items():
        click.secho(heading, bold=True)
        for each in entries:
            if each.group == group:
                click.echo(f"  {each.id:{width}}  {each.title}")
    click.echo("\nOne of them: diag explain ID")


def _page(entry: Entry) -> None:
    click.secho(f"{entry.id}: {entry.title}", bold=True)
    click.echo(f"\n{click.wrap_text(entry.what, _WIDTH)}")
    click.echo(f"\nWhy it matters\n{click.wrap_text(entry.why, _WIDTH, '  ', '  ')}")
    click.echo("\nWhat to do")
    for step in entry.do:
        click.echo(click.wrap_text(step, _WIDTH, "  - ", "    "))
    if entry.more:
        click.echo("\nMore: " + ", ".join(entry.more))
