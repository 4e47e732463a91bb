"""`diag server`: the inference servers of a host, whoever started them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, LIMIT, connected, print_json

if TYPE_CHECKING:
    from diag.hosts.inventory import Host
    from diag.hosts.ssh import ParamikoTransport

SCHEMA = 1


@click.group()
def server() -> None:
    """Servers on a host: list them, read their log, stop them with proof."""


@server.command("list")
@click.argument("target", metavar="NAME")
@LIMIT
@JSON
def list_servers(target: str, limit: str | None, as_json: bool) -> int:
    """The inference servers that run on NAME (a host, a group, or all), and what a killed diag left there.

    Exit code 4: a host of the group could not be reached.
    """
    from diag.hosts import inventory, reaping

    if inventory.load().is_group(target) or limit is not None:
        return _list_group(target, limit, as_json)
    with connected(target) as transport:
        told = reaping.servers(transport)
    if as_json:
        print_json({"schema": SCHEMA, "host": target, **told})
    else:
        _print_servers(told)
    return 0


def _list_group(target: str, limit: str | None, as_json: bool) -> int:
    from diag.hosts import fleet, inventory, reaping
    from diag.hosts.transport import connect
    from diag.report.text import visible

    def one(host: Host, outer: ParamikoTransport | None) -> dict[str, Any]:
        with connect(host, outer=outer) as transport:
            return reaping.servers(transport)

    results = fleet.each(inventory.load().select(target, limit), one)
    if as_json:
        hosts = {done.host.name: done.value or {"error": done.error and done.error.to_json()} for done in results}
        print_json({"schema": SCHEMA, "group": target, "hosts": hosts})
    for done in () if as_json else results:
        click.echo(f"{done.host.name}:")
        if done.value is not None:
            _print_servers(done.value)
        elif done.error is not None:
            click.echo(visible(f"not looked at: {done.error.what}"))
    return next((done.error.exit_code for done in results if done.error is not None), 0)


def _print_servers(told: dict[str, Any]) -> None:
    from diag import bundle
    from diag.report.text import one_line

    for one in told["servers"]:
        memory = "" if not one["gpu_memory_mib"] else f", {one['gpu_memory_mib']} MiB of GPU memory"
        click.echo(
            f"pid {one['pid']}: {one['engine']} on port {one['port']}, {_whose(one)}, since {one['started_at_utc']}, "
            f"{len(one['pids'])} processes{memory}"
        )
        click.echo(f"  {one_line(' '.join(one['argv']), 200)}")
    if not told["servers"]:
        click.echo("No inference server is running there.")
    if told["lock"] is not None:
        click.echo(one_line(f"At work there: {bundle.load('probes._hostlock').said(told['lock'])}", 300))


def _whose(one: dict[str, Any]) -> str:
    if one["orphan"]:
        return "a worker whose server is gone"
    if one["run_id"] is None:
        return f"started by {one['user'] or 'somebody'}"
    if one["supervised_by"] is not None:
        return f"of a running diag (run {one['run_id']})"
    return f"left by a diag (run {one['run_id']})"


@server.command()
@click.argument("name")
@click.argument("target", metavar="SERVER")
@click.option("--lines", default=40, show_default=True, type=click.IntRange(1, 5000), help="So many of the last ones.")
@JSON
def logs(name: str, target: str, lines: int, as_json: bool) -> int:
    """The last lines of SERVER's output on NAME; SERVER is a pid or a run id of `diag server list`.

    Exit code 3 where its output cannot be read.
    """
    from diag.hosts import reaping
    from diag.report.text import visible

    with connected(name) as transport:
        told = reaping.logs(transport, target, lines)
    log = told["log"]
    if as_json:
        print_json({"schema": SCHEMA, "host": name, **told})
    elif log["why"] is None:
        for line in log["lines"]:
            click.echo(visible(line))
    else:
        click.echo(visible(f"not known: {log['why']}"), err=True)
    return 0 if log["why"] is None else 3


@server.command()
@click.argument("name")
@click.argument("target", metavar="SERVER")
@click.option("--adopt", is_flag=True, help="Also one that diag did not start, or that a running diag supervises.")
@JSON
def stop(name: str, target: str, adopt: bool, as_json: bool) -> int:
    """Stop SERVER (a pid or a run id) on NAME, and prove that it is gone: its processes, its GPU memory, its port.

    Its log, its flags and the state of the GPUs are saved first. Exit code 0: clean; 1: something of it is left.
    """
    from diag.hosts import reaping
    from diag.report.text import visible

    with connected(name) as transport:
        done = reaping.stop(transport, target, adopt=adopt, say=lambda line: click.echo(visible(line), err=True))
    if as_json:
        document = {"schema": SCHEMA, "host": name, **done.proof, "server": done.server, "evidence": str(done.evidence)}
        print_json(document)
    else:
        for line in _proof(done.proof):
            click.echo(visible(line))
    return 0 if done.clean else 1


def _proof(proof: dict[str, Any]) -> list[str]:
    signals = ", ".join(f"{count} {name}" for name, count in proof["signals"].items() if count) or "none was needed"
    lines = [f"{'clean' if proof['clean'] else 'DIRTY'} after {proof['seconds']:g} s; signals: {signals}"]
    lines += [f"  left: pid {one['pid']} ({one['state']}) {' '.join(one['argv'])}" for one in proof["left"]]
    if not proof["left"]:
        lines.append("  processes: all gone")
    free = {True: "free", False: "STILL IN USE", None: "not known"}
    lines.append(f"  port {proof['port']}: {free[proof['port_free']]}")
    memory = proof["gpu_memory"]
    if memory is None:
        lines.append("  GPU memory: cannot be seen here")
    else:
        back = {True: "back", False: "NOT BACK", None: "cannot be told whose it is"}[memory["back"]]
        lines.append(f"  GPU memory: {back} (before {memory['before_mib']}, after {memory['after_mib']} MiB)")
    return lines
