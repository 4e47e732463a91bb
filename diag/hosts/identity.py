"""Which keys we offer to a host, and what to say when none of them is accepted. Never a password."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.errors import AuthenticationFailed, HostUnreachable, InventoryError
from diag.hosts._paramiko import paramiko
from diag.hosts.host_keys import where
from diag.hosts.inventory import Host

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Identity:
    """A key to offer. label: its file, or "agent: <comment>"."""

    label: str
    key: paramiko.PKey


def authenticate(transport: paramiko.Transport, host: Host, user: str) -> None:
    """Offer the keys one by one. AuthenticationFailed names the user and each key that was offered or left out;
    HostUnreachable when no answer comes."""
    offered: list[str] = []
    skipped: list[str] = []
    for identity in _identities(host, skipped):
        offered.append(identity.label)
        try:
            further = transport.auth_publickey(user, identity.key)
        except paramiko.BadAuthenticationType as error:
            skipped.append(f"the server takes only: {', '.join(error.allowed_types)}")
            if any(kind.startswith("gssapi") for kind in error.allowed_types):
                skipped.append('for Kerberos, set transport = "openssh" and ssh_name for this host')
            break
        except paramiko.AuthenticationException as error:
            if "timeout" in str(error).lower():
                # Not a refusal: the next key would only wait as long again.
                raise HostUnreachable(
                    f"{where(host)}: no answer to a key within {transport.auth_timeout:g} s.",
                    next="The link is slow or cut, or the host is overloaded: try again, or raise connect_timeout_s.",
                ) from None
            if transport.is_active():
                continue
            skipped.append("the server hung up: too many keys; set identity_file for this host")
            break
        except (paramiko.SSHException, EOFError, OSError) as error:
            skipped.append(f"the server hung up: {error or type(error).__name__}")
            break
        if not further:
            return
        skipped.append(f"that key was accepted, but the server asks for more: {', '.join(further)}")
        break
    raise AuthenticationFailed(
        f"{host.name}: no key was accepted for user {user!r} at {host.address} port {host.port}.",
        next="Set user and identity_file in the inventory, and see that the public key is in authorized_keys there.",
        details=[f"offered: {label}" for label in offered] + skipped or ["there was no key to offer"],
    )


def _identities(host: Host, skipped: list[str]) -> Iterator[Identity]:
    if host.identity_file is not None:
        yield from _named(host, host.identity_file, skipped)
        return
    yield from _agent_keys()
    for name in DEFAULT_KEYS:
        path = Path("~/.ssh").expanduser() / name
        key = _load(path, skipped) if path.is_file() else None
        if key is not None:
            yield Identity(str(path), key)


def _named(host: Host, path: Path, skipped: list[str]) -> Iterator[Identity]:
    if not path.is_file():
        raise InventoryError(
            f"{host.name}: identity_file does not exist: {path}.",
            next="Correct identity_file in the inventory, or remove it to use your agent and default keys.",
        )
    key = _load(path, skipped)
    if key is not None:
        yield Identity(str(path), key)
        return
    # A key with a passphrase is usable if the agent holds it.
    public = path.with_name(path.name + ".pub")
    blob = public.read_text(encoding="utf-8").split()[1:2] if public.is_file() else []
    for identity in _agent_keys():
        if [identity.key.get_base64()] == blob:
            yield identity


def _load(path: Path, skipped: list[str]) -> paramiko.PKey | None:
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        skipped.append(f"{path}: has a passphrase; add it to your agent: ssh-add {path}")
    except Exception as error:  # Paramiko and cryptography raise what they like for a damaged file
        skipped.append(f"{path}: cannot be used: {error}")
    return None


def _agent_keys() -> Iterator[Identity]:
    try:
        agent = paramiko.Agent()
    except (paramiko.SSHException, OSError):
        return
    try:
        for key in agent.get_keys():
            yield Identity(f"agent: {key.comment or key.get_name()}", key)
    finally:
        agent.close()
