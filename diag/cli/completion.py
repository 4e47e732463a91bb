"""`diag completion`: what a shell needs to complete commands, options, hosts, plans and fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from diag.cli import COMPLETING

INSTALL = {
    "bash": 'eval "$(diag completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(diag completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "diag completion fish > ~/.config/fish/completions/diag.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(INSTALL)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  eval "$(diag completion bash)"   in ~/.bashrc
    zsh   eval "$(diag completion zsh)"    in ~/.zshrc, after compinit
    fish  diag completion fish > ~/.config/fish/completions/diag.fish
    """
    script = get_completion_class(shell)
    if script is not None:
        made = script(click.Command("diag"), {}, "diag", COMPLETING)
        click.echo(made.source_template % made.source_vars())


def know_values(command: click.Command) -> click.Command:
    """Give the arguments and options of a command, and of its subcommands, the values that this machine knows."""
    for parameter in command.params:
        values = _VALUES.get(_meaning(command, parameter))
        if values is not None:
            parameter._custom_shell_complete = _completing(values)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        know_values(below)
    return command


def _meaning(command: click.Command, parameter: click.Parameter) -> str:
    """What a parameter names. Hosts are called so in most commands; explain and fix have words of their own."""
    name, metavar = str(parameter.name), str(parameter.metavar or "")
    if isinstance(parameter, click.Option):
        return {"plan_name": "plan", "suite_name": "suite", "run_id": "run"}.get(name, "")
    if name in ("fix_id", "wanted"):
        return name
    if metavar in ("PLAYBOOK", "RUN") or name == "run":
        return "run" if "RUN" in (metavar, name.upper()) else "playbook"
    return "host" if name in ("name", "names", "hosts", "target") and metavar != "SERVER" else ""


def _completing(values: Callable[[], Iterator[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        try:
            return [CompletionItem(value) for value in values() if value.startswith(incomplete)]
        except Exception:  # a broken inventory must not break the shell's line; the command itself will say it
            return []

    return complete


def _hosts() -> Iterator[str]:
    from diag.hosts import inventory

    found = inventory.load()
    yield from (*found.hosts, *found.groups, inventory.ALL, inventory.LOCAL)


def _shipped(folder: str) -> Callable[[], Iterator[str]]:
    def names() -> Iterator[str]:
        from diag import bundle

        top, _, below = folder.partition("/")
        yield from sorted(path.stem for path in (bundle.folder(top) / below).glob("*.yaml"))

    return names


def _fixes() -> Iterator[str]:
    from diag.fixes.catalogue import FIXES

    yield from (fix.id for fix in FIXES)


def _explained() -> Iterator[str]:
    from diag.explain.index import ENTRIES

    yield from (entry.id for entry in ENTRIES)


def _runs() -> Iterator[str]:
    from diag import paths

    yield from sorted((path.stem for path in (paths.state_dir() / "runs").glob("*.jsonl")), reverse=True)


_VALUES: dict[str, Callable[[], Iterator[str]]] = {
    "host": _hosts,
    "plan": _shipped("playbooks/plans"),
    "playbook": _shipped("playbooks"),
    "suite": _shipped("probes/prompts"),
    "fix_id": _fixes,
    "wanted": _explained,
    "run": _runs,
}
