"""`diag init`: a first inventory, from what your SSH configuration and the hosts themselves say."""

from __future__ import annotations

from pathlib import Path

import click

from diag.cli.common import JSON, console, print_json


@click.command()
@click.option("--host", "names", multiple=True, required=True, metavar="NAME", help="Once or several times.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write. [diag.toml here]")
@click.option("--no-connect", is_flag=True, help="Ask only `ssh -G`, not the hosts.")
@JSON
def init(names: tuple[str, ...], out: Path | None, no_connect: bool, as_json: bool) -> int:
    """Write an inventory with comments for the hosts NAME: names of ~/.ssh/config, addresses, or USER@ADDRESS:PORT.

    Each host is asked, over one connection, for the engine's interpreter, the model of a running server and its GPUs;
    nothing is changed there. A host that cannot be asked is written too, with the reason. A file that is there already
    is never touched.

    Exit code 4: written, but a host could not be asked.
    """
    from diag.hosts import draft, fleet, inventory
    from diag.report.text import visible

    path = out if out is not None else Path.cwd() / inventory.PROJECT_FILE
    draft.refuse(path)  # before anybody is asked
    known = inventory.load()
    hosts = list({host.name: host for host in (draft.configured(name, known) for name in names)}.values())
    drafts = [draft.Draft(host) for host in hosts]
    if not no_connect:
        with console(stderr=True).status(f"asking {len(hosts)} hosts, a few seconds each"):
            results = fleet.each(hosts, lambda host, outer: draft.look(host))
        drafts = [draft.Draft(result.host, result.value or draft.Seen()) for result in results]
    draft.write(path, draft.text(drafts))
    failed = [one for one in drafts if one.seen.error]
    if as_json:
        told = [{"name": one.host.name, "error": one.seen.error or None} for one in drafts]
        print_json({"schema": 1, "file": str(path), "hosts": told})
    else:
        for one in failed:
            click.echo(visible(f"{one.host.name} could not be asked: {one.seen.error}"), err=True)
        click.echo(f"written: {path}\nnext: read it, then diag host check {hosts[0].name}")
    return 4 if failed else 0
