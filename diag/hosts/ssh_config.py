"""What the user's own SSH configuration says of a name, as `ssh -G` resolves it (Include, Match and all)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from diag.errors import InventoryError

_MAX_JUMPS = 8
# A name that nobody has configured: what ssh says of it, it says of every name.
_NOBODY = "diag-name-that-nobody-uses"


@dataclass(frozen=True)
class Resolved:
    name: str
    address: str
    port: int
    user: str
    identity_file: Path | None
    known_hosts: Path | None
    jump: Resolved | None
    openssh_only: tuple[str, ...] = ()  # settings that only OpenSSH itself can follow


def resolve(name: str) -> Resolved | None:
    """None: not configured there, or no `ssh` on this machine.

    Raises InventoryError for what is configured in a way that diag cannot follow.
    """
    if name.startswith("-") or shutil.which("ssh") is None:
        return None
    told, anybody = _ask(name), _ask(_NOBODY)
    if told is None or anybody is None:
        return None
    # "hostname" repeats the name where nothing else is configured, in lower case.
    anybody["hostname"] = [value.replace(_NOBODY, name.lower()) for value in anybody.get("hostname", [])]
    if all(anybody.get(key) == values for key, values in told.items() if key != "host"):
        return None
    found = _resolved(name, told, 0)
    # Debian's ssh says yes to it for every host; where that is so, keys are tried first, by Paramiko.
    if _given(told, "gssapiauthentication") == "yes" != _given(anybody, "gssapiauthentication"):
        return replace(found, openssh_only=(*found.openssh_only, "gssapiauthentication"))
    return found


def _ask(name: str, *options: str) -> dict[str, list[str]] | None:
    try:
        done = subprocess.run(
            ["ssh", "-G", *options, "--", name], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    if done.returncode != 0:
        return None
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def _resolved(name: str, told: dict[str, list[str]], depth: int) -> Resolved:
    known = (_given(told, "userknownhostsfile") or "").split()
    return Resolved(
        name=name,
        address=told["hostname"][0],
        port=int(told["port"][0]),
        user=told["user"][0],
        identity_file=_identity_file(told),
        known_hosts=Path(known[0]).expanduser() if known else None,
        jump=_jump(name, _given(told, "proxyjump"), depth),
        openssh_only=tuple(_beyond_paramiko(told)),
    )


def _beyond_paramiko(told: dict[str, list[str]]) -> Iterator[str]:
    """Settings of this host that Paramiko has no notion of."""
    for key in ("proxycommand", "hostkeyalias", "certificatefile", "knownhostscommand", "pkcs11provider"):
        if _given(told, key) is not None:
            yield key


def _identity_file(told: dict[str, list[str]]) -> Path | None:
    """The configured one; None where ssh only lists the names it tries by default."""
    default = _ask(_NOBODY, "-F", "none") or {}
    names = told.get("identityfile", [])
    if names == default.get("identityfile", []):
        return None
    files = [Path(value).expanduser() for value in names]
    return next((path for path in files if path.is_file()), files[0] if files else None)


def _given(told: dict[str, list[str]], key: str) -> str | None:
    value = told.get(key, ["none"])[0]
    return None if value == "none" else value


def _jump(name: str, spec: str | None, depth: int) -> Resolved | None:
    """ProxyJump "a,b": through a to b, and from there to the host."""
    if spec is None:
        return None
    if depth >= _MAX_JUMPS:
        raise InventoryError(f"{name}: ProxyJump in your SSH configuration leads in a circle.", next="Correct it.")
    before, _, last = spec.rpartition(",")
    user, _, rest = last.removeprefix("ssh://").rpartition("@")
    host, port = _split_port(rest)
    options = [*(["-l", user] if user else []), *(["-p", port] if port else [])]
    told = _ask(host, *options)
    if told is None:
        raise InventoryError(f"{name}: ssh cannot resolve its ProxyJump {spec!r}.", next="Try: ssh -G " + host)
    if before:
        told["proxyjump"] = [before]
    return _resolved(host, told, depth + 1)


def _split_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, ""
