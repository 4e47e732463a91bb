"""Laptop side of the wire: find our records in a stream that may carry anything else (docs/host-protocol.md)."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_JSON_BYTES = 512 * 1024 * 1024
_HEADER = re.compile(rb"\x1e(event|end) ([0-9]{1,8}) ([0-9a-f]{64})\n")
_HEADER_BYTES = len(b"\x1eevent 00000000 ") + 64 + 1


@dataclass(frozen=True)
class Record:
    kind: Literal["event", "end"]
    document: dict[str, Any]


class RecordParser:
    """Feed bytes as they come; get the records in them. Everything that is not a whole, sound record is skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        self._buffer += data
        return list(self._scan(at_end=False))

    def finish(self) -> list[Record]:
        """At the end of the stream: what looked like the start of a record was none; look behind it."""
        return list(self._scan(at_end=True))

    def _scan(self, *, at_end: bool) -> Iterator[Record]:
        while (start := self._buffer.find(b"\x1e")) >= 0:
            del self._buffer[:start]
            header = _HEADER.match(bytes(self._buffer[:_HEADER_BYTES]))
            if header is not None and int(header[2]) > MAX_BODY_BYTES:
                header = None
            if not at_end and self._may_continue(header):
                return
            end = _end(header)
            record = _decode(header, bytes(self._buffer[header.end() : end])) if header is not None else None
            del self._buffer[: end if record is not None else 1]
            if record is not None:
                yield record
        self._buffer.clear()

    def _may_continue(self, header: re.Match[bytes] | None) -> bool:
        if header is None:
            return len(self._buffer) < _HEADER_BYTES and b"\n" not in self._buffer
        return len(self._buffer) < _end(header)


def _end(header: re.Match[bytes] | None) -> int:
    return header.end() + int(header[2]) if header is not None else 0


def _decode(header: re.Match[bytes], body: bytes) -> Record | None:
    # At the end of the stream the body may be shorter than announced.
    if len(body) != int(header[2]) or hashlib.sha256(body).hexdigest().encode() != header[3]:
        return None
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(body, MAX_JSON_BYTES)
        document = json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        return None
    if not inflater.eof or not isinstance(document, dict):
        return None
    return Record("end" if header[1] == b"end" else "event", document)
