"""SSH by Paramiko: strict host keys, keys only, and a dead link is found.

Paramiko takes a third of a second to import; this module is loaded at the first connection only.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from diag.errors import (
    HostError,
    HostUnreachable,
    LinkLost,
)
from diag.hosts import host_keys, identity, known_hosts
from diag.hosts._paramiko import paramiko
from diag.hosts.host_keys import where
from diag.hosts.inventory import Host
from diag.hosts.transport import Capped, Stream, Transport

# A dead peer is found within WATCH_EVERY_S + WATCH_LIMIT_S (R1: at most 15 s).
WATCH_EVERY_S = 4.0
WATCH_LIMIT_S = 9.0
WATCH_STEP_S = 0.5
WINDOW_BYTES = 8 * 1024 * 1024  # one channel moves at most one window per round trip

WEAK = {
    "ciphers": ["3des-cbc", "aes128-cbc", "aes192-cbc", "aes256-cbc", "blowfish-cbc"],
    "macs": ["hmac-md5", "hmac-md5-96", "hmac-sha1", "hmac-sha1-96"],
    "kex": [
        "diffie-hellman-group1-sha1",
        "diffie-hellman-group14-sha1",
        "diffie-hellman-group-exchange-sha1",
    ],
    "keys": ["ssh-rsa", "ssh-dss"],
    "pubkeys": ["ssh-rsa", "ssh-dss"],
}

_RSA = ("rsa-sha2-512", "rsa-sha2-256")

# Without a handler, logging prints Paramiko's own tracebacks on our standard error.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def open_ssh(
    host: Host, *, outer: ParamikoTransport | None = None, note: Callable[[str], None] = lambda stage: None
) -> ParamikoTransport:
    """Connect, check the host's key, then authenticate; no command can run before all three have succeeded.

    Through `host.jump`, if given: each hop is checked by its own name, and no agent is forwarded.
    outer: an open connection to `host.jump` that others use too; without it one is opened, and closed with this one.
    note:  is told each stage that has been passed: resolve, connect, handshake, host key, auth.
    """
    with contextlib.ExitStack() as undo:
        owned = open_ssh(host.jump) if host.jump is not None and outer is None else None
        if owned is not None:
            undo.callback(owned.close)
        transport, sock = _handshaken(host, outer or owned, undo, note)
        key = transport.get_remote_server_key()
        host_keys.check(host, key.get_name(), key.asbytes())
        note("host key")
        identity.authenticate(transport, host, host.user or getpass.getuser())
        note("auth")
        # From here on the connection closes them.
        undo.pop_all()
        return ParamikoTransport(host, transport, sock, owned)


def shown_keys(host: Host) -> Iterator[tuple[str, bytes]]:
    """(type, key) of each host key that the server shows, of every type it has. Nobody is authenticated.

    Raises HostUnreachable when not even one could be had; the jump, if any, is checked and authenticated as ever.
    """
    failed: HostUnreachable | None = None
    seen: set[bytes] = set()
    for kinds in (("ssh-ed25519",), ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"), _RSA):
        with contextlib.ExitStack() as undo:
            outer = open_ssh(host.jump) if host.jump is not None else None
            if outer is not None:
                undo.callback(outer.close)
            try:
                transport, _ = _handshaken(host, outer, undo, only=kinds)
            except HostUnreachable as error:
                failed = error
                continue
            key = transport.get_remote_server_key()
            seen.add(key.asbytes())
            yield key.get_name(), key.asbytes()
    if not seen and failed is not None:
        raise failed


def _handshaken(
    host: Host,
    outer: ParamikoTransport | None,
    undo: contextlib.ExitStack,
    note: Callable[[str], None] = lambda stage: None,
    only: tuple[str, ...] = (),
) -> tuple[paramiko.Transport, socket.socket | paramiko.Channel]:
    """Encrypted, but neither side has been checked. `undo` closes what was opened."""
    sock = _tcp(host, note) if outer is None else _through(outer, host)
    undo.callback(sock.close)
    note("connect")
    transport = paramiko.Transport(sock, default_window_size=WINDOW_BYTES, disabled_algorithms=WEAK)
    undo.callback(transport.close)
    _handshake(host, transport, only)
    note("handshake")
    return transport, sock


def _through(outer: ParamikoTransport, host: Host) -> paramiko.Channel:
    try:
        return outer.open_channel(host.address, host.port, host.connect_timeout_s)
    except OSError as error:
        raise HostUnreachable(
            f"{where(host)}: {outer.host.name} could not connect to it: {error}.",
            next="See that address and port are right as seen from there.",
        ) from None


def _tcp(host: Host, note: Callable[[str], None]) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)
        note("resolve")
        sock = _first_that_answers(addresses, host.connect_timeout_s)
    except (socket.gaierror, UnicodeError) as error:
        raise HostUnreachable(
            f"{where(host)}: the name {host.address!r} could not be resolved: {error}.",
            next="Correct address in the inventory, or look at your DNS or VPN.",
        ) from None
    except TimeoutError:
        raise HostUnreachable(
            f"{where(host)}: no answer within {host.connect_timeout_s:g} s.",
            next="See that the machine is up and that no firewall drops the connection.",
        ) from None
    except OSError as error:
        raise HostUnreachable(
            f"{where(host)}: the connection failed: {error}.",
            next="See that sshd runs there and that address and port in the inventory are right.",
        ) from None
    _detect_dead_peer(sock)
    return sock


def _first_that_answers(addresses: Sequence[tuple[Any, ...]], timeout_s: float) -> socket.socket:
    """As socket.create_connection, for addresses that have been resolved already. Raises the last one's error."""
    failed: OSError = OSError("the name has no address")
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address)
        except OSError as error:
            failed = error
            sock.close()
        else:
            return sock
    raise failed


