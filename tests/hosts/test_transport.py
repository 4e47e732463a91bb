"""Commands over both transports: streams, caps, exit statuses, streams of TCP."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.errors import HostProgramFailed
from diag.hosts.transport import Capped, Transport


def test_a_command_gives_both_streams_and_its_status(any_transport: Transport) -> None:
    done = any_transport.exec("cat; echo err >&2; exit 3", stdin=b"in")
    assert (done.exit_status, done.stdout, done.stderr, done.truncated) == (3, b"in", b"err\n", False)


def test_death_by_signal_is_an_unknown_status(any_transport: Transport) -> None:
    assert any_transport.exec("echo before; kill -9 $$").exit_status is None


def test_both_streams_are_drained_at_once(any_transport: Transport) -> None:
    size = 6_000_000
    done = any_transport.exec(f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero")
    assert (done.exit_status, len(done.stdout), len(done.stderr)) == (0, size, size)


def test_a_program_that_answers_while_it_reads_does_not_deadlock(any_transport: Transport) -> None:
    data = bytes(range(256)) * 40_000
    assert any_transport.exec("cat", stdin=data, max_bytes=4 * len(data)).stdout == data


def test_a_program_that_does_not_read_its_input(any_transport: Transport) -> None:
    assert any_transport.exec("echo done", stdin=b"x" * 5_000_000).stdout == b"done\n"


def test_long_output_keeps_head_and_tail(any_transport: Transport) -> None:
    done = any_transport.exec("echo head; head -c 300000 /dev/zero; echo tail", max_bytes=2000)
    assert done.truncated
    assert done.stdout.startswith(b"head\n")
    assert done.stdout.endswith(b"tail\n")
    assert b"bytes left out" in done.stdout
    assert len(done.stdout) < 2100


def test_a_command_that_does_not_end_is_a_failure(any_transport: Transport) -> None:
    with pytest.raises(HostProgramFailed, match=r"did not end within 0.3 s") as caught:
        any_transport.exec("echo why >&2; exec sleep 5", timeout_s=0.3)
    assert caught.value.next


def test_bytes_that_are_not_text_stay_bytes(any_transport: Transport) -> None:
    assert any_transport.exec(r"printf '\377\000\033]0;x'").stdout == b"\xff\0\x1b]0;x"


def test_tcp_refused(any_transport: Transport) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets it either
        with pytest.raises(ConnectionRefusedError):
            any_transport.open_tcp("127.0.0.1", taken.getsockname()[1], 5)


def test_tcp_stream(any_transport: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo_once, args=(server,), daemon=True).start()
        stream = any_transport.open_tcp("127.0.0.1", server.getsockname()[1], 5)
        stream.settimeout(0.05)
        with pytest.raises(TimeoutError):
            stream.recv(10)
        assert not stream.readable()
        stream.settimeout(10)
        stream.sendall(b"hello")
        assert stream.recv(10) == b"hello"
        assert stream.recv(10) == b""
        assert stream.readable()
        stream.close()


def _echo_once(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.sendall(peer.recv(10))


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(2, 40))
@settings(deadline=None)
def test_capped_keeps_all_or_head_and_tail(parts: list[bytes], limit: int) -> None:
    capped = Capped(limit)
    for part in parts:
        capped.add(part)
    whole, half, value = b"".join(parts), limit // 2, capped.value()
    assert capped.truncated == (len(whole) > 2 * half)
    if not capped.truncated:
        assert value == whole
    else:
        assert value[:half] == whole[:half]
        assert value[-half:] == whole[-half:]
        assert b"[... %d bytes left out ...]" % (len(whole) - 2 * half) in value
