"""OpenSSH's known_hosts, read strictly: every line that concerns a host counts, and is named with file and line.

Pure: text in, verdict out. Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Entry:
    """One line that concerns the host. key: the raw public key, None where the line cannot be understood."""

    path: Path
    line: int
    marker: str
    key_type: str
    key: bytes | None
    why: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Answer:
    """What the files say of a key. entries: the lines that decided, or that concern the host at all."""

    verdict: Verdict
    entries: tuple[Entry, ...]


def host_pattern_name(address: str, port: int) -> str:
    """The name a host goes by in the file: the address, or [address]:port for another port than 22."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it: SHA256:..."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def entries_for(name: str, path: Path, text: str) -> list[Entry]:
    """The lines of one file that concern `name` (see host_pattern_name), unreadable ones among them."""
    found = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        entry = _entry(name, path, number, line)
        if entry is not None:
            found.append(entry)
    return found


def judge(key: bytes, entries: Iterable[Entry]) -> Answer:
    """Is this host key the one on record? A revocation beats everything; an exact match beats the rest.

    A line that we cannot evaluate (@cert-authority, an unknown marker, a damaged key) never makes a key known.
    """
    lines = tuple(entries)
    revoked = tuple(entry for entry in lines if entry.marker == "@revoked" and entry.key in (key, None))
    if revoked:
        return Answer("revoked", revoked)
    same = tuple(entry for entry in lines if entry.marker == "" and entry.key == key)
    if same:
        return Answer("known", same)
    other = tuple(entry for entry in lines if entry.marker == "" and entry.key is not None)
    if other:
        return Answer("changed", other)
    return Answer("unknown", tuple(entry for entry in lines if entry.marker != "@revoked"))


def known_types(entries: Iterable[Entry]) -> list[str]:
    """Key types on record, to be asked for first: a server with several keys must show the one we know."""
    return list(dict.fromkeys(entry.key_type for entry in entries if entry.marker == "" and entry.key is not None))


def line(pattern: str, key_type: str, key: bytes) -> str:
    """A line of the file, without its end."""
    return f"{pattern} {key_type} {base64.b64encode(key).decode()}"


def hashed(name: str) -> str:
    """The name so that the file does not tell it, as HashKnownHosts does: |1|salt|digest."""
    salt = secrets.token_bytes(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _entry(name: str, path: Path, number: int, line: str) -> Entry | None:
    fields = line.split()
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if not fields or not _matches(fields[0], name):
        return None
    key_type = fields[1] if len(fields) > 1 else ""
    key = _decode(fields[2]) if len(fields) > 2 else None
    why = ""
    if key is None:
        why = "its key cannot be decoded"
    elif marker == "@cert-authority":
        why = "host certificates are not evaluated by diag"
    elif marker not in ("", "@revoked"):
        why = f"the marker {marker} is not known to diag"
    return Entry(path, number, marker, key_type, key, why)


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|"):
        return _matches_hash(patterns, name)
    found = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _glob(pattern.removeprefix("!"), name):
            if negated:
                return False
            found = True
    return found


def _glob(pattern: str, name: str) -> bool:
    # Only * and ? are special; a bracket belongs to [address]:port.
    return re.match(translate(pattern.replace("[", "[[]")), name) is not None


def _matches_hash(pattern: str, name: str) -> bool:
    parts: Sequence[str] = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    salt, digest = _decode(parts[2]), _decode(parts[3])
    if salt is None or digest is None:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
