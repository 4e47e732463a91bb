"""What a run came to, as values."""

from __future__ import annotations

from dataclasses import dataclass

from diag.errors import DiagError
from diag.playbook.course import End
from diag.playbook.load import Book
from diag.playbook.past import HostPast


@dataclass(frozen=True)
class HostEnd:
    """past: all that the journal says of the host. end: None where it was not come to; error: why not."""

    host: str
    past: HostPast
    end: End | None = None
    error: DiagError | None = None


@dataclass(frozen=True)
class Ended:
    """What a run came to."""

    run_id: str
    book: Book
    hosts: tuple[HostEnd, ...]
    journal: str
