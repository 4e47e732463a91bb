"""One operator at a time on each GPU of this host: a file for each, beside the host's own (_hostlock.py).

The host's file is shared with all who have other GPUs of it, as one run, SETS. So whoever wants the whole host is
refused by any of them, and refuses them. Who is named is who came first, and whom that one names when it goes.
"""

from __future__ import annotations

import json
import os
import re
from typing import Optional, Sequence

from . import _hostlock, _state
from ._hostlock import HostLock, Json

SETS = "GPUs"


class GpusLock(HostLock):
    """`acquire`, then `release`, of some GPUs of the host."""

    def __init__(self, gpus: Sequence[str]) -> None:
        super().__init__()
        self._gpus = [HostLock("gpu-{}.lock".format(re.sub(r"[^A-Za-z0-9-]", "_", gpu))) for gpu in sorted(set(gpus))]

    def acquire(self, doing: str, run: Optional[str] = None) -> Optional[Json]:
        """As of the host; a run that has the whole host has its GPUs as a part of that."""
        who = _hostlock.holder(self._path)
        ours = who is not None and run is not None and _hostlock.whole(who.get("run")) == _hostlock.whole(run)
        who = super().acquire(doing, run if ours else SETS)
        if who is not None:
            return who
        for one in self._gpus:
            who = one.acquire(doing, run)
            if who is not None:
                self.release()
                return who
        return None

    def release(self) -> None:
        for one in reversed(self._gpus):
            one.release()
        if self._fd is not None:
            self._name_another(self._fd)
        super().release()

    def _name_another(self, fd: int) -> None:
        """In the host's file: one who still has some GPUs."""
        names = sorted(name for name in os.listdir(_state.folder()) if name.startswith("gpu-"))
        found = (_hostlock.holder(os.path.join(_state.folder(), name)) for name in names)
        other = next((who for who in found if who is not None), None)
        mine = _hostlock.holder(self._path)
        if other is not None and mine is not None and mine.get("run") == SETS:
            os.pwrite(fd, json.dumps(dict(other, run=SETS)).encode().ljust(os.fstat(fd).st_size), 0)
