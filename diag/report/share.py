"""A document that may be shown to strangers: secrets gone, names of people and machines replaced, always by the same.

Pure, but for the key: with it, a name gets the same pseudonym in every document of this user, and nobody without it
can try names until one fits.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag import paths
from diag.errors import PreconditionFailed

HIDDEN = "***"

# A word begins here; also one that is coloured, where "\x1b[31m" stands before it.
_BEGIN = r"(?:\b|(?<=\dm)|(?<=\[m))"
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    rf"|{_BEGIN}eyJ[\w-]{{6,}}\.[\w-]{{6,}}(?:\.[\w-]*)?"  # JWT
    rf"|{_BEGIN}(?:AKIA|ASIA)[A-Z0-9]{{16}}\b"
    rf"|{_BEGIN}(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|nvapi-|AIza)[\w-]{{16,}}"
    r"|(?<=://)[^/@\s]+(?=@)",
    re.S,
)
_NAMED_SECRET = re.compile(
    r"(?i)(?P<name>[\w-]*(?:secret|passw|token|credential|api[-_]?key|access[-_]?key|auth)[\w-]*"
    r"[\"']?\s*(?:=|:|\s)\s*[\"']?)(?P<value>(?:bearer\s+)?[^\s\"',;]{8,})"
)
_NUMBERS = re.compile(r"[\d.,_]+|true|false|null|none|auto", re.I)

_IPV4 = r"(?<![\d.])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.])"
_IPV6 = r"(?<![\w:])[0-9a-f:]*:[0-9a-f:]*:[0-9a-f:]*(?![\w:])"  # may be a time of day, too
_KINDS = {
    "address": re.compile(f"{_IPV4}|{_IPV6}", re.I),
    "mac": re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.I),
    "uuid": re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I),
    "mail": re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
}
_HOME = re.compile(r"(?<=/home/)[^/\s:\"']+|(?<=/Users/)[^/\s:\"']+")
_KEPT = re.compile(r"127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1?|255\.255\.255\.255")
# Accounts that say nothing of anybody, and words that would turn up in every text.
_NOBODY = {"root", "ubuntu", "ec2-user", "user", "nobody", "admin", "local", "localhost", "lab", "docker", "podman"}


@dataclass
class Share:
    """Takes texts and documents; `counts` says how many of each kind were replaced.

    secret_values: known ones, wherever they stand. hosts, users: names to be replaced as whole words.
    """

    key: bytes
    secret_values: Iterable[str] = ()
    hosts: Iterable[str] = ()
    users: Iterable[str] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def text(self, text: str) -> str:
        for value in sorted({v for v in self.secret_values if len(v) >= 4}, key=len, reverse=True):
            text = self._hide(text, re.compile(re.escape(value)))
        text = self._hide(text, _SECRETS)
        text = _NAMED_SECRET.sub(self._named, text)
        for kind in ("mac", "uuid", "mail", "address"):
            text = _KINDS[kind].sub(self._pseudonym(kind), text)
        for kind, names in (("host", self.hosts), ("user", self.users)):
            for name in sorted({n for n in names if n and n not in _NOBODY}, key=len, reverse=True):
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", self._pseudonym(kind), text)
        return _HOME.sub(self._pseudonym("user"), text)

    def document(self, document: Any) -> Any:
        """The same document: every string in it, keys among them, treated as above."""
        if isinstance(document, str):
            return self.text(document)
        if isinstance(document, dict):
            return {self.text(str(key)): self.document(value) for key, value in document.items()}
        if isinstance(document, list):
            return [self.document(value) for value in document]
        return document

    def _hide(self, text: str, pattern: re.Pattern[str]) -> str:
        text, count = pattern.subn(HIDDEN, text)
        self._count("secret", count)
        return text

    def _named(self, match: re.Match[str]) -> str:
        value = match["value"]
        if HIDDEN in value or _NUMBERS.fullmatch(value) or value.startswith(("-", "/")):
            return match[0]
        self._count("secret", 1)
        return match["name"] + HIDDEN

    def _pseudonym(self, kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            found = match[0]
            if kind == "address" and not _is_address(found):
                return found
            if _KEPT.fullmatch(found) or found in _NOBODY or re.fullmatch(r"(host|user)-[0-9a-f]{6}", found):
                return found
            self._count(kind, 1)
            digest = hmac.digest(self.key, f"{kind}:{found.lower()}".encode(), "sha256").hex()[:6]
            return f"{kind}-{digest}"

        return replace

    def _count(self, kind: str, count: int) -> None:
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count

    def summary(self) -> str:
        """ "3 secret, 2 host", or "nothing"."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "nothing"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def of_hosts(documents: Iterable[dict[str, Any]], hosts: Iterable[Any], key: bytes) -> Share:
    """A Share for what `diag probe host` found on these hosts of the inventory (`Host`).

    Known are the values of their env, their names and addresses, and the users and host names that the documents hold.
    """
    names: set[str] = set()
    users: set[str] = set()
    values: set[str] = set()
    for host in hosts:
        names |= {host.name, host.address}
        users |= {host.user or ""}
        named = {name: value.get_secret_value() for name, value in host.env.items()}
        values |= {value for name, value in named.items() if _NAMED_SECRET.match(f"{name}=abcdefgh")}
    for document in documents:
        facts = document.get("facts") or {}
        names.add(str(facts.get("hostname") or ""))
        users.add(str(facts.get("user") or ""))
        users |= {str(server.get("user") or "") for server in document.get("servers") or []}
        users |= {str(row.get("user") or "") for row in facts.get("gpu_processes") or []}
    addresses = {name for name in names if re.fullmatch(r"[\d.]+|[0-9a-fA-F:]+", name)}
    return Share(key, values, names - addresses, users)


def key() -> bytes:
    """This user's key for pseudonyms; made at the first use, readable by the user alone."""
    path = paths.state_dir() / "share.key"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(path)
        return path.read_bytes()
    except OSError as error:
        raise PreconditionFailed(
            f"The key for pseudonyms, {path}, cannot be read or made: {error.strerror}.",
            next="Set DIAG_STATE_DIR to a folder of yours.",
        ) from None


def _create(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
