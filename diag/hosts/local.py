"""The laptop itself as a host: the same protocol over a subprocess and plain sockets."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from typing import IO

from diag.errors import HostUnreachable
from diag.hosts.inventory import Host
from diag.hosts.transport import Capped, Transport


class LocalProcess:
    def __init__(self, command: str, max_stderr_bytes: int) -> None:
        # A session of its own: as over SSH, Ctrl-C here reaches the program only by our closing its stdin.
        self._popen = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._stdin = _stream(self._popen.stdin)
        self._stdout = _stream(self._popen.stdout)
        self._stderr = Capped(max_stderr_bytes)
        self._drain = threading.Thread(target=self._drain_stderr, name="diag-stderr", daemon=True)
        self._drain.start()

    def _drain_stderr(self) -> None:
        with _stream(self._popen.stderr) as stream:
            while data := os.read(stream.fileno(), 65536):
                self._stderr.add(data)

    def write(self, data: bytes) -> None:
        if self._stdin.closed:
            raise BrokenPipeError("stdin is closed")
        view = memoryview(data)
        while view:
            view = view[os.write(self._stdin.fileno(), view) :]

    def close_stdin(self) -> None:
        self._stdin.close()

    def read(self, timeout_s: float | None) -> bytes:
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), 65536)

    def stderr(self) -> Capped:
        return self._stderr

    def exit_status(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        # A daemon left behind may hold stderr open; its text is not worth waiting for.
        self._drain.join(min(0.5, max(0.0, deadline - time.monotonic())))
        return status if status >= 0 else None

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        if self._popen.poll() is None:
            # Reap it when it ends, in the background, as sshd would.
            threading.Thread(target=self._popen.wait, name="diag-reap", daemon=True).start()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("not a pipe")
    return stream


class LocalStream(socket.socket):
    def readable(self) -> bool:
        return bool(select.select([self], [], [], 0)[0])


class LocalTransport(Transport):
    """A `Host` whose address is "local"."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> LocalProcess:
        try:
            return LocalProcess(command, max_stderr_bytes)
        except OSError as error:
            raise HostUnreachable(f"No shell could be started on this machine: {error}.") from error

    def open_tcp(self, host: str, port: int, timeout_s: float) -> LocalStream:
        sock = socket.create_connection((host, port), timeout_s)
        return LocalStream(fileno=sock.detach())

    def close(self) -> None:
        pass
