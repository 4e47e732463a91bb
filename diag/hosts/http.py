"""HTTP to a server on the host, over the connection we have: no tunnel, no listening port anywhere (N7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from diag.hosts.transport import Stream, Transport


def http_client(transport: Transport, port: int, host: str = "127.0.0.1", timeout_s: float = 60) -> httpx.Client:
    """A client whose base URL is http://host:port as seen from the host; usable from several threads at once.

    A refused connection is httpx.ConnectError. A lost link is diag's LinkLost. It reaches no other address,
    and reads no proxy or .netrc settings of this machine.
    """
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return httpx.Client(
        base_url=url,
        transport=ChannelTransport(transport, host, port),
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, transport.host.connect_timeout_s)),
        trust_env=False,
    )


class ChannelTransport(httpx.BaseTransport):
    def __init__(self, transport: Transport, host: str, port: int) -> None:
        self._pool = httpcore.ConnectionPool(
            network_backend=_Backend(transport, host, port),
            max_connections=64,
            max_keepalive_connections=16,
            keepalive_expiry=5.0,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        with _httpx_errors():
            response = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, transport: Transport, host: str, port: int) -> None:
        self._transport = transport
        self._address = (host, port)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        if (host, port) != self._address:
            raise httpcore.ConnectError(f"this client talks to {self._address} only, not to {(host, port)}")
        try:
            return _Stream(self._transport.open_tcp(host, port, 60 if timeout is None else timeout))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._stream.settimeout(timeout)
            return self._stream.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._stream.settimeout(timeout)
            self._stream.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.readable() if info == "is_readable" else None


@contextmanager
def _httpx_errors() -> Iterator[None]:
    """httpx and httpcore give the same names to the same failures."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error
