"""The bytes of a batch, which is what one fsync covers. `docs/log-format.md` describes the same in prose.

    header (64 bytes) | heap | `count` records (96 bytes each)

The heap holds the variable bytes of each record, one extent after the other: body, key, headers, digest. It comes
before the records, so that the position of an extent is known as soon as its event is appended, before the number of
records in the batch is. A record is a row of one fixed-width table: one `struct.pack` writes it, and one
`numpy.frombuffer` reads a whole batch. `encode.py` and `decode.py` turn events into records and back.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.errors import DamagedLogError
from penstock.model.values import Nanos, Position

MAGIC = b"PBAT"
FORMAT = 1
_HEADER = Struct("<4sHHQQqIII16xI")  # The last four bytes are the header's own CRC-32C.
HEADER_BYTES = _HEADER.size
_CRC = Struct("<I")
FIELDS = {  # Of a record, with their types: letters that `struct` and numpy have in common.
    "kind": "B",
    "flags": "B",
    "key_bytes": "H",
    "queue": "I",
    "sequence": "Q",
    "time": "q",
    "created": "q",
    "visible_at": "q",
    "expires_at": "q",
    "priority": "I",
    "receives": "I",
    "consumer": "I",
    "content_type": "I",
    "sender": "I",
    "object": "I",
    "topics": "I",
    "to_queue": "I",
    "to_sequence": "Q",
    "body_bytes": "I",
    "headers_bytes": "I",
}
RECORD = Struct("<" + "".join(FIELDS.values()))
RECORD_BYTES = RECORD.size
RECORD_DTYPE = np.dtype([(name, "<" + letter) for name, letter in FIELDS.items()])
assert HEADER_BYTES == 64
assert RECORD_BYTES == RECORD_DTYPE.itemsize == 96

HAS_DIGEST = 1  # Flag: the extent ends with a SHA-256: of the body, or of a request.
COMPLETE = 2  # Flag: the confirmation was the last one needed.
WAS_FETCHED = 4  # Flag: the dead-lettering record contains the delivery that caused it.
LEASED = 8  # Flag: the delivery is a lease, which ends at `visible_at`.
AHEAD = 16  # Flag: a delivery that does not count until it begins; a lease that ended before that.
BEGUN = 32  # Flag: a delivery that was fetched ahead begins.
DIGEST_BYTES = 32

# How the fields of events are stored that are not fields of a record with the same name.
FLAGS = {"complete": COMPLETE, "fetched": WAS_FETCHED, "leased": LEASED, "ahead": AHEAD, "begun": BEGUN}
RENAMED = {
    "lease_ns": "to_sequence",
    "forgotten": "receives",
    "messages": "receives",
    "options": "priority",
    "shard": "to_queue",
    "wish": "priority",
}
SLOTS = {
    **dict.fromkeys(("body", "result", "reason", "extent", "answer", "outcomes", "content"), "body"),
    **dict.fromkeys(("target", "origin"), "key"),
    **{name: name for name in ("key", "headers", "digest")},
}


class Point(NamedTuple):
    """A point in the log: the offset of an event, and the position of the batch that begins with it."""

    offset: int
    position: Position


START = Point(0, 0)  # Where every log begins.


class Header(NamedTuple):
    base_offset: int  # The offset of the first record; the others follow it.
    base_position: Position  # Where the batch begins in the log.
    time: Nanos
    records: int
    heap_bytes: int
    payload_crc: int

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.heap_bytes + self.records * RECORD_BYTES

    @property
    def start(self) -> Point:
        return Point(self.base_offset, self.base_position)

    @property
    def end(self) -> Point:
        """Where the next batch begins."""
        return Point(self.base_offset + self.records, self.base_position + self.total_bytes)

    def to_bytes(self) -> bytes:
        data = _HEADER.pack(MAGIC, FORMAT, 0, *self, 0)[:-4]
        return data + _CRC.pack(crc32c(data))


Batches = list[tuple[Header, bytes]]  # With their payloads: heap and records.


def read_header(data: bytes) -> Header | None:
    """The header at the start of `data`, or None if there is no whole one."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    if _CRC.unpack_from(data, HEADER_BYTES - 4)[0] != crc32c(data[: HEADER_BYTES - 4]):
        return None
    _, number, _, *facts = _HEADER.unpack_from(data)
    if number != FORMAT:
        raise DamagedLogError(f"the log has format {number}; this version reads format {FORMAT}")
    if (facts[0] | facts[1]) >> 63:
        return None  # Nobody wrote so much. Readers count in signed numbers.
    return Header(*facts[:-1])


def is_whole(header: Header, payload: bytes | memoryview) -> bool:
    return len(payload) == header.total_bytes - HEADER_BYTES and crc32c(payload) == header.payload_crc


def check_payload(header: Header, payload: bytes) -> bytes:
    """The payload, if it is whole."""
    if not is_whole(header, payload):
        end = header.end.offset
        raise DamagedLogError(f"events {header.base_offset} to {end - 1} are damaged; read on from offset {end}")
    return payload


def records_of(header: Header, payload: bytes | memoryview) -> np.ndarray:
    """The fixed-width part of a batch, as a table; no copy."""
    return np.frombuffer(payload, dtype=RECORD_DTYPE, count=header.records, offset=header.heap_bytes)


def extent_bounds(records: np.ndarray) -> np.ndarray:
    """Where the extents of these records begin in the heap, followed by the end of the last one."""
    bounds = np.zeros(len(records) + 1, dtype=np.int64)
    np.cumsum(
        records["body_bytes"].astype(np.int64) + records["key_bytes"] + records["headers_bytes"], out=bounds[1:]
    )
    bounds[1:] += np.cumsum((records["flags"] & HAS_DIGEST).astype(np.int64)) * DIGEST_BYTES
    return bounds
