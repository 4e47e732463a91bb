"""SSH by the user's own OpenSSH: for what Paramiko cannot do (host certificates, Kerberos, FIDO keys, ProxyCommand).

One `ssh` is started as the master of a shared connection (ControlMaster) and everything goes through its control
socket (mux.py), so there is one connection, one authentication and no second way around the host-key check.
Host keys are as strict as with Paramiko: unknown and changed ones are refused, and nothing is ever written.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from diag.errors import (
    AuthenticationFailed,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    LinkLost,
    PreconditionFailed,
)
from diag.hosts import mux
from diag.hosts.host_keys import where
from diag.hosts.inventory import Host
from diag.hosts.transport import Capped, Stream, Transport

ALIVE_EVERY_S = 4
ALIVE_COUNT = 2  # a dead peer is found within ALIVE_EVERY_S * (ALIVE_COUNT + 1) seconds
PERSIST_S = 5  # so long a master outlives a client that was killed

_STRICT = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "VerifyHostKeyDNS": "no",
    "NoHostAuthenticationForLocalhost": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "Tunnel": "no",
    "ConnectionAttempts": "1",
    "TCPKeepAlive": "yes",
    "ServerAliveInterval": str(ALIVE_EVERY_S),
    "ServerAliveCountMax": str(ALIVE_COUNT),
    "LogLevel": "ERROR",
}


def open_openssh(host: Host) -> OpenSshTransport:
    """Raises HostKeyUnknown, HostKeyChanged, AuthenticationFailed, HostUnreachable; PreconditionFailed: no `ssh`."""
    if shutil.which("ssh") is None:
        raise PreconditionFailed(
            f"{where(host)} needs OpenSSH's client, and there is no `ssh` on this machine.",
            next='Install it; or set transport = "paramiko" for this host, if plain keys and host keys will do.',
        )
    # mkdtemp makes a folder that is ours alone; a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="diag-", dir=os.environ.get("XDG_RUNTIME_DIR") or None))
    try:
        _start_master(host, folder)
        return OpenSshTransport(host, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def arguments(host: Host, log: Path) -> list[str]:
    """The words after `ssh` that name this host, and how strict to be; without a command.

    With `ssh_name` the user's SSH configuration applies, and what the inventory sets comes before it; without, it is
    not read at all.
    """
    words = ["-E", str(log)]
    words += [] if host.ssh_name is not None else ["-F", "none"]
    options = {**_STRICT, "ConnectTimeout": str(math.ceil(host.connect_timeout_s))}
    if host.known_hosts is not None:
        options["UserKnownHostsFile"] = _quoted(host.known_hosts)
        options["GlobalKnownHostsFile"] = "none"
    if host.identity_file is not None:
        options["IdentityFile"] = _quoted(host.identity_file)
        options["IdentitiesOnly"] = "yes"
    if host.jump is not None:
        # Not -J: the ssh that it starts for the hop would not be as strict.
        options["ProxyCommand"] = _hop(host.jump, log)
    if host.ssh_name is None:
        options["HostName"] = host.address.replace("%", "%%")
    if host.ssh_name is None or "port" in host.model_fields_set:
        options["Port"] = str(host.port)
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    words += ["-l", host.user] if host.user is not None else []
    return [*words, "--", host.ssh_name or host.address]


def _hop(jump: Host, log: Path) -> str:
    *words, dashes, name = arguments(jump, log)
    inner = [word.replace("%", "%%") for word in ["ssh", *words]]
    return shlex.join([*inner, "-W", "[%h]:%p", dashes, name.replace("%", "%%")])


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'


def _start_master(host: Host, folder: Path) -> None:
    log = folder / "log"
    command = ["ssh", "-f", "-N", "-M", "-S", str(_control(folder)), "-o", f"ControlPersist={PERSIST_S}"]
    env = {name: value for name, value in os.environ.items() if name not in ("SSH_ASKPASS", "DISPLAY")}
    hops = 1 + sum(1 for _ in _jumps(host))
    with subprocess.Popen(
        [*command, *arguments(host, log)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**env, "SSH_ASKPASS_REQUIRE": "never"},
        start_new_session=True,  # no terminal to ask at, and Ctrl-C does not reach it
    ) as process:
        try:
            # It leaves the foreground once it has authenticated.
            status = process.wait(2 * hops * host.connect_timeout_s + 5)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise HostUnreachable(
                f"{where(host)}: ssh was not done within {error.timeout:g} s.",
                next="See that the machine is up and that no firewall drops the connection.",
                details=_lines(log),
            ) from None
    if status != 0:
        raise _refusal(host, _lines(log))


def _jumps(host: Host) -> list[Host]:
    return [] if host.jump is None else [host.jump, *_jumps(host.jump)]


def _control(folder: Path) -> Path:
    return folder / "mux"


def _lines(log: Path) -> list[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip(" @\r")][-20:]


def _refusal(host: Host, said: list[str]) -> HostError:
    text = "\n".join(said)
    if re.search(r"IDENTIFICATION HAS CHANGED|REVOKED HOST KEY|is marked as revoked", text):
        return HostKeyChanged(
            f"{where(host)}: its host key is not the one on record, or is revoked. Nothing was run there.",
            next="Ask the machine's owner for the right fingerprint; only if the new key is right, correct that line.",
            details=said,
        )
    if re.search(r"Host key verification failed|host key is known|Host certificate", text):
        return HostKeyUnknown(
            f"{where(host)}: no host key or host certificate that counts is on record. Nothing was run there.",
            next=f"Get the fingerprint from the machine's owner: diag host trust {host.name} --fingerprint SHA256:...",
            details=said,
        )
    if re.search(r"Permission denied|Too many authentication failures|No more authentication methods", text):
        return AuthenticationFailed(
            f"{where(host)}: ssh was not let in as {host.user or 'the user of your SSH configuration'}.",
            next="Try it by hand: ssh " + (host.ssh_name or host.address),
            details=said,
        )
    return HostUnreachable(
        f"{where(host)}: ssh could not connect.",
        next="See that sshd runs there and that address, port and your SSH configuration are right.",
        details=said,
    )


class OpenSshTransport(Transport):
    """A shared connection. Sessions and streams may be opened from several threads at once."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self._folder = folder
        self._path = _control(folder)
        self._limit_s = host.connect_timeout_s
        try:
            self._presence = mux.Presence(self._path, self._limit_s)
            self._pid = mux.master_pid(self._path, self._limit_s)
        except OSError as error:
            raise HostUnreachable(
                f"{where(host)}: ssh connected, and ended at once: {error}.",
                next="Try it by hand: ssh " + (host.ssh_name or host.address),
                details=_lines(folder / "log"),
            ) from None

    def lost(self) -> LinkLost:
        return LinkLost(
            f"The connection to {where(self.host)} ended before the answer was complete.",
            next="What was begun there may have happened or not: connect again and look before repeating it.",
            details=_lines(self._folder / "log")[-3:],
        )

    def is_active(self) -> bool:
        return not self._presence.gone.is_set()

    def wait_gone(self, limit_s: float) -> bool:
        return self._presence.gone.wait(limit_s)

    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> OpenSshProcess:
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            session = mux.session(self._path, command, theirs, self._limit_s)
        except TimeoutError:
            _close(ours)
            raise self.lost() from None
        except OSError as error:
            _close(ours)
            raise self._not_opened(error, "the server would not run a command") from None
        finally:
            _close(theirs)
        return OpenSshProcess(self, session, ours, max_stderr_bytes)

    def open_tcp(self, host: str, port: int, timeout_s: float) -> Stream:
        # Two pairs: the end of one direction must show while the other is open.
        (to_us, to_there), (from_us, from_there) = socket.socketpair(), socket.socketpair()
        try:
            link = mux.forward(self._path, host, port, [from_there.fileno(), to_there.fileno()], timeout_s)
        except OSError as error:
            to_us.close()
            from_us.close()
            if isinstance(error, mux.MuxRefused) and "prohibited" not in str(error):
                raise ConnectionRefusedError(f"{self.host.name}: {error}") from None
            raise self._not_opened(error, "the server refused a channel") from None
        finally:
            to_there.close()
            from_there.close()
        return OpenSshStream(self, link, to_us, from_us)

    def _not_opened(self, error: OSError, what: str) -> Exception:
        if isinstance(error, TimeoutError):
            return error
        if isinstance(error, mux.MuxGone):
            return self.lost()
        return HostError(
            f"{where(self.host)}: {what}: {error}.",
            next="See MaxSessions, AllowTcpForwarding and ForceCommand in its sshd_config.",
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            mux.terminate(self._path, 2.0)
        # Gone is what the open connection to it says; the process id is only for a master that hangs.
        if not self.wait_gone(2.0):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
            self.wait_gone(2.0)
        self._presence.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class OpenSshProcess:
    def __init__(
        self, connection: OpenSshTransport, session: mux.Session, pipes: list[int], max_stderr_bytes: int
    ) -> None:
        self._connection = connection
        self._session = session
        self._stdin: int | None
        self._stdin, self._stdout, error = pipes
        self._stderr = Capped(max_stderr_bytes)
        self._lock = threading.Lock()
        self._drain = threading.Thread(target=self._drain_stderr, args=(error,), name="diag-stderr", daemon=True)
        self._drain.start()

    def _drain_stderr(self, descriptor: int) -> None:
        try:
            while data := os.read(descriptor, 65536):
                self._stderr.add(data)
        finally:
            os.close(descriptor)

    def write(self, data: bytes) -> None:
        if self._stdin is None:
            raise BrokenPipeError("stdin is closed")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin, view) :]
        except OSError:
            if self._lost():
                raise self._connection.lost() from None
            raise BrokenPipeError("the program no longer reads") from None

    def close_stdin(self) -> None:
        with self._lock:
            if self._stdin is not None:
                os.close(self._stdin)
                self._stdin = None

    def read(self, timeout_s: float | None) -> bytes:
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        data = os.read(self._stdout, 65536)
        if not data and self._lost():
            raise self._connection.lost()
        return data

    def _lost(self) -> bool:
        """The connection has gone, and the command's status with it. The master tells one just before the other."""
        self._session.ended.wait(0.5)
        return self._session.status is None and self._session.ended.is_set() and self._connection.wait_gone(0.5)

    def stderr(self) -> Capped:
        return self._stderr

    def exit_status(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        self._session.ended.wait(timeout_s)
        self._drain.join(min(0.5, max(0.0, deadline - time.monotonic())))
        return self._session.status

    def close(self) -> None:
        self.close_stdin()
        self._session.close()
        with self._lock:
            _close([self._stdout] if self._stdout >= 0 else [])
            self._stdout = -1


class OpenSshStream:
    """A TCP stream as seen from the host, over the shared connection."""

    def __init__(
        self, connection: OpenSshTransport, link: socket.socket, incoming: socket.socket, outgoing: socket.socket
    ) -> None:
        self._connection = connection
        self._link, self._incoming, self._outgoing = link, incoming, outgoing

    def settimeout(self, timeout: float | None, /) -> None:
        self._incoming.settimeout(timeout)
        self._outgoing.settimeout(timeout)

    def recv(self, nbytes: int, /) -> bytes:
        data = self._incoming.recv(nbytes)
        if not data and self._connection.wait_gone(0.2):
            raise self._connection.lost()
        return data

    def sendall(self, data: bytes, /) -> None:
        try:
            self._outgoing.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            if self._connection.wait_gone(0.5):
                raise self._connection.lost() from None
            raise BrokenPipeError("the other side no longer reads") from None

    def readable(self) -> bool:
        return bool(select.select([self._incoming], [], [], 0)[0])

    def close(self) -> None:
        for each in (self._incoming, self._outgoing, self._link):
            each.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
