"""`diag playbook`: a diagnosis that is written down: check it, see what it would do, run it, go on with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from diag.cli.bisect import set_values
from diag.cli.common import JSON, LIMIT, console, print_json
from diag.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from diag.journal import Journal
    from diag.playbook.ended import Ended
    from diag.playbook.kind import Result
    from diag.playbook.load import Book, Step
    from diag.playbook.past import Past
    from diag.playbook.run import Asked
    from diag.playbook.stage import Change

_SET = click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A variable of the playbook.")


@click.group("playbook")
def playbook() -> None:
    """Playbooks: a diagnosis that is written down. What a run changes on a host, it gives back."""


@playbook.command("list")
@JSON
def list_playbooks(as_json: bool) -> None:
    """The playbooks that come with diag."""
    from diag.playbook import load
    from diag.report import playbook as report

    books = [load.load(path.stem) for path in load.shipped()]
    if as_json:
        print_json({"schema": report.SCHEMA, "playbooks": [report.book_document(book) for book in books]})
        return
    width = max(len(book.name) for book in books)
    for book in books:
        click.echo(f"{book.name:{width}}  {book.title}{'' if book.changes else '  (changes nothing)'}")


@playbook.command()
@click.argument("name", metavar="PLAYBOOK")
@_SET
@JSON
def show(name: str, sets: tuple[str, ...], as_json: bool) -> None:
    """What PLAYBOOK, a shipped one or a file, does: its variables and its steps."""
    from diag.playbook import load
    from diag.report import playbook as report

    book = load.load(name, set_values(sets))
    if as_json:
        print_json(report.book_document(book))
    else:
        _print(report.book_page(book))


@playbook.command()
@click.argument("name", metavar="PLAYBOOK")
@_SET
@JSON
def check(name: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Find every fault of PLAYBOOK at once, each with its line and column. Connects to nothing.

    Exit code 0: it can be run; 2: it cannot.
    """
    from diag.playbook import load
    from diag.report import playbook as report

    book = load.load(name, set_values(sets))
    if as_json:
        print_json(report.book_document(book))
        return
    click.echo(f"{book.path}: {len(book.all_steps)} steps, nothing wrong")
    if book.unset:
        click.echo(f"has to be given: {', '.join(book.unset)}; steps that use it are checked then", err=True)


@playbook.command()
def schema() -> None:
    """JSON Schema of a playbook, for editors."""
    from diag.playbook.schema import json_schema

    print_json(json_schema())


