"""The seam between the laptop and a host: run a command, hold a conversation, open a TCP stream.

Three implementations: `ssh.ParamikoTransport`, `openssh.OpenSshTransport` and `local.LocalTransport`; and
`container.ContainerTransport`, which takes one of them into a container. `connect` picks.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

from diag.errors import HostError, HostProgramFailed
from diag.hosts import narrate

if TYPE_CHECKING:
    from diag.hosts.inventory import Host
    from diag.hosts.ssh import ParamikoTransport

MAX_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Completed:
    """A command that ran to its end.

    exit_status: None is unknown (ended by a signal, or the status never came): never take it for success.
    stdout, stderr: raw bytes; where `truncated`, head and tail with a line between them that says what is missing.
    """

    exit_status: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool


class Stream(Protocol):
    """A TCP stream as `socket.socket` has it. read/write time-outs by `settimeout`; TimeoutError."""

    def settimeout(self, timeout: float | None, /) -> None: ...
    def recv(self, nbytes: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def readable(self) -> bool:
        """A `recv` would return at once: data, or the end. So a kept connection that was closed is noticed."""

    def close(self) -> None: ...


class RemoteProcess(Protocol):
    """A running program on the host. Its stderr is drained all the time; stdout is read by the caller."""

    def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads, LinkLost when the connection is gone."""

    def close_stdin(self) -> None: ...

    def read(self, timeout_s: float | None) -> bytes:
        """Some bytes of stdout; b"" at its end. Raises TimeoutError, LinkLost."""

    def stderr(self) -> Capped:
        """What has come on stderr so far; complete once stdout has ended and `exit_status` has returned."""

    def exit_status(self, timeout_s: float) -> int | None:
        """None: unknown, or not ended within timeout_s seconds. A signal is unknown, too."""

    def close(self) -> None:
        """Let go. Does not end the program: closing its stdin is the way to ask."""


class Transport(Protocol):
    """One connection to one host; usable from several threads at once; a context manager.

    Those that are real inherit it, and have `exec` from here.
    """

    host: Host

    def exec(self, command: str, *, stdin: bytes = b"", timeout_s: float = 60, max_bytes: int = MAX_BYTES) -> Completed:
        """Feed stdin, drain both streams at once, wait for the end. HostProgramFailed after timeout_s seconds."""
        process = self.popen(command, max_stderr_bytes=max_bytes)
        try:
            return run_to_end(process, command, stdin=stdin, timeout_s=timeout_s, max_bytes=max_bytes)
        finally:
            process.close()

    def popen(self, command: str, *, max_stderr_bytes: int = _CHUNK_BYTES) -> RemoteProcess: ...

    def open_tcp(self, host: str, port: int, timeout_s: float) -> Stream:
        """A stream to host:port as seen from the host. ConnectionRefusedError, TimeoutError, LinkLost."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Capped:
    """Keeps the first and the last half of max_bytes and counts the rest. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
            room = self._half - len(self._head)
            self._head += data[:room]
            self._tail += data[max(room, 0) :]
            # Trimmed at twice its size, so that a long output costs linear time.
            if len(self._tail) > 2 * self._half:
                self._trim()

    def _trim(self) -> None:
        excess = max(0, len(self._tail) - self._half)
        del self._tail[:excess]
        self._left_out += excess

    @property
    def truncated(self) -> bool:
        with self._lock:
            self._trim()
            return self._left_out > 0

    def value(self) -> bytes:
        with self._lock:
            self._trim()
            note = b"\n[... %d bytes left out ...]\n" % self._left_out if self._left_out else b""
            return bytes(self._head) + note + bytes(self._tail)

    def lines(self, last: int = 20) -> list[str]:
        """The last lines for an error's details; invalid UTF-8 is shown as \\xNN."""
        return self.value().decode("utf-8", "backslashreplace").splitlines()[-last:]


def run_to_end(process: RemoteProcess, command: str, *, stdin: bytes, timeout_s: float, max_bytes: int) -> Completed:
    """Feed stdin, drain both streams at once, wait for the end. HostProgramFailed after timeout_s seconds."""
    deadline = time.monotonic() + timeout_s
    stdout = Capped(max_bytes)
    with _feeding(process, stdin):
        try:
            while data := process.read(max(0.0, deadline - time.monotonic())):
                stdout.add(data)
        except TimeoutError:
            raise _too_slow(command, timeout_s, process) from None
    status = process.exit_status(max(0.1, deadline - time.monotonic()))
    stderr = process.stderr()
    return Completed(status, stdout.value(), stderr.value(), stdout.truncated or stderr.truncated)


@contextmanager
def _feeding(process: RemoteProcess, stdin: bytes) -> Iterator[None]:
    """Writes from a thread: a program that answers before it has read all would deadlock with us otherwise."""

    def feed() -> None:
        try:
            for start in range(0, len(stdin), _CHUNK_BYTES):
                process.write(stdin[start : start + _CHUNK_BYTES])
            process.close_stdin()
        except (OSError, HostError):
            pass  # it stopped reading; what it answers, or that the link is lost, is seen by the reader

    thread = threading.Thread(target=feed, name="diag-stdin", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        process.close()
        raise
    thread.join(1.0)


def _too_slow(command: str, timeout_s: float, process: RemoteProcess) -> HostProgramFailed:
    return HostProgramFailed(
        f"A command on the host did not end within {timeout_s:g} s: {command[:120]}",
        next="It may still be running there; look at it with ps, or allow more time.",
        details=process.stderr().lines(),
    )


Kind = Literal["local", "paramiko", "openssh"]


def kind_of(host: Host) -> Kind:
    """Which one `connect` takes. OpenSSH where it is asked for, and where Paramiko could not honour what is on record:
    a certificate authority in known_hosts, a FIDO key."""
    if host.address == "local":
        return "local"
    if host.transport != "auto":
        return host.transport
    if shutil.which("ssh") is None:
        return "paramiko"  # which refuses, with the line that it cannot evaluate
    from diag.hosts import host_keys

    if _is_fido(host.identity_file) or host_keys.on_record(host).has_authority:
        return "openssh"
    # A hop that only OpenSSH can make takes the whole way with it.
    return "paramiko" if host.jump is None else _kind_of_hop(host.jump)


def _kind_of_hop(jump: Host) -> Kind:
    kind = kind_of(jump)
    return "paramiko" if kind == "local" else kind


def _is_fido(identity_file: Path | None) -> bool:
    if identity_file is None:
        return False
    try:
        public = identity_file.with_name(identity_file.name + ".pub").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return public.startswith("sk-")


def connect(
    host: Host, *, outer: ParamikoTransport | None = None, note: Callable[[str], None] = lambda stage: None
) -> Transport:
    """Open a connection. Raises the HostError of what went wrong; see diag/errors.py.

    outer: an open connection to `host.jump`, to be shared; note: told each stage passed (diag/hosts/check.py).
    """
    kind = kind_of(host)
    narrate.connecting(host, kind)
    opened: Transport
    if kind == "local":
        from diag.hosts.local import LocalTransport

        opened = LocalTransport(host)
    elif kind == "openssh":
        from diag.hosts.openssh import open_openssh

        opened = open_openssh(host)
        note("openssh")
    else:
        from diag.hosts.ssh import open_ssh

        opened = open_ssh(host, outer=outer, note=note)
    if host.container is None:
        return opened
    from diag.hosts.container import ContainerTransport

    return ContainerTransport(opened, host)
