"""Which known_hosts files count for a host, what they say of it, and how a key gets into one."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from diag.errors import HostKeyChanged, HostKeyUnknown, PreconditionFailed
from diag.hosts import known_hosts
from diag.hosts.inventory import Host


@dataclass(frozen=True)
class OnRecord:
    """entries: the lines that concern the host; problems: files that could not be read, and why."""

    name: str
    entries: tuple[known_hosts.Entry, ...]
    problems: tuple[str, ...]

    @property
    def has_authority(self) -> bool:
        """A certificate authority is to vouch for this host: OpenSSH can check that, Paramiko cannot."""
        return any(entry.marker == "@cert-authority" for entry in self.entries)


def files(host: Host) -> list[Path]:
    """The file named in the inventory and no other; else those that OpenSSH reads."""
    if host.known_hosts is not None:
        return [host.known_hosts]
    home = Path("~/.ssh").expanduser()
    system = Path("/etc/ssh")
    return [home / "known_hosts", home / "known_hosts2", system / "ssh_known_hosts", system / "ssh_known_hosts2"]


def on_record(host: Host) -> OnRecord:
    name = known_hosts.host_pattern_name(host.address, host.port)
    entries: list[known_hosts.Entry] = []
    problems = []
    for path in files(host):
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            if host.known_hosts is not None:
                problems.append(f"{path}: there is no such file")
            continue
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
            continue
        entries += known_hosts.entries_for(name, path, text)
    return OnRecord(name, tuple(entries), tuple(problems))


def where(host: Host) -> str:
    return f"{host.name} ({host.address} port {host.port})"


def check(host: Host, key_type: str, key: bytes) -> None:
    """Return if this is the key on record; raise HostKeyUnknown or HostKeyChanged with file and line if not."""
    record = on_record(host)
    answer = known_hosts.judge(key, record.entries)
    if answer.verdict == "known":
        return
    seen = f"seen: {key_type} {known_hosts.fingerprint(key)}"
    if answer.verdict == "unknown":
        why = [f"{entry.where}: {entry.marker or entry.key_type}: {entry.why}" for entry in answer.entries]
        raise HostKeyUnknown(
            f"{where(host)}: no host key is on record for {record.name}. Nothing was run there.",
            next="Compare the fingerprint with the machine's owner; if it is right: "
            f"diag host trust {host.name} --fingerprint {known_hosts.fingerprint(key)}",
            details=[seen, *record.problems, *why],
        )
    _refuse(host, seen, answer)


def _refuse(host: Host, seen: str, answer: known_hosts.Answer) -> NoReturn:
    if answer.verdict == "revoked":
        raise HostKeyChanged(
            f"{where(host)}: its host key is marked as revoked. Nothing was run there.",
            next="Do not connect; ask who revoked the key.",
            details=[seen, *(f"{entry.where}: @revoked" for entry in answer.entries)],
        )
    lines = [f"{e.where}: {e.key_type} {known_hosts.fingerprint(e.key or b'')}" for e in answer.entries]
    raise HostKeyChanged(
        f"{where(host)}: its host key is not the one on record. Nothing was run there.",
        next="Ask the machine's owner for the right fingerprint; only if the new key is right, correct that line.",
        details=[seen, *lines],
    )


def refuse_if_contradicted(host: Host, key_type: str, key: bytes) -> bool:
    """Before a key is put on record: True if it is there already. A changed or revoked key is never added beside
    the old one: raises HostKeyChanged."""
    answer = known_hosts.judge(key, on_record(host).entries)
    if answer.verdict in ("revoked", "changed"):
        # Another type of key than those on record may be added: a server has one of each.
        if answer.verdict == "changed" and key_type not in {entry.key_type for entry in answer.entries}:
            return False
        _refuse(host, f"seen: {key_type} {known_hosts.fingerprint(key)}", answer)
    return answer.verdict == "known"


def add(host: Host, key_type: str, key: bytes, *, hashed: bool = False) -> Path:
    """Append the key to the first file that counts for the host; the line is written whole or not at all."""
    path = files(host)[0]
    name = known_hosts.host_pattern_name(host.address, host.port)
    line = known_hosts.line(known_hosts.hashed(name) if hashed else name, key_type, key)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if unfinished else b"") + line.encode() + b"\n"
            if os.write(descriptor, data) != len(data):
                os.ftruncate(descriptor, size)
                raise OSError("the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PreconditionFailed(
            f"{path}: the host key could not be written down: {error.strerror or error}.",
            next="See that the file and its folder are yours to write; nothing was changed.",
        ) from None
    return path
