"""Records are found whatever surrounds them, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diag.hosts.records import Record, RecordParser
from probes._wire import record

DOCUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.none(), max_size=3)
# Arbitrary bytes, and bytes that look like ours: separators, headers cut short, sound headers of other bodies.
NOISE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\x1e", b"\x1eend ", b"\x1eevent 12 ", b"\x1eend 5 " + b"0" * 64 + b"\nabc", b"Welcome!\r\n"]),
)


def parse(stream: bytes, sizes: list[int]) -> list[Record]:
    parser = RecordParser()
    found = []
    while stream:
        size = sizes.pop() if sizes else len(stream)
        found += parser.feed(stream[:size])
        stream = stream[size:]
    return found + parser.finish()


@given(
    st.lists(st.tuples(NOISE, st.sampled_from(["event", "end"]), DOCUMENTS), max_size=4),
    NOISE,
    st.lists(st.integers(1, 50), max_size=40),
)
@settings(max_examples=300, deadline=None)
def test_records_survive_any_noise_between_them_and_any_splitting(
    parts: list[tuple[bytes, str, dict[str, Any]]], last: bytes, sizes: list[int]
) -> None:
    stream = b"".join(noise + record(kind, document) for noise, kind, document in parts) + last
    assert parse(stream, sizes) == [Record(kind, document) for _, kind, document in parts]  # type: ignore[arg-type]


@given(DOCUMENTS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_cut_or_changed_record_is_none(document: dict[str, Any], data: st.DataObject) -> None:
    whole = record("end", document)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert parse(whole[:cut], []) == []
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(whole)
    changed[cut] ^= flip
    assert parse(bytes(changed), []) == []


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_noise_alone_is_nothing(noise: bytes) -> None:
    assert parse(noise, []) == []


def test_a_huge_announced_length_does_not_swallow_what_follows() -> None:
    header = b"\x1eend 99999999 " + b"0" * 64 + b"\n"
    assert parse(header + record("end", {"a": 1}), []) == [Record("end", {"a": 1})]


def test_text_that_is_not_utf_8_on_the_host_arrives() -> None:
    assert parse(record("end", {"name": "\udcff"}), []) == [Record("end", {"name": "\udcff"})]