@playbook.command()
@click.argument("name", metavar="PLAYBOOK")
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@_SET
@LIMIT
@click.option("--dry-run", is_flag=True, help="A line a step: change, no change, or cannot tell until run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def run(
    name: str, hosts: tuple[str, ...], sets: tuple[str, ...], limit: str | None, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Run PLAYBOOK, a shipped one or a file, on HOST, or on every host of a group.

    It is checked whole before the first connection. Every step is written down before it begins, every change before
    it is made; on a failure, on Ctrl-C, when the link is lost, and at the end, what was changed is given back in
    reverse order, but for what the playbook keeps.

    A playbook that changes nothing is run on all hosts at the same time; any other on one host after the other, until
    it fails on one.

    Exit code 0: done, nothing wrong; 1: a fault was found, or an assertion does not hold; 3: inconclusive; 4: a host
    could not be reached; 5: a step could not be done.
    """
    from diag.playbook import run as running

    asked = running.new(name, hosts, limit, set_values(sets))
    if dry_run:
        return _dry_run(asked, as_json)
    if asked.book.changes and not yes and not as_json and sys.stdin.isatty():
        _ask(asked)
    return _run(asked, as_json)


@playbook.command()
@click.argument("run_id", metavar="RUN")
@_SET
@click.option("--undo", is_flag=True, help="Only give back what the run changed, also what it was to keep.")
@JSON
def resume(run_id: str, sets: tuple[str, ...], undo: bool, as_json: bool) -> int:
    """Go on with RUN, which was interrupted, killed or cut off: what is done is not done again.

    What was under way is given back first, and begun anew. Refused, with the difference, when the playbook is not what
    it was; --undo works all the same.
    """
    from diag.playbook import past as pasts
    from diag.playbook import run as running

    if undo:
        return _undo(pasts.load(run_id), as_json)
    asked = running.resumed(run_id, set_values(sets))
    if asked.earlier is not None and asked.earlier.finished is not None:
        click.echo(f"Run {run_id} has ended; this is how.", err=True)
        return _tell(running.as_it_ended(asked.earlier, asked.book), as_json)
    return _run(asked, as_json)


def _run(asked: Asked, as_json: bool) -> int:
    with asked.journal() as journal, _Show(console(stderr=True), asked.book, len(asked.hosts)) as show:
        try:
            ended = asked.run(journal, show)
        except KeyboardInterrupt:
            raise _interrupted(asked.book, journal) from None
    return _tell(ended, as_json)


def _interrupted(book: Book, journal: Journal) -> Interrupted:
    from diag.playbook import past as pasts

    rest = [change.what for _, change in pasts.load(journal.run_id).outstanding if change.step not in book.keep]
    back = "What was changed has been given back, but for what the playbook keeps."
    return Interrupted(
        f"Interrupted. {back if not rest else 'Not everything could be given back.'}",
        details=[f"not given back: {what}" for what in rest],
        next=f"Go on: diag playbook resume {journal.run_id}   (what was learnt: {journal.path})",
    )


def _tell(ended: Ended, as_json: bool) -> int:
    from diag.playbook.verdict import of_run
    from diag.report import playbook as report

    if as_json:
        print_json(report.document(ended))
    else:
        _print(report.page(ended))
    return of_run(ended).exit_code


def _dry_run(asked: Asked, as_json: bool) -> int:
    from diag.playbook.foresee import foresee
    from diag.report import playbook as report

    ahead = {host.name: foresee(asked.book, host) for host in asked.hosts}
    if as_json:
        print_json(report.ahead_document(asked.book, ahead))
    else:
        _print(report.ahead_page(asked.book, ahead))
    return 0


def _undo(earlier: Past, as_json: bool) -> int:
    from diag.journal import Journal
    from diag.playbook import run as running

    changes = [{"host": host, "id": change.id, "what": change.what} for host, change in earlier.outstanding]
    with Journal.reopen(earlier.folder, earlier.run_id) as journal, _Show(console(stderr=True), None, 1) as show:
        ends = running.give_back(earlier, journal, show)
    left = {change.id: why for end in ends if end.end is not None for change, why in end.end.left}
    if as_json:
        told = [
            {**each, "given_back": each["id"] not in left, "why": left.get(str(each["id"]), "")} for each in changes
        ]
        print_json({"schema": 1, "run": earlier.run_id, "changes": told})
    elif not changes:
        click.echo("Nothing to do: everything was given back already.")
    else:
        click.echo(f"Given back: {len(changes) - len(left)} of {len(changes)} changes.")
        for why in left.values():
            click.echo(f"not given back: {why}", err=True)
    return 5 if left else 0


def _ask(asked: Asked) -> None:
    from diag.report.text import visible

    book = asked.book
    click.echo(f"{book.name}: {book.title}", err=True)
    for step in book.all_steps:
        if step.kind.changes:
            kept = "; kept" if step.id in book.keep else ""
            click.echo(visible(f"  {step.id}: {step.kind.says}{kept}"), err=True)
    click.confirm(visible(f"Run it on {', '.join(host.name for host in asked.hosts)}?"), abort=True, err=True)


def _print(rows: Iterable[tuple[str, str]]) -> None:
    from diag.report.text import visible

    out = console()
    for style, line in rows:
        out.print(visible(line), style=style)


class _Show:
    """On standard error: a line when a step begins and ends, and a moving last line on a terminal."""

    def __init__(self, out: Console, book: Book | None, hosts: int) -> None:
        self._out, self._several = out, hosts > 1
        self._numbers = {step.id: number for number, step in enumerate(book.all_steps, 1)} if book is not None else {}
        self._status = out.status("connecting")

    def __enter__(self) -> _Show:
        if self._out.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def _line(self, host: str, text: str, style: str = "") -> None:
        from diag.report.text import one_line

        self._out.print(one_line(f"{host}: {text}" if self._several else text, 200), style=style)

    def _of(self, step: Step) -> str:
        return f"step {self._numbers.get(step.id, 0)} of {len(self._numbers)} · {step.id} ({step.kind.name})"

    def step_starts(self, host: str, step: Step) -> None:
        self._line(host, self._of(step))

    def says(self, host: str, step: Step, line: str) -> None:
        from diag.report.text import one_line

        self._status.update(one_line(f"{self._of(step)} · {line}", 110))

    def step_ends(self, host: str, step: Step, state: str, result: Result | None, why: str) -> None:
        styles = {"done": "green", "failed": "red", "skipped": "dim"}
        self._line(host, f"    {state}: {result.summary if result is not None else why}", styles.get(state, ""))

    def gives_back(self, host: str, change: Change) -> None:
        self._line(host, f"    giving back: {change.what}", "yellow")
