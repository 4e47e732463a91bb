"""Against a second SSH implementation, which can be made to misbehave in ways that OpenSSH cannot."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from diag.errors import HostError
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport, connect

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed (pip install 'diag[lab]')")


class Server(asyncssh.SSHServer):
    open: ClassVar[list[Any]] = []

    def connection_made(self, conn: object) -> None:
        self.open.append(conn)

    def begin_auth(self, username: str) -> bool:
        return username != "nobody"

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: object) -> bool:
        return True


async def handle(process: Any) -> None:
    command = process.command
    if command == "no status":
        process.stdout.write(b"all of it")
        process.channel.close()
        return
    process.stdout.write(await process.stdin.read())
    process.exit(3)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder: Path = tmp_path_factory.mktemp("peer")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(folder / "key")
    ports: queue.Queue[int] = queue.Queue()
    stop = threading.Event()

    async def serve() -> None:
        server = await asyncssh.create_server(
            Server, "127.0.0.1", 0, server_host_keys=[key], process_factory=handle, encoding=None
        )
        ports.put(server.get_port())
        await asyncio.to_thread(stop.wait)
        server.close()
        for connection in Server.open:
            connection.abort()
            await connection.wait_closed()
        await asyncio.sleep(0.05)  # asyncio closes the sockets in a later turn of its loop

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port = ports.get(timeout=30)
    public = key.export_public_key().decode()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    yield Host(
        name="peer",
        address="127.0.0.1",
        port=port,
        user="me",
        identity_file=folder / "key",
        known_hosts=folder / "known_hosts",
    )
    stop.set()
    thread.join()


@pytest.fixture
def opened(peer: Host) -> Iterator[Transport]:
    with connect(peer) as transport:
        yield transport


def test_a_command(opened: Transport) -> None:
    done = opened.exec("echo", stdin=b"x" * 100_000)
    assert (done.exit_status, done.stdout) == (3, b"x" * 100_000)


def test_a_status_that_never_comes_is_unknown(opened: Transport) -> None:
    done = opened.exec("no status")
    assert done.stdout == b"all of it"
    assert done.exit_status is None


def test_a_server_that_lets_anybody_in_is_still_asked_for_the_key(peer: Host) -> None:
    # It wants no authentication from this user; we offer the key all the same, and no command runs before.
    with connect(peer.model_copy(update={"user": "nobody"})) as transport:
        assert transport.exec("echo").exit_status == 3


def test_forwarding_that_is_refused(opened: Transport) -> None:
    with pytest.raises((HostError, ConnectionRefusedError)):
        opened.open_tcp("127.0.0.1", 1, 5)
