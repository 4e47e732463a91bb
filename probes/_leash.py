"""For a probe that only looks: when the laptop is gone, so is it. A change is better finished than broken off."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._wire import Talk


def tie(talk: Any) -> None:
    """From now on the end of our input ends this program as its time limit does, by SIGALRM. Nothing is read any
    more: messages of the laptop are lost. Does nothing without a wire, as in a test."""
    if hasattr(talk, "receive"):
        threading.Thread(target=_watch, args=(talk,), daemon=True).start()


def _watch(talk: Talk) -> None:
    try:
        while True:
            talk.receive(None)
    except (EOFError, ValueError):
        os.kill(os.getpid(), signal.SIGALRM)
