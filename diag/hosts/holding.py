"""The lock of a host, for as long as this diag is at work there: one operator at a time (probes/hold.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from diag.errors import DiagError, HostProgramFailed
from diag.hosts import courier
from diag.hosts.transport import Transport

LEASE_S = 60.0
ANSWER_S = 30.0
RELEASE_S = 5.0


@contextlib.contextmanager
def held(transport: Transport, doing: str, run: str, gpus: Sequence[str] = ()) -> Iterator[None]:
    """Nobody else is at work on the host meanwhile; connections of the same `run` share the lock.

    gpus: of some of its GPUs only; none: of all of it, which is refused while somebody has some. doing: what others are
    told, with the user, where from, and since when. Raises PreconditionFailed when somebody
    else has it, LinkLost and the like. When the connection goes, so does the lock: within LEASE_S seconds for others,
    at once for this run.
    """
    args = {"doing": doing, "run": run, "lease_s": LEASE_S, "gpus": list(gpus)}
    conversation = courier.converse(transport, "hold", args, close_timeout_s=RELEASE_S)
    try:
        if isinstance(conversation.next(ANSWER_S), courier.End | None):
            raise HostProgramFailed(f"{transport.host.name}: the lock was not taken.", next="Run it again.")
        yield
    finally:
        with contextlib.suppress(DiagError):
            conversation.close()
