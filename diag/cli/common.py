"""What commands share: the connection to a named host, options, the console."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from diag.hosts.transport import Transport

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
LIMIT = click.option("--limit", metavar="NAMES", help="Of a group: only these names or patterns, separated by commas.")
PYTHON = click.option("--python", metavar="PATH", help="The engine's interpreter on the host, instead of those found.")


@contextmanager
def connected(name: str) -> Iterator[Transport]:
    """An open connection to a host of the inventory."""
    from diag.hosts import inventory
    from diag.hosts.transport import connect

    host = inventory.load().get(name)
    with waiting(f"connecting to {name}, a second or two"):
        opened = connect(host)
    with opened as transport:
        yield transport


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a terminal what is awaited, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from diag.report.text import visible

    with console(stderr=True).status(visible(what)):
        yield


def tell() -> None:
    """From now on, what is done on which host goes to standard error."""
    log = logging.getLogger("diag")
    if not log.handlers:
        log.addHandler(_Told())
    log.setLevel(logging.INFO)


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from diag.report.text import visible

        click.echo(click.style(visible(record.getMessage()), dim=True), err=True)


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done, on a terminal; where there is none, its library is not loaded either."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from diag.report.text import visible

    with console(stderr=True).status(visible(first)) as status:
        yield lambda line: status.update(visible(line))


def console(*, stderr: bool = False) -> Console:
    """Remote text goes through `visible` and is never read as markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False, soft_wrap=True, stderr=stderr)


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))
