"""What `-v` tells: what is done on which host, and why. Names and purposes only; values that may be secrets never."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diag.hosts.inventory import Host

log = logging.getLogger("diag")

PURPOSES: Mapping[str, str] = {
    "probes.checkout": "lay out single commits of a repository there, in a folder that goes when the link does",
    "probes.environments": "find Python environments; changes nothing",
    "probes.facts": "read facts about the machine; changes nothing",
    "probes.fixread": "read the files of a fix and where it stands; changes nothing",
    "probes.fixtx": "change files of the engine as one transaction, with a journal written first",
    "probes.hello": "see who answers there; changes nothing",
    "probes.hold": "hold the lock of the host, so that no other operator is in the way",
    "probes.host": "read the machine, its environments, the engine's files and the running servers; changes nothing",
    "probes.integrity": "compare installed files with their RECORD; changes nothing",
    "probes.job": "run in a job of the queue: start a server, ask it, stop it, write down what came",
    "probes.overlay": "lay out wheels in a folder of their own, which goes when the link does; installs nothing",
    "probes.reap": "list servers, read their logs, or stop one and prove that it is gone",
    "probes.relay": "open a stream to a port of the host",
    "probes.servers": "list running servers; changes nothing",
    "probes.slurm": "submit, look at, collect or cancel jobs of this run on a Slurm cluster",
    "probes.sources": "read one installation of the engine; changes nothing",
    "probes.supervise": "start one server and own it: it is stopped when we stop, or when the link is lost",
    "kernels.differential": "run the installed attention kernel beside a plain one, on the GPU",
    "kernels.metadata": "run the installed code that computes mask offsets, without a server",
}


def connecting(host: Host, kind: str) -> None:
    if kind == "local":
        log.info("%s: this machine, no connection is needed", host.name)
        return
    who = f"{host.user}@{host.address}" if host.user is not None else host.address
    through = f", through {host.jump.name}" if host.jump is not None else ""
    log.info("%s: connect to %s port %d (%s%s)", host.name, who, host.port, kind, through)


def program(host: Host, name: str, args: Mapping[str, object]) -> None:
    """name: of one of our programs, which is sent to the host and leaves nothing there."""
    if not log.isEnabledFor(logging.INFO):
        return
    log.info("%s: send %s: %s", host.name, name, PURPOSES.get(name, "see its first lines"))
    argv = args.get("argv")
    if isinstance(argv, list):
        from diag import bundle

        log.info("%s:   it starts: %s", host.name, " ".join(bundle.load("probes._proc").hide_argv(argv)))
