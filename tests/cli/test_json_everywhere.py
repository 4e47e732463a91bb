"""Every command has --json, a help text, and a first line that says what it is for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest

from diag.cli import COMMANDS

# What they print is a program's already, or never ends.
WITHOUT = {"completion", "lab serve", "playbook schema"}


def _leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _leaves(below, f"{path} {name}")
    else:
        yield path, command


LEAVES = [
    leaf
    for name, (where, _) in COMMANDS.items()
    for leaf in _leaves(getattr(importlib.import_module(where.split(":")[0]), where.split(":")[1]), name)
]


def test_there_are_commands() -> None:
    assert len(LEAVES) > 30


def test_every_command_has_json() -> None:
    lacking = {path for path, command in LEAVES if "--json" not in {o for p in command.params for o in p.opts}}
    assert lacking == WITHOUT


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_command_and_option_says_what_it_is_for(path: str, command: click.Command) -> None:
    assert command.help
    assert len(command.get_short_help_str(200)) > 15
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert [p.name for p in options if not p.help and not isinstance(p.type, click.Choice)] == []
