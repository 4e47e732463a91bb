"""`diag source`: the exact lines that run on a host."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, PYTHON, console, print_json

if TYPE_CHECKING:
    from diag.hosts.transport import Transport
    from diag.source.targets import Target


@click.command("source")
@click.argument("place", metavar="TARGET:MODULE[:SYMBOL]")
@click.option("--context", default=0, show_default=True, type=click.IntRange(0), help="Lines around what is shown.")
@click.option("--grep", metavar="RE", help="Only lines that match this regular expression.")
@click.option("--against", metavar="RECORD|VERSION", help="What differs from the installed release, or another one.")
@PYTHON
@JSON
def source(place: str, context: int, grep: str | None, against: str | None, python: str | None, as_json: bool) -> int:
    """Print the exact lines that run on a host, numbered: of a module, or of one class, method or function in it.

    TARGET is a host, a wheel file, a folder that holds the package, or sglang==VERSION. MODULE is written with dots or
    as a path inside site-packages, SYMBOL as CLASS.METHOD. One command on the host; nothing is changed there.

    \b
      diag source gpu1:sglang.srt.layers.attention.triton_backend:TritonAttnBackend.init_forward_metadata
      diag source gpu1:sglang/srt/server_args.py --grep speculative --context 2
      diag source gpu1:sglang.srt.layers.attention.triton_backend --against RECORD
    """
    from diag.report import source as report
    from diag.report.text import visible
    from diag.source import targets, view

    where = view.place(place)
    target = targets.resolve(where.target, package=where.package)
    err = console(stderr=True)
    with ExitStack() as stack:
        transport = opened(target, stack)
        status = stack.enter_context(err.status("reading"))
        seen = view.look(
            where,
            target,
            transport=transport,
            python=python,
            context=context,
            grep=grep,
            against=against,
            say=lambda line: status.update(visible(line)),
        )
    if as_json:
        print_json(report.view_document(seen))
        return 0
    err.print(visible(report.view_head(seen)), style="dim")
    out = console()
    for style, line in report.view_rows(seen):
        out.print(visible(line), style=style)
    if seen.against is not None and not seen.against.diff:
        err.print(f"the same as in {seen.against.what}")
    elif not seen.blocks:
        err.print("no line matches")
    return 0


def opened(target: Target, stack: ExitStack) -> Transport | None:
    """A connection for a host, closed with the stack; None for anything else."""
    if target.host is None:
        return None
    from diag.hosts.transport import connect

    return stack.enter_context(connect(target.host))
