"""The way of one host through a playbook: step by step, each written down, and everything given back at the end.

Whatever ends it, what was changed is given back in reverse order, but for what the playbook keeps. Where the link is
lost it is made anew for that; where it cannot be, the journal says what is outstanding, and `resume` finishes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from diag.bisect.expr import CannotTell
from diag.bisect.link import Link
from diag.errors import DiagError, HostError, Interrupted, PreconditionFailed
from diag.hosts.holding import held
from diag.playbook import undo
from diag.playbook.kind import Result
from diag.playbook.load import Book, Step
from diag.playbook.past import END, FAILURE, INTERRUPTED, RESUMED
from diag.playbook.record import HostRecord
from diag.playbook.stage import Change, Held, Stage
from diag.playbook.steps.servers import STOP
from diag.playbook.steps.words import AssertionFalse

if TYPE_CHECKING:
    from diag.hosts.transport import Transport

RETRIES = 3
SETTLE_S = (1.0, 2.0, 4.0)
"""Waits of a step that was cut off in an earlier session: a program that it had sent may still be at work there."""
RETRY_WAIT_S = 2.0
"""Before a lost link is made again to give things back; longer each time."""


class Listener(Protocol):
    """Told what happens while it happens; from any thread, where several hosts are read at once."""

    def step_starts(self, host: str, step: Step) -> None: ...

    def says(self, host: str, step: Step, line: str) -> None: ...

    def step_ends(self, host: str, step: Step, state: str, result: Result | None, why: str) -> None: ...

    def gives_back(self, host: str, change: Change) -> None: ...


@dataclass(frozen=True)
class End:
    """failed: the step that ended it before its last one. left: what could not be given back, and why."""

    failed: str | None = None
    left: tuple[tuple[Change, str], ...] = ()


@dataclass
class Course:
    """marks: what a step's servers are marked with on this host. left: what could not be given back, and why."""

    book: Book
    link: Link
    record: HostRecord
    run_id: str
    marks: Callable[[str], str]
    listener: Listener
    servers: dict[str, Held] = field(default_factory=dict)
    left: dict[str, tuple[Change, str]] = field(default_factory=dict)
    _lock: tuple[Transport, contextlib.ExitStack] | None = None

    @property
    def host(self) -> str:
        return self.link.host.name

    def go(self) -> End:
        """To its end. Raises HostError where the host cannot be reached any more, KeyboardInterrupt, Interrupted where
        the person did not wait; in each case everything is given back that can be, and the journal has the rest."""
        try:
            failed = self._go()
        except (KeyboardInterrupt, Interrupted):  # the latter from a bisection, which says how to go on with it alone
            self._interrupted()
            raise KeyboardInterrupt from None
        except HostError as error:
            self._lost(error)
            raise
        finally:
            self._forget_servers()
            self._unlock()
            self.link.drop()
        return End(failed.id if failed is not None else None, tuple(self.left.values()))

    def _go(self) -> Step | None:
        if self.book.changes:
            self._connect()  # the lock first: nothing has happened yet if somebody else is at work
        self._take_back_the_unfinished()
        failed = self._steps(self.book.steps)
        self._give_back(
            END if failed is None else FAILURE, all_of_it=failed is not None and failed.on_failure == "undo"
        )
        failed_last = self._steps(self.book.finally_, to_the_end=True)
        self._give_back(END)
        return failed or failed_last

    # steps

    def _steps(self, steps: Sequence[Step], *, to_the_end: bool = False) -> Step | None:
        """The first that failed and is not to be passed over. to_the_end: the others are done all the same."""
        first: Step | None = None
        for step in steps:
            if self.record.past.state(step.id) in ("done", "skipped"):
                continue
            if step.id not in self.record.past.failed:
                self._step(step)
            if step.id in self.record.past.failed and step.on_failure != "continue":
                first = first or step
                if not to_the_end:
                    return first
        return first

    def _step(self, step: Step) -> None:
        began = time.monotonic()
        stage = self._stage(step)
        why = self._left_out(step, stage)
        if why is not None:
            self.record.step(step.id, step.kind.name, "skipped", why=why)
            self.listener.step_ends(self.host, step, "skipped", None, why)
            return
        cut_off = self.record.past.state(step.id) != ""
        self.record.step(step.id, step.kind.name, "begun")
        self.listener.step_starts(self.host, step)
        state, reason = "done", ""
        try:
            result = self._act(step, stage, SETTLE_S if cut_off else ())
        except AssertionFalse as error:
            state, result = "failed", error.result
        except (HostError, Interrupted) as error:
            self.record.step(step.id, step.kind.name, "failed", seconds=time.monotonic() - began, why=error.what)
            self.listener.step_ends(self.host, step, "failed", None, error.what)
            raise
        except DiagError as error:
            state, reason = "failed", str(error)
            result = Result(error.what, {"exit_code": error.exit_code}, error.exit_code, said=_told(error))
        self.record.result(step.id, step.kind.name, state, result, time.monotonic() - began, reason)
        self.listener.step_ends(self.host, step, state, result, reason)

    def _act(self, step: Step, stage: Stage, waits_s: Sequence[float]) -> Result:
        for wait_s in waits_s:
            try:
                return step.kind.act(step.params, stage)
            except PreconditionFailed:
                time.sleep(wait_s)
        return step.kind.act(step.params, stage)

    def _left_out(self, step: Step, stage: Stage) -> str | None:
        """Why the step is not done; None where it is."""
        if step.when is None:
            return None
        try:
            holds = step.when.holds(stage.names())
        except CannotTell as error:
            return f"{step.when.text}: cannot be told ({error.name})"
        return None if holds else f"{step.when.text}: does not hold"

    def _stage(self, step: Step) -> Stage:
        values = self.book.values
        return Stage(
            host=self.link.host,
            connect=self._connect,
            step=step.id,
            run_id=self.run_id,
            mark=self.marks(step.id),
            folder=self.book.path.parent,
            changes=self.record,
            results={**self.record.past.results, **self.record.past.failed},
            servers=self.servers,
            vars=values,
            fills={name: str(value) for name, value in values.items() if isinstance(value, str)},
            say=lambda line: self.listener.says(self.host, step, line),
        )

    # giving back

    def _take_back_the_unfinished(self) -> None:
        """What an earlier session left: a step that was under way is done again from its beginning, and a server did
        not outlive that session. A fix that was made stays."""
        for wait_s in (*SETTLE_S, 0.0):
            for change in reversed(self.record.in_force()):
                if self.record.past.state(change.step) != "done" or change.undo["do"] == STOP:
                    self._undo(change, RESUMED)
            if not self.left:
                return
            time.sleep(wait_s)

    def _give_back(self, by: str, *, all_of_it: bool = False) -> None:
        for change in reversed(self.record.in_force()):
            if all_of_it or change.step not in self.book.keep:
                self._undo(change, by)

    def _undo(self, change: Change, by: str) -> None:
        """Raises HostError; what cannot be given back for another reason is said, and the rest goes on."""
        self.listener.gives_back(self.host, change)
        held_one = self._held(change)
        try:
            if held_one is not None:
                held_one.closing.close()
            else:
                undo.undo(self._connect(), change)
        except HostError:
            raise
        except DiagError as error:
            self.left[change.id] = change, error.what
            return
        self.left.pop(change.id, None)
        self.record.ended(change, by)

    def _held(self, change: Change) -> Held | None:
        step = next((step for step, one in self.servers.items() if one.change.id == change.id), None)
        return self.servers.pop(step) if step is not None else None

    def _interrupted(self) -> None:
        """Raises Interrupted where the person does not wait for it."""
        try:
            self._again(INTERRUPTED)
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted twice: not everything on {self.host} was given back.",
                details=[change.what for change in self.record.in_force()],
                next=f"Give it back: diag playbook resume {self.run_id} --undo",
            ) from None

    def _lost(self, error: HostError) -> None:
        self._again(INTERRUPTED)
        rest = [change.what for change in self.record.in_force() if change.step not in self.book.keep]
        if rest:
            error.details = [*error.details, *(f"not given back: {what}" for what in rest)]
        error.next = f"Go on when the host answers: diag playbook resume {self.run_id}"

    def _again(self, by: str) -> None:
        """Give everything back over a link that is made anew where it has to be; what stays is in the journal."""
        for number in range(RETRIES):
            try:
                self._give_back(by)
            except HostError:
                self._forget_servers()
                self._unlock()
                self.link.drop()
                time.sleep(RETRY_WAIT_S * (number + 1))
            except DiagError:  # somebody else has the lock by now
                return
            else:
                return

    # the host

    def _connect(self) -> Transport:
        """With the host's lock, which goes with the connection; only where something may be changed."""
        transport = self.link.transport()
        if self.book.changes and (self._lock is None or self._lock[0] is not transport):
            self._unlock()
            closing = contextlib.ExitStack()
            closing.enter_context(held(transport, f"diag playbook {self.book.name}, run {self.run_id}", self.run_id))
            self._lock = transport, closing
        return transport

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(DiagError):
                lock[1].close()

    def _forget_servers(self) -> None:
        """Those of a link that is lost end there by themselves; the journal has them until that is seen to."""
        servers = list(self.servers.values())
        self.servers.clear()
        for one in servers:
            with contextlib.suppress(DiagError):
                one.closing.close()


def _told(error: DiagError) -> tuple[str, ...]:
    return (*error.details, *((f"→ {error.next}",) if error.next else ()))
