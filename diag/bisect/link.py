"""A connection to one host that is made when it is needed, and made anew after it was lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from diag.errors import DiagError
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect


class Link:
    """One thread uses it; any may `cut` it."""

    def __init__(self, host: Host, open_link: Callable[[Host], Transport] = connect) -> None:
        self.host = host
        self._open = open_link
        self._transport: Transport | None = None
        self._lock = threading.Lock()
        self._cut = False

    def transport(self) -> Transport:
        """Raises the HostError of what went wrong."""
        if self._transport is None:
            opened = self._open(self.host)
            with self._lock:
                self._transport = opened
                cut = self._cut
            if cut:
                self.drop()
        if self._transport is None:
            raise ValueError("the link was cut")
        return self._transport

    def drop(self) -> None:
        """Let go of the connection, if there is one; the next `transport` makes another."""
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(DiagError, OSError):
                transport.close()

    def cut(self) -> None:
        """For good: whatever waits on this connection ends."""
        self._cut = True
        self.drop()
