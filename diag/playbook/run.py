"""A whole run: its hosts, its journal, its verdict. A new one, or one to go on with.

What only reads is done on all hosts at the same time; what changes something on one host after the other, and where it
fails on one, the others are not begun.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from diag import bundle
from diag.bisect.link import Link
from diag.errors import DiagError, HostError, PreconditionFailed, UsageError
from diag.hosts import fleet, inventory
from diag.hosts.holding import held
from diag.hosts.inventory import Host
from diag.hosts.ssh import ParamikoTransport
from diag.hosts.transport import connect
from diag.journal import Journal
from diag.playbook import load as books
from diag.playbook import past as pasts
from diag.playbook import undo
from diag.playbook import verdict as verdicts
from diag.playbook.course import Course, End, Listener
from diag.playbook.ended import Ended, HostEnd
from diag.playbook.load import Book
from diag.playbook.past import PROGRAM, RESUMED, HostPast, Past
from diag.playbook.record import HostRecord, Lines
from diag.playbook.stage import Change

MAX_DIFF_LINES = 30


@dataclass(frozen=True)
class Asked:
    """Checked, and ready to run. earlier: the run that this one goes on with."""

    book: Book
    hosts: tuple[Host, ...]
    earlier: Past | None = None

    def journal(self) -> Journal:
        if self.earlier is not None:
            return Journal.reopen(self.earlier.folder, self.earlier.run_id)
        return Journal.create()

    @property
    def pasts(self) -> dict[str, HostPast]:
        earlier = self.earlier.hosts if self.earlier is not None else {}
        return {host.name: earlier.get(host.name, HostPast()) for host in self.hosts}

    def run(self, journal: Journal, listener: Listener) -> Ended:
        """Raises KeyboardInterrupt or Interrupted, and HostError where there is one host alone: then everything is
        given back that could be, and the journal has no verdict, so that the run can be gone on with."""
        lines = Lines(journal)
        lines.write("start" if self.earlier is None else "resumed", run_id=journal.run_id, **self._start())
        work = partial(self._one, lines, listener)
        try:
            hosts = self._together(work) if not self.book.changes else self._in_turn(work)
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, DiagError):
                lines.write("interrupted", why=str(error) or "interrupted")
            raise
        ended = Ended(journal.run_id, self.book, hosts, str(journal.path))
        verdict = verdicts.of_run(ended)
        lines.write("verdict", verdict=verdict.word, why=verdict.why, answer=[verdict.why], exit_code=verdict.exit_code)
        return ended

    def _one(
        self, lines: Lines, listener: Listener, past: HostPast, host: Host, outer: ParamikoTransport | None = None
    ) -> HostEnd:
        link = Link(host, partial(connect, outer=outer))
        several = len(self.hosts) > 1
        run_id = lines.journal.run_id

        def mark(step: str) -> str:
            return f"{run_id}.{step}.{host.name}" if several else f"{run_id}.{step}"

        record = HostRecord(lines, host.name, past)
        return HostEnd(host.name, past, Course(self.book, link, record, run_id, mark, listener).go())

    def _together(self, work: Callable[..., HostEnd]) -> tuple[HostEnd, ...]:
        known = self.pasts

        def one(host: Host, outer: ParamikoTransport | None) -> HostEnd:
            return work(known[host.name], host, outer)

        results = fleet.each(self.hosts, one)
        if len(results) == 1 and results[0].error is not None:
            raise results[0].error
        return tuple(r.value or HostEnd(r.host.name, known[r.host.name], error=r.error) for r in results)

    def _in_turn(self, work: Callable[..., HostEnd]) -> tuple[HostEnd, ...]:
        known, done = self.pasts, []
        for host in self.hosts:
            end = work(known[host.name], host)
            done.append(end)
            if end.end is not None and (end.end.failed is not None or end.end.left):
                break
        begun = {end.host for end in done}
        why = f"not begun, because it failed on {done[-1].host}"
        error = PreconditionFailed(why, next="See to that one first.")
        return (
            *done,
            *(HostEnd(host.name, known[host.name], error=error) for host in self.hosts if host.name not in begun),
        )

    def _start(self) -> dict[str, Any]:
        """What another session must know to go on. Secret values are left out: they are asked for again."""
        is_secret = bundle.load("probes._proc").is_secret
        values = self.book.values
        return {
            "program": PROGRAM,
            "name": self.book.name,
            "title": self.book.title,
            "host": ", ".join(host.name for host in self.hosts),
            "hosts": [host.name for host in self.hosts],
            "playbook": self.book.text,
            "playbook_path": str(self.book.path.resolve()),
            "content": self.book.content,
            "vars": {name: value for name, value in values.items() if not is_secret(name, str(value))},
        }


def new(name: str, hosts: Sequence[str], limit: str | None, given: Mapping[str, str]) -> Asked:
    """Raises UsageError or PlanError for whatever is wrong; nothing has been connected to."""
    book = books.load(name, given)
    books.refuse_unset(book)
    return Asked(book, _chosen(book, hosts, limit))


def _chosen(book: Book, names: Sequence[str], limit: str | None) -> tuple[Host, ...]:
    wanted = list(names) or ([book.hosts.default] if book.hosts.default is not None else [])
    if not wanted:
        raise UsageError(f"Which host? The playbook {book.name} names none.", next="Name one; see: diag host list")
    known = inventory.load()
    chosen = tuple({host.name: host for name in wanted for host in known.select(name, limit)}.values())
    most = book.hosts.most
    if most is not None and len(chosen) > most:
        raise UsageError(
            f"The playbook {book.name} is for {most} host{'s' if most > 1 else ''} at a time, not for {len(chosen)}.",
            next="Name fewer, or leave some out with --limit.",
        )
    return chosen


def resumed(run_id: str, given: Mapping[str, str]) -> Asked:
    """The run as it was asked for. Raises what `new` raises, and PreconditionFailed when the playbook has changed."""
    earlier = pasts.load(run_id)
    began = earlier.start
    kept = {name: _typed_again(value) for name, value in began["vars"].items()}
    for name, value in given.items():
        if kept.get(name, value) != value:
            raise UsageError(f"Run {run_id} has {name}={kept[name]}, not {value}.", next="Leave it out.")
    path = str(began["playbook_path"])
    declared = books.load(path).vars  # one that is not there any more is a change of the playbook, and said as that
    book = books.load(path, {name: value for name, value in {**kept, **given}.items() if name in declared})
    if book.content != began["content"]:
        diff = difflib.unified_diff(
            str(began["playbook"]).splitlines(), book.text.splitlines(), "then", "now", lineterm="", n=1
        )
        raise PreconditionFailed(
            f"The playbook is not the one that run {run_id} began with.",
            next=f"Put it back as it was, begin a new run, or give back what was changed: "
            f"diag playbook resume {run_id} --undo",
            details=list(diff)[:MAX_DIFF_LINES],
        )
    books.refuse_unset(book)
    known = inventory.load()
    return Asked(book, tuple(known.get(name) for name in began["hosts"]), earlier)


def _typed_again(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def give_back(earlier: Past, journal: Journal, listener: Listener) -> list[HostEnd]:
    """Only that: everything that the run changed and did not give back, of every host, in reverse order. Raises
    HostError; what cannot be given back for another reason is in the end's `left`."""
    lines, known, ends = Lines(journal), inventory.load(), []
    lines.write("resumed", run_id=journal.run_id, undo=True)
    for name, past in earlier.hosts.items():
        record = HostRecord(lines, name, past)
        left = _given_back(known.get(name), record, earlier.run_id, listener) if past.in_force else ()
        ends.append(HostEnd(name, past, End(left=left)))
    return ends


def _given_back(host: Host, record: HostRecord, run_id: str, listener: Listener) -> tuple[tuple[Change, str], ...]:
    """What could not be, and why."""
    left = []
    with connect(host) as transport, held(transport, f"diag playbook, run {run_id}", run_id):
        for change in reversed(record.in_force()):
            listener.gives_back(host.name, change)
            try:
                undo.undo(transport, change)
            except HostError:
                raise
            except DiagError as error:
                left.append((change, error.what))
            else:
                record.ended(change, RESUMED)
    return tuple(left)


def as_it_ended(earlier: Past, book: Book) -> Ended:
    """A run that has its verdict, from its journal alone."""
    hosts = tuple(HostEnd(name, past, _end_of(book, past)) for name, past in earlier.hosts.items())
    return Ended(earlier.run_id, book, hosts, str(earlier.folder / "journal.jsonl"))


def _end_of(book: Book, past: HostPast) -> End:
    final = (step.id for step in book.all_steps if step.id in past.failed and step.on_failure != "continue")
    rest = [change for change in past.in_force.values() if change.step not in book.keep]
    return End(next(final, None), tuple((change, "it is in the journal as outstanding") for change in rest))
