"""Put a host's key on record: only one whose fingerprint the person has from somebody who knows the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from diag.errors import HostKeyUnknown, UsageError
from diag.hosts import host_keys, known_hosts
from diag.hosts.inventory import Host


@dataclass(frozen=True)
class Trusted:
    """added: False where that very key was on record already."""

    host: str
    name: str
    key_type: str
    fingerprint: str
    path: Path | None
    added: bool


def trust(host: Host, fingerprint: str, *, hashed: bool = False) -> Trusted:
    """Ask the server for its keys; write down the one with this fingerprint, and no other.

    Nothing is written, and nobody is authenticated at the host, unless it shows that key. Raises HostKeyUnknown
    (with the fingerprints it does show) when none matches, HostKeyChanged when another key of that type is on record
    or the key is revoked, HostUnreachable, and PreconditionFailed when the file cannot be written.
    """
    if host.address == "local":
        raise UsageError(f"{host.name} is this machine: there is no host key.", next="Nothing needs to be done.")
    if re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", fingerprint) is None:
        raise UsageError(
            f"That is not a fingerprint: {fingerprint}", next="It looks like SHA256:..., as ssh-keygen -lf prints it."
        )
    from diag.hosts.ssh import shown_keys

    shown = []
    for key_type, key in shown_keys(host):
        if known_hosts.fingerprint(key) == fingerprint:
            return _put_on_record(host, key_type, key, hashed)
        shown.append(f"{key_type} {known_hosts.fingerprint(key)}")
    raise HostKeyUnknown(
        f"{host_keys.where(host)}: no key that it shows has that fingerprint. Nothing was written.",
        next="Ask the machine's owner what this prints there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        details=[f"given: {fingerprint}", *(f"seen: {line}" for line in shown)],
    )


def _put_on_record(host: Host, key_type: str, key: bytes, hashed: bool) -> Trusted:
    name = known_hosts.host_pattern_name(host.address, host.port)
    there = host_keys.refuse_if_contradicted(host, key_type, key)
    path = None if there else host_keys.add(host, key_type, key, hashed=hashed)
    return Trusted(host.name, name, key_type, known_hosts.fingerprint(key), path, not there)
