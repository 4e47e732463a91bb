"""`diag probe kernels`: is the installed attention kernel right?"""

from __future__ import annotations

import click

from diag.cli.common import JSON, connected, console, print_json


@click.command("kernels")
@click.argument("name")
@click.option("--quick", is_flag=True, help="A small grid of shapes.")
@click.option("--gpu", type=click.IntRange(0), metavar="N", help="Take GPU N, even if it is in use.")
@click.option("--cpu", is_flag=True, help="Take no GPU: Triton's interpreter, a small grid.")
@click.option("--python", metavar="PATH", help="The engine's interpreter on the host, instead of those found.")
@JSON
def kernels(name: str, quick: bool, gpu: int | None, cpu: bool, python: str | None, as_json: bool) -> int:
    """Run the attention kernel that is installed on host NAME, in the engine's own environment, and compare every row
    with plain torch in float64: shapes of batch, draft tree, prefix, heads and types, on a GPU that nobody uses.
    Then the same with the offsets that the installed backend computes for draft trees that are wider or narrower than
    the server's count: which rows go wrong, and through which of them.

    Without a free GPU a smaller grid runs in Triton's interpreter. No server is started or disturbed, nothing is
    changed. The whole grid takes about half a minute on a GPU.

    Exit code 0: right; 1: wrong; 3: could not be told.
    """
    from diag import kernel_check
    from diag.errors import UsageError
    from diag.report import kernels as report
    from diag.report.text import visible

    if cpu and gpu is not None:
        raise UsageError("--cpu and --gpu say different things.", next="Give one of them.")
    err = console(stderr=True)
    with connected(name) as transport, err.status("connecting") as status:
        seen = kernel_check.check(
            transport, python=python, quick=quick, gpu=gpu, cpu=cpu, say=lambda line: status.update(visible(line))
        )
    if as_json:
        print_json(report.document(seen))
        return seen.exit_code
    out = console()
    for style, line in report.page(seen):
        out.print(visible(line), style=style)
    return seen.exit_code
