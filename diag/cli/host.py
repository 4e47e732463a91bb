"""`diag host`: the machines that diag knows by name, whether they can be reached, and how a key gets on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, LIMIT, print_json, waiting

if TYPE_CHECKING:
    from diag.hosts.inventory import Host, Inventory

SCHEMA = 1


@click.group("host")
def host() -> None:
    """The hosts of the inventory."""


@host.command("list")
@JSON
def list_hosts(as_json: bool) -> None:
    """List the hosts by name."""
    from diag.hosts import inventory

    found = inventory.load()
    if as_json:
        hosts = [_document(found, one) for one in found.hosts.values()]
        groups = {name: list(members) for name, members in found.groups.items()}
        files = [str(path) for path in found.files]
        print_json({"schema": SCHEMA, "hosts": hosts, "groups": groups, "files": files})
        return
    if not found.hosts:
        click.echo("No hosts yet: write [hosts.NAME] with an address into one of these files.", err=True)
        for path in inventory.suggested_files():
            click.echo(f"  {path}", err=True)
        return
    rows = [("NAME", "ADDRESS", "PORT", "USER", "FROM")]
    for one in found.hosts.values():
        rows.append((one.name, one.address, str(one.port), one.user or "-", str(found.origin[one.name])))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[4]]))
    for name, members in found.groups.items():
        click.echo(f"group {name}: {', '.join(members)}")


@host.command("show")
@click.argument("name")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show how NAME is reached. Values of env are not shown: they may be secrets."""
    from diag.hosts import inventory

    found = inventory.load()
    document = _document(found, found.get(name))
    if as_json:
        print_json({"schema": SCHEMA, **document})
        return
    for key, value in document.items():
        click.echo(f"{key:18}{_cell(value)}")


@host.command("trust")
@click.argument("name")
@click.option("--fingerprint", required=True, metavar="SHA256:...", help="As the machine's owner gave it to you.")
@click.option("--hash", "hashed", is_flag=True, help="Write the host's name as a hash, as HashKnownHosts does.")
@JSON
def trust(name: str, fingerprint: str, hashed: bool, as_json: bool) -> None:
    """Put the host key of NAME on record, if it is the one with this fingerprint.

    The only way in for a host that is not known yet. Nothing is written when the host shows another key, or when
    another key of that type is on record.
    """
    from diag.hosts import inventory
    from diag.hosts.trust import trust as put_on_record

    done = put_on_record(inventory.load().get(name), fingerprint, hashed=hashed)
    path = str(done.path) if done.path is not None else None
    if as_json:
        fields = {"name": done.name, "key_type": done.key_type, "fingerprint": done.fingerprint, "added": done.added}
        print_json({"schema": SCHEMA, "host": done.host, **fields, "file": path})
        return
    what = f"written to {path}" if done.added else "was on record already"
    click.echo(f"{done.host}: {done.key_type} {done.fingerprint} for {done.name}: {what}")


@host.command("check")
@click.argument("target", metavar="NAME")
@LIMIT
@JSON
def check(target: str, limit: str | None, as_json: bool) -> int:
    """Can NAME (a host, a group, or all) be reached and used? Each stage with the seconds it took.

    Exit code 0: all of them; else that of the first that failed.
    """
    from diag.hosts import inventory
    from diag.hosts.check import check as walk
    from diag.hosts.fleet import each
    from diag.report.text import visible

    hosts = inventory.load().select(target, limit)
    longest = max(host.connect_timeout_s for host in hosts)
    with waiting(f"reaching {len(hosts)} hosts, a second or two each, {longest:g} s at most"):
        done = [result.value for result in each(hosts, lambda one, outer: walk(one, outer=outer)) if result.value]
    if as_json:
        print_json({"schema": SCHEMA, "hosts": {one.host: one.to_json() for one in done}})
    else:
        for one in done:
            click.echo(f"{one.host}: {'ok' if one.error is None else 'failed'} ({one.transport})")
            for stage in one.stages:
                mark = "  " if stage.ok else "! "
                click.echo(f"  {mark}{stage.name:10}{stage.seconds:8.3f} s  {visible(stage.said)}".rstrip())
            if one.error is not None:
                click.echo(visible("\n".join(f"    {line}" for line in str(one.error).splitlines()[1:])))
    return next((one.error.exit_code for one in done if one.error is not None), 0)


def _document(found: Inventory, one: Host) -> dict[str, Any]:
    document = one.model_dump(mode="json")
    document["env"] = sorted(one.env)
    document["jump"] = one.jump.name if one.jump is not None else None
    origin = found.origin.get(one.name)
    document["from"] = str(origin) if origin is not None else None
    return document


def _cell(value: object) -> str:
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
