"""`diag host`: the machines that diag knows by name. Nothing here connects to one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from diag.hosts.inventory import Host, Inventory

SCHEMA = 1


@click.group("host")
def host() -> None:
    """The hosts of the inventory."""


@host.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def list_hosts(as_json: bool) -> None:
    """List the hosts by name."""
    from diag.hosts import inventory

    found = inventory.load()
    if as_json:
        hosts = [_document(found, one) for one in found.hosts.values()]
        _print_json({"schema": SCHEMA, "hosts": hosts, "files": [str(path) for path in found.files]})
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


@host.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def show(name: str, as_json: bool) -> None:
    """Show how NAME is reached. Values of env are not shown: they may be secrets."""
    from diag.hosts import inventory

    found = inventory.load()
    document = _document(found, found.get(name))
    if as_json:
        _print_json({"schema": SCHEMA, **document})
        return
    for key, value in document.items():
        click.echo(f"{key:18}{_cell(value)}")


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


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
