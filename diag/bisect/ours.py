"""What failed on our side or on the way, and so says nothing about a configuration; and when to try again."""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.errors import (
    DiagError,
    HostError,
    HostProgramFailed,
    HostUnreachable,
    JobFailed,
    LinkLost,
    PortInUse,
    ServerDied,
)

RETRIES_A_TRIAL = 2
RETRIES_A_RUN = 6

_AGAIN = (LinkLost, HostUnreachable, HostProgramFailed, PortInUse, JobFailed)
_DISK_FULL = ("no space left on device", "errno 28", "disk quota exceeded")


def is_ours(error: BaseException) -> bool:
    """Whether this is the link's, the host's or our own failure, and not the configuration's."""
    return isinstance(error, HostError | PortInUse) or is_disk_full(error)


def is_disk_full(error: BaseException) -> bool:
    if not isinstance(error, ServerDied):
        return False
    text = "\n".join((error.what, *error.details)).lower()
    return any(mark in text for mark in _DISK_FULL)


def may_pass(error: BaseException) -> bool:
    """Whether the same thing may work in a moment. A refused key or a full disk stays what it is."""
    return isinstance(error, _AGAIN)


def signature(error: DiagError) -> str:
    return "disk full" if is_disk_full(error) else error.kind.replace("_", " ")


@dataclass
class Budget:
    """How often one session of a run tries again: more often where more is under way."""

    slots: int = 1
    spent: int = 0
    _in_a_row: dict[str, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        return max(RETRIES_A_RUN, 2 * self.slots)

    def worked(self, slot: str) -> None:
        self._in_a_row.pop(slot, None)

    def allows(self, slot: str, error: BaseException) -> bool:
        """Whether the slot may try again after this."""
        self._in_a_row[slot] = self._in_a_row.get(slot, 0) + 1
        if not may_pass(error) or self._in_a_row[slot] > RETRIES_A_TRIAL or self.spent >= self.most:
            return False
        self.spent += 1
        return True
