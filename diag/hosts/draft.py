"""A first inventory: what `ssh -G` says of a name, and what the host itself says of its engine, model and GPUs.

Pure, but for `look`, which connects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.errors import DiagError, InventoryError, PreconditionFailed, UnknownHost, UsageError
from diag.hosts import courier
from diag.hosts.inventory import Host, Inventory
from diag.hosts.transport import connect

ENGINES = ("sglang", "vllm")
TIMEOUT_S = 60.0

_ADDRESS = re.compile(r"(?:(?P<user>[^\s@-][^\s@]*)@)?(?P<address>[A-Za-z0-9_][\w.-]*)(?::(?P<port>\d{1,5}))?")
_LABEL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Seen:
    """What a host says of itself. error: why it could not be asked, "" otherwise."""

    python: str | None = None
    engine: str = ""
    model: str | None = None
    gpus: Sequence[Mapping[str, Any]] = ()
    error: str = ""


@dataclass(frozen=True)
class Draft:
    """One host of a first inventory."""

    host: Host
    seen: Seen = field(default_factory=Seen)


def named(name: str, known: Inventory) -> Host:
    """By ~/.ssh/config or the inventory; else NAME is an address, and may be USER@ADDRESS:PORT.

    Raises UsageError for what is neither.
    """
    if "@" not in name and ":" not in name:
        with suppress(UnknownHost):
            return known.get(name)
    match = _ADDRESS.fullmatch(name)
    if match is None or (match["port"] and not 0 < int(match["port"]) < 65536):
        raise UsageError(
            f"{name!r} is neither a name nor an address.", next="Write NAME, ADDRESS or USER@ADDRESS:PORT."
        )
    short = match["address"] if re.fullmatch(r"[\d.]+", match["address"]) else match["address"].split(".")[0]
    return Host(name=short, address=match["address"], port=int(match["port"] or 22), user=match["user"])


def look(host: Host) -> Seen:
    """Over one connection; changes nothing. What goes wrong is in `error`."""
    try:
        with connect(host) as transport:
            args: dict[str, Any] = {"files": [], "python": host.python, "verify_all": False}
            return read(courier.call(transport, "host", args, timeout_s=TIMEOUT_S))
    except DiagError as error:
        return Seen(error=error.what)


def read(document: Mapping[str, Any]) -> Seen:
    """document: what probes/host.py answered. A running server tells more than an installed package."""
    servers = [s for s in document["servers"] if s["engine"] in ENGINES and not s.get("orphan")]
    holding = [e for e in document["environments"] if set(ENGINES) & set(e["packages"])]
    gpus = document["facts"]["gpus"]
    if servers:
        first = servers[0]
        return Seen(first["python"], first["engine"], _model(first["argv"]), gpus)
    if holding:
        first = holding[0]
        engine = next(name for name in ENGINES if name in first["packages"])
        return Seen(first["python"], f"{engine} {first['packages'][engine]}", None, gpus)
    return Seen(gpus=gpus)


def _model(argv: Sequence[str]) -> str | None:
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in ("--model-path", "--model"):
            return value if equals else next(iter(argv[at + 1 :]), None)
        if word == "serve" and at + 1 < len(argv) and not argv[at + 1].startswith("-"):
            return argv[at + 1]
    return None


def text(drafts: Sequence[Draft]) -> str:
    """The file: TOML with a comment where a person may want something else."""
    lines = ["# Hosts of diag; all keys: docs/hosts.md. Try it: diag host check all", "schema = 1"]
    written: set[str] = set()
    for draft in drafts:
        for host in _with_jumps(draft.host):
            if host.name not in written:
                written.add(host.name)
                lines += ["", *_entry(host, draft.seen if host is draft.host else None)]
    return "\n".join([*lines, ""])


def _with_jumps(host: Host) -> Iterator[Host]:
    if host.jump is not None:
        yield from _with_jumps(host.jump)
    yield host


def _entry(host: Host, seen: Seen | None) -> Iterator[str]:
    """seen: None for a host that others are reached through."""
    header = host.name if _LABEL.fullmatch(host.name) else quoted(host.name)
    if seen is None:
        yield "# Others are reached through this one."
    elif seen.error:
        yield f"# It could not be asked: {_one_line(seen.error)}"
    yield f"[hosts.{header}]"
    yield f"address = {quoted(host.address)}"
    if host.port != 22:
        yield f"port = {host.port}"
    yield f"user = {quoted(host.user)}" if host.user else '# user = "..."        # left out: who you are here'
    for key in ("identity_file", "known_hosts", "ssh_name"):
        if (value := getattr(host, key)) is not None:
            yield f"{key} = {quoted(value)}"
    if host.jump is not None:
        yield f"jump = {quoted(host.jump.name)}"
    if host.transport != "auto":
        yield f"transport = {quoted(host.transport)}"
    if seen is not None:
        yield from _engine(header, host.python or seen.python, seen)


def _engine(header: str, python: str | None, seen: Seen) -> Iterator[str]:
    if python is not None:
        yield f"python = {quoted(python)}" + (f"        # {_one_line(seen.engine)}" if seen.engine else "")
    else:
        yield '# python = "/path/to/venv/bin/python"        # the engine\'s interpreter; none was found'
    yield ""
    yield f"[hosts.{header}.labels]        # fill {{model}} and the like in plans"
    yield f"model = {quoted(seen.model)}" if seen.model else '# model = "/models/..."'
    if seen.gpus:
        yield ""
        yield f"# [hosts.{header}.expected]        # what differs from it is a finding of `diag probe host`"
        yield f"# gpu_count = {len(seen.gpus)}"
        for key, told in (("gpu_name", "name"), ("driver", "driver")):
            if value := seen.gpus[0].get(told):
                yield f"# {key} = {quoted(value)}"


def quoted(value: object) -> str:
    """A TOML string of one line."""
    escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in str(value))
    return '"' + "".join(escaped) + '"'


def _one_line(said: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in said).split())


def refuse(path: Path) -> None:
    """Raises UsageError where something has that name already."""
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{path} is there already, and was not touched.", next="Name another file with --out, or edit this one."
        )


def write(path: Path, content: str) -> None:
    """A new file of this user alone; one that is there stays as it is. Raises UsageError, PreconditionFailed."""
    refuse(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        refuse(path)
        raise
    except OSError as error:
        raise PreconditionFailed(
            f"{path} cannot be written: {error.strerror}.", next="Name another with --out."
        ) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)


def configured(name: str, known: Inventory) -> Host:
    """`named`, with what cannot be followed said as a usage error of this name."""
    try:
        return named(name, known)
    except InventoryError as error:
        raise UsageError(f"{name}: {error.what}", next=error.next, details=error.details) from None
