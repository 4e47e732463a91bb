"""The host's side of the wire, in this process over pipes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from diag.hosts.records import Record, RecordParser
from probes import _wire
from probes._wire import Talk, guarded


@dataclass
class Line:
    talk: Talk
    to_host: int
    from_host: int


@pytest.fixture
def line() -> Iterator[Line]:
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    yield Line(Talk(stdin_read, stdout_write), stdin_write, stdout_read)
    for number in (stdin_read, stdin_write, stdout_read, stdout_write):
        with contextlib.suppress(OSError):  # the test may have closed it
            os.close(number)


def test_messages_are_taken_apart_however_they_arrive(line: Line) -> None:
    assert line.talk.receive(0) is None
    os.write(line.to_host, b'{"n": 1}\n{"n": 2}\n{"n"')
    assert line.talk.receive(1) == {"n": 1}
    assert line.talk.receive(0) == {"n": 2}
    assert line.talk.receive(0.01) is None
    os.write(line.to_host, b': 3}\n{"n": 4}\n')
    os.close(line.to_host)
    assert line.talk.receive(None) == {"n": 3}
    # What was said before leaving still counts.
    assert line.talk.receive(None) == {"n": 4}
    for _ in range(2):
        with pytest.raises(EOFError):
            line.talk.receive(1)


@pytest.mark.parametrize("text", [b"not json\n", b"[1]\n", b"\xff\n"])
def test_a_message_that_is_none_is_an_error(line: Line, text: bytes) -> None:
    os.write(line.to_host, text)
    with pytest.raises(ValueError, match="not a message from the laptop"):
        line.talk.receive(1)


def test_events_from_several_threads_do_not_mix(line: Line) -> None:
    threads = [threading.Thread(target=line.talk.emit, args=({"n": n, "x": "é" * 3000},)) for n in range(20)]
    for thread in threads:
        thread.start()
    parser, found = RecordParser(), []
    while len(found) < 20:
        found += parser.feed(os.read(line.from_host, 999))
    assert sorted(record.document["n"] for record in found) == list(range(20))


def test_after_end_of_input_the_answer_still_goes_out(line: Line) -> None:
    os.close(line.to_host)
    with pytest.raises(EOFError):
        line.talk.receive(1)
    line.talk.end({"stopped": True})
    assert RecordParser().feed(os.read(line.from_host, 999)) == [Record("end", {"stopped": True})]


def test_nobody_reads_is_said_by_receive_not_by_emit(line: Line) -> None:
    os.close(line.from_host)
    line.talk.emit({"n": 1})
    with pytest.raises(EOFError):
        line.talk.receive(10)


def test_a_laptop_that_takes_nothing_does_not_stop_the_probe(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire, "STALLED_S", 0.05)
    line.talk.emit({"x": os.urandom(1_000_000).hex()})  # more than a pipe holds
    with pytest.raises(EOFError):
        line.talk.receive(10)


@pytest.mark.parametrize("raised", [ValueError("why"), SystemExit(3), KeyboardInterrupt(), _wire.TimeLimit("late")])
def test_whatever_is_raised_becomes_a_document(line: Line, raised: BaseException) -> None:
    def run(args: dict[str, object], talk: Talk) -> dict[str, object]:
        raise raised

    error = guarded(run, {}, line.talk)["error"]
    assert error["kind"] == "host_program_failed"
    assert error["what"].startswith(type(raised).__name__)
    assert error["details"][0].startswith("Traceback")