def _detect_dead_peer(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Names differ between Linux and macOS; what is missing is left to the watchdog.
    options = {"TCP_KEEPIDLE": 4, "TCP_KEEPALIVE": 4, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
    for name, value in options.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _handshake(host: Host, transport: paramiko.Transport, only: tuple[str, ...] = ()) -> None:
    transport.daemon = True
    transport.banner_timeout = host.connect_timeout_s
    transport.handshake_timeout = host.connect_timeout_s
    transport.auth_timeout = host.connect_timeout_s
    known = known_hosts.known_types(host_keys.on_record(host).entries)
    options = transport.get_security_options()
    kinds = [kind for kind in options.key_types if not only or kind in only]
    options.key_types = tuple(sorted(kinds, key=lambda kind: _preference(kind, known)))
    try:
        transport.start_client(timeout=2 * host.connect_timeout_s)
        transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(
            f"{where(host)}: the SSH handshake failed: {_text(error)}.",
            next="See that an SSH server listens on that port, and that it offers current algorithms.",
        ) from None


def _text(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _preference(kind: str, known: list[str]) -> int:
    # An RSA key is on record as ssh-rsa, whichever hash signs with it.
    recorded = "ssh-rsa" if kind.startswith("rsa-sha2-") else kind
    return known.index(recorded) if recorded in known else len(known)


def cut_unless(answered: threading.Event, cut: Callable[[], None]) -> None:
    """Cut the connection when no sign of life has come within WATCH_LIMIT_S seconds that this machine was awake.

    In steps, not in one wait: while a laptop sleeps, or a virtual machine is paused, the clock goes on and the other
    end is silent without being dead. Such a gap counts as one step, and the answer then has time to be read.
    """
    for _ in range(round(WATCH_LIMIT_S / WATCH_STEP_S)):
        if answered.wait(WATCH_STEP_S):
            return
    cut()


class ParamikoTransport(Transport):
    """One SSH connection. Channels may be used from several threads at once."""

    def __init__(
        self,
        host: Host,
        transport: paramiko.Transport,
        sock: socket.socket | paramiko.Channel,
        outer: ParamikoTransport | None = None,
    ) -> None:
        self.host = host
        self._transport = transport
        self._sock = sock
        self._outer = outer
        self._closed = threading.Event()
        # Paramiko closes a forgotten channel when Python collects it: wherever that is, also in a thread that is
        # sending and holds the lock for it, which then waits for itself, and all others for it. None is forgotten here.
        self._channels: set[paramiko.Channel] = set()
        threading.Thread(target=self._watch, name="diag-watchdog", daemon=True).start()

    def _watch(self) -> None:
        """Ask the server for a sign of life; without one, cut the connection, so that every reader wakes up."""
        while not self._closed.wait(WATCH_EVERY_S) and self._transport.is_active():
            answered = threading.Event()
            threading.Thread(target=cut_unless, args=(answered, self._cut), name="diag-guard", daemon=True).start()
            try:
                # Any answer will do, a refusal is one. Without wait, Paramiko never looks for it.
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except Exception:
                self._cut()
            finally:
                answered.set()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def lost(self) -> LinkLost:
        return LinkLost(
            f"The connection to {where(self.host)} ended before the answer was complete.",
            next="What was begun there may have happened or not: connect again and look before repeating it.",
        )

    def is_active(self) -> bool:
        return self._transport.is_active()

    def check_ended(self, channel: paramiko.Channel) -> None:
        """Raise LinkLost unless the server itself ended this stream: Paramiko ends both kinds alike."""
        if channel.eof_received or channel.exit_status >= 0:
            return
        # The channels of a dying connection end a moment before it is marked as dead.
        _wait_until(lambda: not self.is_active(), 0.5)
        if not self.is_active():
            raise self.lost()

    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> SshProcess:
        try:
            channel = self._open(lambda: self._transport.open_session(timeout=self.host.connect_timeout_s))
        except TimeoutError:
            raise self.lost() from None
        try:
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self.close_channel(channel)
            if not self._transport.is_active():
                raise self.lost() from None
            raise HostError(
                f"{where(self.host)}: the server would not run a command: {_text(error)}.",
                next="See the account's shell there, and ForceCommand in its sshd_config.",
            ) from None
        return SshProcess(self, channel, max_stderr_bytes)

    def open_tcp(self, host: str, port: int, timeout_s: float) -> Stream:
        return SshStream(self, self.open_channel(host, port, timeout_s))

    def open_channel(self, host: str, port: int, timeout_s: float) -> paramiko.Channel:
        """The bare direct-tcpip channel of `open_tcp`, which a jump needs."""
        return self._open(
            lambda: self._transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s)
        )

    def _open(self, open_channel: Callable[[], paramiko.Channel]) -> paramiko.Channel:
        try:
            channel = open_channel()
            self._channels.add(channel)
            return channel
        except paramiko.ChannelException as error:
            if error.code == 2:
                raise ConnectionRefusedError(f"{self.host.name}: {error.text}") from None
            raise HostError(
                f"{where(self.host)}: the server refused a channel: {error.text}.",
                next="See MaxSessions and AllowTcpForwarding in its sshd_config.",
            ) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not self._transport.is_active():
                raise self.lost() from None
            raise TimeoutError(_text(error)) from None

    def close_channel(self, channel: paramiko.Channel) -> None:
        channel.close()
        self._channels.discard(channel)

    def close(self) -> None:
        self._closed.set()
        self._transport.close()
        self._channels.clear()
        self._sock.close()
        if self._outer is not None:
            self._outer.close()


class SshProcess:
    def __init__(self, connection: ParamikoTransport, channel: paramiko.Channel, max_stderr_bytes: int) -> None:
        self._connection = connection
        self._channel = channel
        self._stderr = Capped(max_stderr_bytes)
        self._drain = threading.Thread(target=self._drain_stderr, name="diag-stderr", daemon=True)
        self._drain.start()

    def _drain_stderr(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._channel.recv_stderr(65536):
                self._stderr.add(data)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._channel.send(view[:32768].tobytes()) :]
            except TimeoutError:
                time.sleep(0.01)  # the channel's time-out is the reader's; a full window passes
            except OSError:
                if not self._connection.is_active():
                    raise self._connection.lost() from None
                raise BrokenPipeError("the program no longer reads") from None

    def close_stdin(self) -> None:
        # On a lost link there is nobody to tell.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def read(self, timeout_s: float | None) -> bytes:
        self._channel.settimeout(timeout_s)
        data = self._channel.recv(65536)
        if not data:
            self._connection.check_ended(self._channel)
        return data

    def stderr(self) -> Capped:
        return self._stderr

    def exit_status(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        if not self._channel.status_event.wait(timeout_s):
            return None
        self._drain.join(min(0.5, max(0.0, deadline - time.monotonic())))
        status = self._channel.exit_status
        return status if status >= 0 else None

    def close(self) -> None:
        self._connection.close_channel(self._channel)


class SshStream:
    """A direct-tcpip channel, as a socket."""

    def __init__(self, connection: ParamikoTransport, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._channel = channel

    def settimeout(self, timeout: float | None, /) -> None:
        self._channel.settimeout(timeout)

    def recv(self, nbytes: int, /) -> bytes:
        data = self._channel.recv(nbytes)
        if not data:
            self._connection.check_ended(self._channel)
        return data

    def sendall(self, data: bytes, /) -> None:
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            if not self._connection.is_active():
                raise self._connection.lost() from None
            raise BrokenPipeError("the other side no longer reads") from None

    def readable(self) -> bool:
        return bool(self._channel.recv_ready() or self._channel.eof_received or self._channel.closed)

    def close(self) -> None:
        self._connection.close_channel(self._channel)


def _wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
