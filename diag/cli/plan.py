"""`diag plan`: a plan for `diag bisect`, from the start line of the server that garbles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, connected, console, print_json

if TYPE_CHECKING:
    from diag.serving.startline import StartLine


@click.group()
def plan() -> None:
    """A plan for `diag bisect`: what varies, and how the server is started."""


@plan.command("new")
@click.argument("target", metavar="[HOST[:PORT]]", required=False)
@click.option("--command", metavar="LINE", help="The start line, where the server does not run.")
@click.option("--engine", type=click.Choice(["sglang", "vllm"]), help="Whose start line LINE is. [what it says]")
@click.option("--version", help="Of the engine; flags are spelt as it spells them. [what the server says]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this new file.")
@JSON
def new(
    target: str | None, command: str | None, engine: str | None, version: str | None, out: Path | None, as_json: bool
) -> None:
    """Put the usual suspects of the engine under suspicion: settings of the start line of the server on HOST, or of
    LINE, that public reports blame most.

    The failing end of the plan is that line as it is; the good end has every suspect off, or at the level that was to
    blame least. Read it, take out what must stay on, then: diag bisect HOST --plan FILE
    """
    from diag.errors import UsageError
    from diag.hosts.draft import write
    from diag.serving import startline
    from diag.serving.suspects import plan_text, suspects

    if (target is None) == (command is None):
        raise UsageError(
            "Name a host whose server garbles, or give its start line.",
            next="diag plan new gpu1   or: diag plan new --command 'vllm serve MODEL ...'",
        )
    line = _of_host(target) if target is not None else startline.of_words(_split(command or ""), engine)
    found = suspects(line.engine, version or line.version, line.argv, line.env)
    text = plan_text(found)
    if out is not None:
        write(out, text)
    if as_json:
        factors = [{"name": one.name, "title": one.title, "good": one.good, "bad": one.bad} for one in found.factors]
        left_out = [{"name": name, "why": why} for name, why in found.left_out]
        file = str(out) if out is not None else None
        told = {"engine": found.engine, "version": found.version, "factors": factors, "left_out": left_out}
        print_json({"schema": 1, **told, "plan": text, "file": file})
    elif out is not None:
        here = target.partition(":")[0] if target is not None else "HOST"
        click.echo(f"written: {out}, {len(found.factors)} suspects\nnext: read it, then")
        click.echo(f"  diag bisect {here} --plan ./{out} --check" if not out.is_absolute() else f"  --plan {out}")
    else:
        click.echo(text, nl=False)


def _split(command: str) -> list[str]:
    import shlex

    from diag.errors import UsageError

    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command is not a command line: {error}.", next="Quote it as one word.") from None


def _of_host(target: str) -> StartLine:
    from diag.serving import startline

    name, _, port = target.partition(":")
    with connected(name) as transport, console(stderr=True).status("reading the servers, a second or two"):
        return startline.of_server(transport, port)
