"""The same work on many hosts at once: bounded, each under its own limits, and one that fails costs nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
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

    A DiagError is that host's result; anything else is raised here. Ctrl-C is not waited out: the threads are daemons,
    and what they talk to ends when this process does. on_done: called in this thread as each host finishes.
    """
    jumps = Jumps(hosts)
    waiting: SimpleQueue[int] = SimpleQueue()
    finished: SimpleQueue[tuple[int, Result[Done] | BaseException]] = SimpleQueue()
    for at in range(len(hosts)):
        waiting.put(at)

    def worker() -> None:
        with suppress(Empty):
            while True:
                at = waiting.get_nowait()
                finished.put((at, _one(hosts[at], work, jumps)))

    for _ in range(min(at_once, len(hosts))):
        threading.Thread(target=worker, name="diag-host", daemon=True).start()
    done: dict[int, Result[Done]] = {}
    try:
        while len(done) < len(hosts):
            at, result = finished.get()
            if isinstance(result, BaseException):
                raise result
            done[at] = result
            on_done(result)
    finally:
        with suppress(Empty):  # those who have not begun need not
            while True:
                waiting.get_nowait()
        jumps.close()
    return [done[at] for at in range(len(hosts))]


def _one(
    host: Host, work: Callable[[Host, ParamikoTransport | None], Done], jumps: Jumps
) -> Result[Done] | BaseException:
    try:
        with jumps.to(host) as outer:
            return Result(host, work(host, outer))
    except DiagError as error:
        return Result(host, error=error)
    except BaseException as error:
        return error


@dataclass
class _Jump:
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: ParamikoTransport | None = None
    failed: DiagError | None = None


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
        """Raises what opening it raised, to each host that needs it: tried once, not by each in turn. None: the host
        has no jump, or one of its own."""
        shared = self._shared.get(_key(host.jump)) if host.jump is not None else None
        if shared is None or host.jump is None:
            yield None
            return
        with shared.lock:
            if shared.failed is not None:
                raise type(shared.failed)(shared.failed.what, next=shared.failed.next, details=shared.failed.details)
            if shared.connection is None or not shared.connection.is_active():
                shared.connection = self._open(host.jump, shared)
        yield shared.connection

    @staticmethod
    def _open(jump: Host, shared: _Jump) -> ParamikoTransport:
        from diag.hosts.ssh import open_ssh

        try:
            return open_ssh(jump)
        except DiagError as error:
            shared.failed = error
            raise

    def close(self) -> None:
        for shared in self._shared.values():
            if shared.connection is not None:
                shared.connection.close()


def _key(host: Host) -> str:
    return host.model_dump_json()
