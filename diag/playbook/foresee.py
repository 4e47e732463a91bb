"""What a run would change, step by step: the host is looked at where that tells it, and nothing is done there."""

from __future__ import annotations

from dataclasses import dataclass

from diag.bisect.link import Link
from diag.errors import DiagError, HostError
from diag.hosts.inventory import Host
from diag.playbook.kind import Foreseen
from diag.playbook.load import Book, Step
from diag.playbook.stage import Change, Stage

UNTIL_RUN: Foreseen = "cannot tell until run"


@dataclass(frozen=True)
class Ahead:
    """Of one step on one host. why: "" where there is nothing to add."""

    step: Step
    foreseen: Foreseen
    why: str = ""


def foresee(book: Book, host: Host) -> list[Ahead]:
    """Raises HostError where the host has to be looked at and cannot be."""
    link = Link(host)
    told: dict[str, str] = {}
    try:
        return [_ahead(book, step, _stage(book, step, link, told)) for step in book.all_steps]
    finally:
        link.drop()


def _ahead(book: Book, step: Step, stage: Stage) -> Ahead:
    if step.when is not None:
        holds = step.when.tells(stage.names())
        if holds is False:
            return Ahead(step, "no change", f"left out: {step.when.text}")
        if holds is None and step.kind.changes:
            return Ahead(step, UNTIL_RUN, f"only when {step.when.text}")
    try:
        foreseen = step.kind.foresee(step.params, stage)
    except HostError:
        raise
    except DiagError as error:
        return Ahead(step, UNTIL_RUN, error.what)
    kept = foreseen == "change" and step.id in book.keep
    return Ahead(step, foreseen, "it is kept" if kept else "")


def _stage(book: Book, step: Step, link: Link, told: dict[str, str]) -> Stage:
    return Stage(
        host=link.host,
        connect=link.transport,
        step=step.id,
        run_id="",
        mark="",
        folder=book.path.parent,
        changes=_NoChanges(),
        results={},
        servers={},
        vars=book.values,
        fills={},
        foreseen=told,
    )


class _NoChanges:
    """Foreseeing changes nothing: whoever tries is told so."""

    def begun(self, step: str, what: str, undo: object) -> Change:
        raise ValueError(f"{step} would change {what} in a dry run")

    def ended(self, change: Change, by: str) -> None:
        raise ValueError(f"{by} would give {change.what} back in a dry run")

    def in_force(self) -> tuple[Change, ...]:
        return ()
