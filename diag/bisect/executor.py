"""Where trials are made: slots, each of which tries one configuration at a time.

    adopted   trials of an earlier session that are still under way, by slot
    submit    begin a trial on a free slot
    poll      wait until trials are over; the slots that have one to collect
    collect   what it showed; raises what ended it
    cancel    stop all that is under way; when it returns, nothing of it is left running
    close     no more trials: what the benches still hold (a server kept for the next request) is stopped

`Inline` makes them in the calling thread, one after the other: Ctrl-C reaches what blocks, at once. `Workers` has a
thread for each host. `diag.bisect.slurm` has a queueing system behind the same words.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diag.bisect.decision import Next
from diag.bisect.trial import Trial
from diag.errors import HostError

CANCEL_S = 90.0
"""A server has STOP_GRACE_S to end by itself and its supervisor some more to say so; then the link is cut."""
ABANDON_S = 5.0


class Cancelled(Exception):
    """Raised inside a bench whose trial is not wanted any more."""


class Bench(Protocol):
    """Tries one configuration and says what was seen. When `trial` returns or raises, nothing that it started is
    left, but for a server that `close` stops."""

    def trial(self, number: int, step: Next) -> Trial: ...

    def cancel(self) -> None:
        """From any thread: the trial under way is to end soon, by Cancelled or with what it has."""
        ...

    def abandon(self) -> None:
        """From any thread: cut the link. What runs on the host is stopped there when it sees that."""
        ...

    def close(self) -> None: ...


class Executor(Protocol):
    """places: whether it chooses the host of each trial itself (a trial then says where it was made), unless `submit`
    is told of one. Else slots are hosts."""

    slots: tuple[str, ...]
    places: bool

    def adopted(self) -> Mapping[str, Next]: ...

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None: ...

    def poll(self) -> Sequence[str]: ...

    def collect(self, slot: str) -> Trial: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Inline:
    """One slot, in the thread that collects."""

    places = False

    def __init__(self, bench: Bench, slot: str = "") -> None:
        self.slots: tuple[str, ...] = (slot,)
        self._bench = bench
        self._waiting: tuple[int, Next] | None = None

    def adopted(self) -> Mapping[str, Next]:
        return {}

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None:
        self._waiting = number, step

    def poll(self) -> Sequence[str]:
        return self.slots if self._waiting is not None else ()

    def collect(self, slot: str) -> Trial:
        if self._waiting is None:
            raise ValueError("nothing was submitted")
        (number, step), self._waiting = self._waiting, None
        return self._bench.trial(number, step)

    def cancel(self) -> None:
        """What runs here is over when an exception leaves it; but a server may have been kept."""
        self._waiting = None
        self._bench.close()

    def close(self) -> None:
        self._bench.close()


@dataclass(frozen=True)
class _Over:
    slot: str
    trial: Trial | None
    error: BaseException | None


class Workers:
    """A thread for each slot, with a bench and a connection of its own."""

    places = False

    def __init__(self, benches: Mapping[str, Bench]) -> None:
        self.slots: tuple[str, ...] = tuple(benches)
        self._benches = benches
        self._over: queue.Queue[_Over] = queue.Queue()
        self._results: dict[str, _Over] = {}
        self._asked: dict[str, queue.Queue[tuple[int, Next] | None]] = {slot: queue.Queue() for slot in benches}
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"diag-bisect-{slot}", daemon=True)
            for slot in benches
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, slot: str) -> None:
        bench = self._benches[slot]
        try:
            while (asked := self._asked[slot].get()) is not None:
                try:
                    over = _Over(slot, bench.trial(*asked), None)
                except BaseException as error:  # it belongs to whoever collects
                    over = _Over(slot, None, error)
                self._over.put(over)
        finally:
            bench.close()

    def adopted(self) -> Mapping[str, Next]:
        return {}

    def submit(self, slot: str, number: int, step: Next, host: str = "") -> None:
        self._asked[slot].put((number, step))

    def poll(self) -> Sequence[str]:
        first = self._over.get()
        self._results[first.slot] = first
        while not self._over.empty():
            more = self._over.get()
            self._results[more.slot] = more
        return tuple(self._results)

    def collect(self, slot: str) -> Trial:
        over = self._results.pop(slot)
        if over.error is not None:
            raise over.error
        if over.trial is None:
            raise ValueError("a trial without a result")
        return over.trial

    def cancel(self) -> None:
        for bench in self._benches.values():
            bench.cancel()
        self.close()

    def close(self) -> None:
        for asked in self._asked.values():
            asked.put(None)
        deadline = time.monotonic() + CANCEL_S
        for slot, thread in zip(self.slots, self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._benches[slot].abandon()
        left = [slot for slot, thread in zip(self.slots, self._threads) if not _ended(thread)]
        if left:
            raise HostError(
                f"Nobody answers on {', '.join(left)}: whether the server there has been stopped is not known.",
                next=f"Its supervisor stops it within a minute; look: diag probe host {left[0]}",
            )


def _ended(thread: threading.Thread) -> bool:
    thread.join(ABANDON_S)
    return not thread.is_alive()
