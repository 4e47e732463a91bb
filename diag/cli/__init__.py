"""The command line. One file a command group; each command parses options, calls one function, renders its answer.

Groups are imported when they are used: `diag --help` must answer at once, so nothing here or at the top of a
command file may import paramiko, numpy, libcst or pydantic.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

import click

from diag import __version__
from diag.errors import DiagError, Interrupted

COMPLETING = "_DIAG_COMPLETE"
"""Set by the shell's function when it asks for completions (`diag completion`)."""

# name -> (module:attribute, help line shown by `diag --help` without importing the module)
COMMANDS: dict[str, tuple[str, str]] = {
    "probe": ("diag.cli.probe:probe", "What runs on a host, is it what it says it is, is it healthy?"),
    "bisect": ("diag.cli.bisect:bisect", "Which setting, or combination of settings, breaks the output?"),
    "playbook": (
        "diag.cli.playbook:playbook",
        "A diagnosis that is written down: check, run, go on; it undoes itself.",
    ),
    "runs": ("diag.cli.runs:runs", "All that was run so far: list, show, compare, export, remove."),
    "report": ("diag.cli.report:report", "What a run found: to read, as HTML, as an issue, for a CI."),
    "fix": ("diag.cli.fix:fix", "Mend the installed source, and give it back as it was."),
    "source": ("diag.cli.source:source", "The exact lines that run on a host, numbered."),
    "server": ("diag.cli.server:server", "Servers on a host: list, read their log, stop them with proof."),
    "host": ("diag.cli.host:host", "The hosts diag knows, whether they can be reached, whom to trust."),
    "lab": ("diag.cli.lab:lab", "A real host in small, on this machine, to try everything on."),
    "plan": ("diag.cli.plan:plan", "A plan for `diag bisect`, from the start line of the server that garbles."),
    "init": ("diag.cli.init:init", "Write a first inventory, from your SSH configuration and the hosts."),
    "completion": ("diag.cli.completion:completion", "The completion script for bash, zsh or fish."),
    "explain": ("diag.cli.explain:explain", "What a finding, a fault or an error means, and what to do."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use; their help lines are known without that."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if COMPLETING in os.environ:
            from diag.cli.completion import know_values

            know_values(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="diag %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Tell what is done on which host, and why; anywhere on the line.")
def cli(verbose: bool) -> None:
    """Find, prove and mend what makes an LLM server write garbage, over SSH.

    \b
    First steps:   diag lab up          a host to try everything on
                   diag probe host lab  what runs there, and what is wrong with it
                   diag bisect lab --plan ddtree-garble
                   diag fix apply lab mask-indptr

    Exit codes: 0 healthy or done · 1 a fault was found · 2 usage · 3 inconclusive ·
    4 host unreachable or refused · 5 a precondition failed, nothing changed · 130 interrupted.
    """


def main(argv: list[str] | None = None) -> None:
    """The entry point: every expected failure becomes one message and the exit code of its class."""
    arguments = sys.argv[1:] if argv is None else argv
    # A TERM ends a command as Ctrl-C does: what it started on a host is stopped first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; prints, never raises for expected failures."""
    as_json = "--json" in arguments
    try:
        result: Any = cli.main(_heard(arguments), prog_name="diag", standalone_mode=False, color=_color())
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        if as_json:
            ctx = getattr(error, "ctx", None)
            where = ctx.command_path if ctx is not None else "diag"
            help_line = f"See: {where} --help"
            what = error.format_message()
            _print_json({"kind": "usage", "what": what, "next": help_line, "details": [], "exit_code": 2})
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return _fail(Interrupted("Interrupted."), as_json)
    except DiagError as error:
        return _fail(error, as_json)
    except BrokenPipeError:
        # The reader of our output has gone (`diag ... | head`): nothing left to say, and to nobody.
        sys.stderr.close()
        return 0


def _color() -> bool | None:
    """None: as the terminal is. https://no-color.org: any value that is not empty switches it off."""
    return False if os.environ.get("NO_COLOR") else None


def _heard(arguments: list[str]) -> list[str]:
    """The line without -v, which counts wherever it stands before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [word for word in arguments[:end] if word not in ("-v", "--verbose")]
    if len(before) < end:
        from diag.cli.common import tell

        tell()
    return [*before, *arguments[end:]]


def _fail(error: DiagError, as_json: bool) -> int:
    from diag.report.text import visible

    if as_json:
        _print_json(error.to_json())
    click.echo(click.style("error: ", fg="red", bold=True, reset=True) + visible(str(error)), err=True, color=_color())
    return error.exit_code


def _print_json(error: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema": 1, "error": error}, indent=2))
