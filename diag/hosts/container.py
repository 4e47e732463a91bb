"""Everything inside a container on the host, where the engine usually lives: `docker exec`, `podman exec`,
`kubectl exec`. One exec there is one exec here; nothing is installed in the container, and no port is opened."""

from __future__ import annotations

import shlex

from diag.hosts import courier
from diag.hosts.inventory import Host
from diag.hosts.transport import RemoteProcess, Stream, Transport


def words(container: str) -> list[str]:
    """The command that runs the words after it inside. container: as `Host.container`, which has been checked."""
    engine, _, name = container.partition(":")
    if engine != "kubectl":
        return [engine, "exec", "-i", name]
    namespace, pod, *rest = name.split("/")
    return ["kubectl", "exec", "-i", "-n", namespace, pod, *(["-c", rest[0]] if rest else []), "--"]


class ContainerTransport(Transport):
    """A transport into the container `host.container`, over one to the host that runs it."""

    def __init__(self, outer: Transport, host: Host) -> None:
        self.host = host
        self._outer = outer
        self._words = words(host.container or "")

    def _inside(self, command: str) -> str:
        return shlex.join([*self._words, "/bin/sh", "-c", command])

    def popen(self, command: str, *, max_stderr_bytes: int = 65536) -> RemoteProcess:
        return _Inside(self._outer.popen(self._inside(command), max_stderr_bytes=max_stderr_bytes))

    def open_tcp(self, host: str, port: int, timeout_s: float) -> Stream:
        """By a program inside: the container's own 127.0.0.1 is not the host's."""
        return _Relayed(courier.open_relay(self, host, port, timeout_s))

    def close(self) -> None:
        self._outer.close()


class _Inside:
    """A program in the container. The engine tells its end by a signal as a status, 128 and the signal's number."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self.write = process.write
        self.close_stdin = process.close_stdin
        self.read = process.read
        self.stderr = process.stderr
        self.close = process.close

    def exit_status(self, timeout_s: float) -> int | None:
        status = self._process.exit_status(timeout_s)
        return status if status is None or status <= 128 else None


class _Relayed:
    """The stdin and stdout of a relay, as a socket."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._timeout_s: float | None = None
        self._kept = b""
        self._ended = False

    def settimeout(self, timeout: float | None, /) -> None:
        self._timeout_s = timeout

    def recv(self, nbytes: int, /) -> bytes:
        if not self._kept and not self._ended:
            self._fill(self._timeout_s)
        data, self._kept = self._kept[:nbytes], self._kept[nbytes:]
        return data

    def _fill(self, timeout_s: float | None) -> None:
        self._kept = self._process.read(timeout_s)
        self._ended = not self._kept

    def sendall(self, data: bytes, /) -> None:
        self._process.write(data)

    def readable(self) -> bool:
        if not self._kept and not self._ended:
            try:
                self._fill(0)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        # The relay sees the end of its input, hangs up, and is gone.
        self._process.close()
