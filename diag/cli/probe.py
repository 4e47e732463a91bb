"""`diag probe`: what runs on a host, is it what it says it is, is it healthy?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import JSON, LIMIT, PYTHON, connected, console, print_json, progress
from diag.cli.probe_kernels import kernels
from diag.cli.probe_prompts import prompts
from diag.cli.probe_text import text

if TYPE_CHECKING:
    from diag.hosts.inventory import Host
    from diag.hosts.ssh import ParamikoTransport
    from diag.report.share import Share


@click.group()
def probe() -> None:
    """What runs on a host, is it what it says it is, is it healthy? Changes nothing."""


@probe.command()
@click.argument("name")
@LIMIT
@PYTHON
@click.option("--suite", "suite_name", default="quick", show_default=True, help="Prompts to ask a running server.")
@click.option("--no-prompts", is_flag=True, help="Ask running servers nothing but their configuration.")
@click.option("--verify-all", is_flag=True, help="Hash every file of the engine's package against its RECORD.")
@click.option("--share", is_flag=True, help="Hide secrets; replace names of people and machines, always by the same.")
@JSON
def host(
    name: str,
    limit: str | None,
    python: str | None,
    suite_name: str,
    no_prompts: bool,
    verify_all: bool,
    share: bool,
    as_json: bool,
) -> int:
    """Read host NAME over one SSH connection: facts, environments, running servers with the configuration that is
    really in force, the installed sources against their wheel, known faults with their lines, and, where a server
    runs, its answers to a short prompt suite.

    Of a group (or all), every host at the same time, and what differs between them: versions, files, flags,
    environment. A host that cannot be reached costs no other its answer.

    Exit code 0: healthy; 1: a fault was found, or ranks differ; 3: something that matters could not be told; 4: a host
    of the group could not be reached.
    """
    from diag import probe as probing
    from diag.hosts import inventory
    from diag.report import host as report
    from diag.verdict.findings import exit_code, findings

    options: dict[str, Any] = {
        "python": python,
        "suite_name": suite_name,
        "ask": not no_prompts,
        "verify_all": verify_all,
    }
    if inventory.load().is_group(name) or limit is not None:
        return _group(name, limit, options, share, as_json)
    with progress("connecting") as say, connected(name) as transport:
        seen = probing.host(transport, **options, say=say)
        hosts = [transport.host]
    found = findings(seen)
    document = report.document(seen, found)
    _show(document, report.page(seen, found), _shared(share, [document], hosts), as_json)
    return _kept(name, {name: document}, exit_code(found))


def _kept(
    name: str, documents: dict[str, dict[str, Any]], code: int, differences: Sequence[dict[str, Any]] = ()
) -> int:
    """The exit code; what was found is kept for `diag runs diff` and `diag report`."""
    from diag.cli.runs import warn
    from diag.records import probes

    probes.record(name, documents, code, differences, warn)
    return code


def _shared(share: bool, documents: list[dict[str, Any]], hosts: list[Host]) -> Share | None:
    from diag.report import share as sharing

    return sharing.of_hosts(documents, hosts, sharing.key()) if share else None


def _show(document: dict[str, Any], page: Iterable[tuple[str, str]], share: Share | None, as_json: bool) -> None:
    from diag.report.text import visible

    if as_json:
        print_json(share.document(document) if share is not None else document)
    else:
        out = console()
        for style, line in page:
            out.print(visible(share.text(line) if share is not None else line), style=style)
    if share is not None:
        click.echo(f"replaced: {share.summary()}; read it before you give it away", err=True)


def _group(name: str, limit: str | None, options: dict[str, Any], share: bool, as_json: bool) -> int:
    from diag import probe as probing
    from diag.hosts import fleet, inventory, parity
    from diag.hosts.transport import connect
    from diag.report import group as report
    from diag.report.text import visible

    hosts = inventory.load().select(name, limit)
    err = console(stderr=True)
    waiting = [host.name for host in hosts]

    def one(host: Host, outer: ParamikoTransport | None) -> probing.HostReport:
        with connect(host, outer=outer) as transport:
            return probing.host(transport, **options)

    with err.status(f"reading {len(hosts)} hosts") as status:

        def on_done(result: fleet.Result[probing.HostReport]) -> None:
            waiting.remove(result.host.name)
            if result.error is not None:
                err.print(visible(f"{result.host.name}: {result.error.what}"), style="red")
            status.update(visible(f"{len(waiting)} of {len(hosts)} left: {', '.join(waiting[:4])}"))

        results = fleet.each(hosts, one, on_done=on_done)
    found = parity.differences({result.host.name: result.value.document for result in results if result.value})
    document = report.document(name, results, found)
    shared = _shared(share, list(document["hosts"].values()), hosts)
    _show(document, report.page(results, found), shared, as_json)
    return _kept(name, document["hosts"], report.status(results, found), document["differences"])


@probe.command()
@click.argument("target")
@PYTHON
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Attention backend that is served with.")
@click.option("--oracle/--no-oracle", default=None, help="Also run the installed code, without a server or a GPU.")
@click.option("--diff", "diff", is_flag=True, help="Show how edited files differ from the release's wheel.")
@JSON
def source(
    target: str, python: str | None, backends: tuple[str, ...], oracle: bool | None, diff: bool, as_json: bool
) -> int:
    """Judge the engine's source in TARGET: a host, a wheel file, a folder that holds the package, or sglang==VERSION.

    Every file in which faults are known is compared with its RECORD, and every fault of the catalogue is told as
    present, fixed, not applicable or cannot tell, with its lines. Faults of other backends than the one that is served
    with (--backend, else that of a running server, else triton) are notices; --backend all counts every one.

    The oracle is on for wheels, folders and releases where torch is installed here, and off for hosts.

    Exit code 0: no fault; 1: a fault is present; 3: something could not be told.
    """
    from contextlib import ExitStack

    from diag.cli.source import opened
    from diag.report import source as report
    from diag.report.text import visible
    from diag.source import inspection, targets

    resolved = targets.resolve(target)
    err = console(stderr=True)
    with ExitStack() as stack:
        transport = opened(resolved, stack)
        status = stack.enter_context(err.status("reading"))
        seen = inspection.inspect(
            resolved,
            transport=transport,
            python=python,
            backends=backends,
            oracle=oracle,
            fetch=diff,
            say=lambda line: status.update(visible(line)),
        )
    if as_json:
        print_json(report.document(seen))
    else:
        out = console()
        for style, line in report.page(seen, whole_diff=diff):
            out.print(visible(line), style=style)
    return seen.exit_code


probe.add_command(text)
probe.add_command(prompts)
probe.add_command(kernels)
