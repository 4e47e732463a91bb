"""The lock of this host, held for a laptop that has more to do here than one program does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Mapping

from . import _gpulock, _hostlock

if TYPE_CHECKING:
    from ._wire import Talk


def run(args: Mapping[str, Any], talk: Talk) -> Dict[str, Any]:
    """args: doing (what others are told), run (its programs share the lock), lease_s, gpus (only these of the host's;
    left out: all of it). event: held. It is let go of at the end of the input, or after lease_s seconds without a
    message: a laptop that is gone blocks nobody.
    returns: {held_s}. Error precondition: somebody else has it, who and since when."""
    gpus = args.get("gpus")
    lock = _gpulock.GpusLock([str(gpu) for gpu in gpus]) if gpus else _hostlock.HostLock()
    refused = _hostlock.taken(lock, str(args["doing"]), str(args["run"]))
    if refused is not None:
        return refused
    begun = time.monotonic()
    try:
        talk.emit({"event": "held"})
        while talk.receive(float(args["lease_s"])) is not None:
            pass
    except EOFError:
        pass
    finally:
        lock.release()
    return {"held_s": round(time.monotonic() - begun, 3)}
