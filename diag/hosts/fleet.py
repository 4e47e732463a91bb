"""The same work on many hosts at once: bounded, each under its own limits, and one that fails costs nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from diag.errors import DiagError
from diag.hosts.inventory import Host

if TYPE_CHECKING:
    from diag.hosts.ssh import ParamikoTransport

AT_ONCE = 64

Done = TypeVar("Done")


@dataclass(frozen=True)
class Result(Generic[Done]):
    """value, or error: never both, never neither."""

    host: Host
    value: Done | None = None
    error: DiagError | None = None


def each(
    hosts: Sequence[Host],
    work: Callable[[Host, ParamikoTransport | None], Done],
    *,
    at_once: int = AT_ONCE,
    on_done: Callable[[Result[Done]], None] = lambda result: None,
) -> list[Result[Done]]:
    """work(host, connection to its jump or None) for every host, in threads; results in the order of `hosts`.

    A DiagError is that host's result. Ctrl-C is not waited out: threads that still talk are left to their limits.
    on_done: called in this thread as each host finishes.
    """
    jumps = Jumps(hosts)
    pool = ThreadPoolExecutor(min(at_once, max(1, len(hosts))), thread_name_prefix="diag-host")

    def one(host: Host) -> Result[Done]:
        try:
            with jumps.to(host) as outer:
                return Result(host, work(host, outer))
        except DiagError as error:
            return Result(host, error=error)

    try:
        waiting = {pool.submit(one, host): at for at, host in enumerate(hosts)}
        done: dict[int, Result[Done]] = {}
        for future in as_completed(waiting):
            done[waiting[future]] = future.result()
            on_done(done[waiting[future]])
        return [done[at] for at in range(len(hosts))]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        jumps.close()


@dataclass
class _Jump:
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: ParamikoTransport | None = None


class Jumps:
    """One connection to each jump that several hosts share, opened by the first that needs it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        from diag.hosts.transport import kind_of

        jumps = [host.jump for host in hosts if host.jump is not None]
        self._shared = {
            _key(jump): _Jump()
            for jump in jumps
            if sum(_key(jump) == _key(other) for other in jumps) > 1 and kind_of(jump) == "paramiko"
        }

    @contextmanager
    def to(self, host: Host) -> Iterator[ParamikoTransport | None]:
        """Raises what opening it raises, to each host that needs it. None: the host has no jump, or one of its own."""
        shared = self._shared.get(_key(host.jump)) if host.jump is not None else None
        if shared is None or host.jump is None:
            yield None
            return
        with shared.lock:
            if shared.connection is None or not shared.connection.is_active():
                from diag.hosts.ssh import open_ssh

                shared.connection = open_ssh(host.jump)
        yield shared.connection

    def close(self) -> None:
        for shared in self._shared.values():
            if shared.connection is not None:
                shared.connection.close()


def _key(host: Host) -> str:
    return host.model_dump_json()
