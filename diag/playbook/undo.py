"""Giving back what a run changed, from its journal's record alone: the playbook may have changed, or be gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from diag.playbook.steps import fixes, servers

if TYPE_CHECKING:
    from diag.hosts.transport import Transport
    from diag.playbook.stage import Change

UNDO: dict[str, Callable[[Transport, Mapping[str, Any]], None]] = {
    fixes.REVERT: fixes.undo_apply,
    fixes.APPLY: fixes.undo_revert,
    servers.STOP: servers.undo_start,
}


def undo(transport: Transport, change: Change) -> None:
    """Each can be done again, and does nothing where there is nothing left. Raises DiagError."""
    UNDO[change.undo["do"]](transport, change.undo)
