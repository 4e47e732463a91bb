"""`diag probe`: what runs on a host, is it what it says it is, is it healthy?"""

from __future__ import annotations

import click

from diag.cli.common import JSON, connected, console, print_json


@click.group()
def probe() -> None:
    """What runs on a host, is it what it says it is, is it healthy? Changes nothing."""


@probe.command()
@click.argument("name")
@click.option("--python", metavar="PATH", help="The engine's interpreter on the host, instead of those found.")
@click.option("--suite", "suite_name", default="quick", show_default=True, help="Prompts to ask a running server.")
@click.option("--no-prompts", is_flag=True, help="Ask running servers nothing but their configuration.")
@click.option("--verify-all", is_flag=True, help="Hash every file of the engine's package against its RECORD.")
@JSON
def host(name: str, python: str | None, suite_name: str, no_prompts: bool, verify_all: bool, as_json: bool) -> int:
    """Read host NAME over one SSH connection: facts, environments, running servers with the configuration that is
    really in force, the installed sources against their wheel, known faults with their lines, and, where a server
    runs, its answers to a short prompt suite.

    Exit code 0: healthy; 1: a fault was found; 3: something that matters could not be told.
    """
    from diag import probe as probing
    from diag.report import host as report
    from diag.report.text import visible
    from diag.verdict.findings import exit_code, findings

    err = console(stderr=True)
    with connected(name) as transport, err.status("connecting") as status:
        seen = probing.host(
            transport,
            python=python,
            suite_name=suite_name,
            ask=not no_prompts,
            verify_all=verify_all,
            say=lambda line: status.update(visible(line)),
        )
    found = findings(seen)
    if as_json:
        print_json(report.document(seen, found))
    else:
        out = console()
        for style, line in report.page(seen, found):
            out.print(visible(line), style=style)
    return exit_code(found)


@probe.command()
@click.argument("target")
@click.option("--python", metavar="PATH", help="The engine's interpreter on the host, instead of those found.")
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
