"""Events as bytes: a batch is what one fsync covers. `docs/log-format.md` is this file in prose.

    header (64 bytes) | heap | `count` records (96 bytes each)

The heap holds the variable bytes of each record, one extent after the other: body, key, headers, digest. It stands
before the records, so that the place of an extent in the log is known when its event is appended, before anybody
knows how many will share the batch. A record is a row of one fixed-width table: one `struct.pack` writes it, and one
`numpy.frombuffer` reads a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from penstock.errors import DamagedLogError
from penstock.model.events import (
    Admitted,
    BatchCommitted,
    Carried,
    Completed,
    Damaged,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    DeliveredRun,
    Event,
    Exasperated,
    Expired,
    Extended,
    Failed,
    Fetched,
    FetchedRun,
    GivenBack,
    HandedOver,
    HandedOverRun,
    Invalidated,
    Kicked,
    KickedRun,
    Logged,
    LoggedRun,
    MessageEvent,
    MessageRun,
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueuedRun,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    Restored,
    ResultCarried,
    ResultStored,
    Retried,
    Staged,
    Succeeded,
    SucceededRun,
    Unchanged,
    UnchangedRun,
    Unstaged,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Position

MAGIC = b"PBAT"
FORMAT = 1
_HEADER = Struct("<4sHHQQqIII16xI")  # The last four bytes are the header's own CRC-32C.
HEADER_BYTES = _HEADER.size
_HEADER_CRC = Struct("<I")
_RECORD = Struct("<BBHIQqqqqIIIIIIIIQII")
RECORD_BYTES = _RECORD.size
RECORD_DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("key_bytes", "<u2"),
        ("queue", "<u4"),
        ("sequence", "<u8"),
        ("time", "<i8"),
        ("created", "<i8"),
        ("visible_at", "<i8"),
        ("expires_at", "<i8"),
        ("priority", "<u4"),
        ("receives", "<u4"),
        ("consumer", "<u4"),
        ("content_type", "<u4"),
        ("sender", "<u4"),
        ("object", "<u4"),
        ("topics", "<u4"),
        ("to_queue", "<u4"),
        ("to_sequence", "<u8"),
        ("body_bytes", "<u4"),
        ("headers_bytes", "<u4"),
    ]
)
assert HEADER_BYTES == 64
assert RECORD_BYTES == RECORD_DTYPE.itemsize == 96

HAS_DIGEST = 1  # Flag: the extent ends with a SHA-256 of the body.
COMPLETE = 2  # Flag: the confirmation was the last one needed.
WAS_FETCHED = 4  # Flag: the dead-lettering record contains the delivery that caused it.
LEASED = 8  # Flag: what was delivered is with its consumer until then.
DIGEST_BYTES = 32


class Header(NamedTuple):
    base_offset: int  # The offset of the first record; the others count on.
    base_position: Position  # Where the batch begins in the log.
    time: Nanos
    records: int
    heap_bytes: int
    payload_crc: int

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.heap_bytes + self.records * RECORD_BYTES


class Batch:
    """Collects events. The position of each extent is final as soon as it is added."""

    def __init__(self, base_offset: int, base_position: Position) -> None:
        self.base_offset = base_offset
        self.base_position = base_position
        self._heap_position = base_position + HEADER_BYTES
        self.heap = bytearray()
        self.records = bytearray()
        self.count = 0

    def add(self, event: Event) -> Position:
        heap = self.heap
        position = self._heap_position + len(heap)
        _ENCODERS[type(event)](event, heap, self.records)
        self.count = len(self.records) // RECORD_BYTES
        return position

    @property
    def size(self) -> int:
        return len(self.heap) + len(self.records)

    @property
    def end_position(self) -> Position:
        return self.base_position + HEADER_BYTES + len(self.heap) + len(self.records)

    def read(self, position: Position, size: int) -> bytes:
        start = position - self._heap_position
        return bytes(self.heap[start : start + size])

    def seal(self, now: Nanos) -> bytes:
        payload_crc = crc32c(self.records, crc32c(self.heap))
        header = bytearray(
            _HEADER.pack(
                *(MAGIC, FORMAT, 0, self.base_offset, self.base_position, now),
                *(self.count, len(self.heap), payload_crc, 0),
            )
        )
        _HEADER_CRC.pack_into(header, HEADER_BYTES - 4, crc32c(header[: HEADER_BYTES - 4]))
        return b"".join((header, self.heap, self.records))


def read_header(data: bytes) -> Header | None:
    """The header at the start of `data`, or None if there is no whole one."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    if _HEADER_CRC.unpack_from(data, HEADER_BYTES - 4)[0] != crc32c(data[: HEADER_BYTES - 4]):
        return None
    _, number, _, *facts = _HEADER.unpack_from(data)
    if number != FORMAT:
        raise DamagedLogError(f"the log has format {number}; this version reads format {FORMAT}")
    return Header(*facts[:-1])


def is_whole(header: Header, payload: bytes | memoryview) -> bool:
    return len(payload) == header.total_bytes - HEADER_BYTES and crc32c(payload) == header.payload_crc


def records_of(header: Header, payload: bytes | memoryview) -> np.ndarray:
    """The fixed-width part of a batch, as a table; no copy."""
    return np.frombuffer(payload, dtype=RECORD_DTYPE, count=header.records, offset=header.heap_bytes)


def extent_bounds(records: np.ndarray) -> np.ndarray:
    """Where the extents of these records begin in the heap, and behind them the end of the last one."""
    bounds = np.zeros(len(records) + 1, dtype=np.int64)
    np.cumsum(
        records["body_bytes"].astype(np.int64) + records["key_bytes"] + records["headers_bytes"], out=bounds[1:]
    )
    bounds[1:] += np.cumsum((records["flags"] & HAS_DIGEST).astype(np.int64)) * DIGEST_BYTES
    return bounds


def events_of(header: Header, payload: bytes) -> Iterator[tuple[Event, Position]]:
    """The events of a batch, with the positions of their extents."""
    at = 0
    heap_position = header.base_position + HEADER_BYTES
    for record in _RECORD.iter_unpack(memoryview(payload)[header.heap_bytes :]):
        key_end = at + record[18] + record[2]
        end = key_end + record[19] + (DIGEST_BYTES if record[1] & HAS_DIGEST else 0)
        yield _DECODERS[record[0]](record, payload[at:end]), heap_position + at
        at = end


def events_at(header: Header, payload: bytes, indices: Sequence[int]) -> Iterator[tuple[int, Event]]:
    """Some events of a batch, each with its index."""
    records = records_of(header, payload)
    bounds = extent_bounds(records).tolist()
    for at in indices:
        record = records[at].item()
        yield at, _DECODERS[record[0]](record, payload[bounds[at] : bounds[at + 1]])


# ── Encoding: one function a shape ────────────────────────────────────────────────────────────────────────


def _encode_logged(event: Logged, heap: bytearray, records: bytearray) -> None:
    body, key, headers, digest = event.body, event.key, event.headers, event.digest
    heap += body
    if key or headers or digest:
        heap += key
        heap += headers
        heap += digest
    records += _RECORD.pack(
        16,  # Kind.LOGGED; a plain number, because this is the hottest line of the log.
        HAS_DIGEST if digest else 0,
        len(key),
        event.queue,
        event.sequence,
        event.time,
        event.time,
        event.visible_at,
        event.expires_at,
        event.priority,
        0,
        0,
        event.content_type,
        event.sender,
        event.object,
        event.topics,
        0,
        event.lease_ns,
        len(body),
        len(headers),
    )


def _encode_logged_run(event: LoggedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as a `Logged` for each message."""
    count = len(event.bodies)
    table = np.zeros(count, dtype=RECORD_DTYPE)
    table["kind"] = event.kind
    table["queue"] = event.queue
    table["sequence"] = np.arange(event.sequence, event.sequence + count)
    table["time"] = event.time
    table["created"] = event.time
    table["visible_at"] = event.visible_at
    table["expires_at"] = event.expires_at
    table["priority"] = event.priority
    table["content_type"] = event.content_type
    table["sender"] = event.sender
    table["object"] = event.object
    table["topics"] = event.topics
    table["to_sequence"] = event.lease_ns
    table["body_bytes"] = np.fromiter(map(len, event.bodies), dtype=np.int64, count=count)
    if event.keys:
        table["key_bytes"] = np.fromiter(map(len, event.keys), dtype=np.int64, count=count)
        heap += b"".join(chain.from_iterable(zip(event.bodies, event.keys, strict=True)))
    else:
        heap += b"".join(event.bodies)
    records += table.tobytes()


def _encode_queued(event: Queued, _: bytearray, records: bytearray) -> None:
    records += _RECORD.pack(
        *(event.kind, 0, 0, event.queue, event.sequence, event.time, event.created),
        *(event.visible_at, event.expires_at, event.priority, 0, 0),
        *(event.content_type, event.sender, event.object, event.topics, event.to_queue, event.to_sequence, 0, 0),
    )


def _encode_queued_run(event: QueuedRun, _: bytearray, records: bytearray) -> None:
    """The same records as a `Queued` for each message."""
    table = np.zeros(len(event.queues), dtype=RECORD_DTYPE)
    table["kind"] = event.kind
    table["queue"] = event.queues
    table["sequence"] = event.sequences
    table["time"] = event.time
    table["created"] = event.created
    table["visible_at"] = event.visible_at
    table["expires_at"] = event.expires_at
    table["priority"] = event.priorities
    table["content_type"] = event.content_types
    table["sender"] = event.senders
    table["object"] = event.objects
    table["topics"] = event.topics
    table["to_queue"] = event.to_queues
    table["to_sequence"] = event.to_sequences
    records += table.tobytes()


def _encode_unchanged(event: Unchanged, heap: bytearray, records: bytearray) -> None:
    heap += event.key
    heap += event.headers
    records += _RECORD.pack(
        *(event.kind, 0, len(event.key), event.queue, event.sequence, event.time, event.time),
        *(0, 0, event.priority, 0, 0, event.content_type, event.sender, event.object, event.topics),
        *(event.to_queue, event.to_sequence, 0, len(event.headers)),
    )


def _encode_unchanged_run(event: UnchangedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as an `Unchanged` for each message."""
    count = len(event.keys)
    table = np.zeros(count, dtype=RECORD_DTYPE)
    for name in ("kind", "queue", "time", "priority", "content_type", "sender", "object", "topics"):
        table[name] = getattr(event, name)
    table["sequence"] = np.arange(event.sequence, event.sequence + count)
    table["created"] = event.time
    table["to_queue"] = event.to_queues
    table["to_sequence"] = event.to_sequences
    table["key_bytes"] = [len(key) for key in event.keys]
    heap += b"".join(event.keys)
    records += table.tobytes()


def _encode_message_run(event: MessageRun, _: bytearray, records: bytearray) -> None:
    """The same records as an event for each message."""
    table = np.zeros(len(event.sequences), dtype=RECORD_DTYPE)
    table["kind"] = event.kind
    table["queue"] = event.queue
    table["sequence"] = event.sequences
    table["time"] = event.time
    table["created"] = event.created
    table["receives"] = event.receives
    table["consumer"] = event.consumers
    if type(event) is FetchedRun or type(event) is DeliveredRun:
        table["visible_at"] = event.visible_at
        table["flags"] = LEASED if type(event) is DeliveredRun and event.leased else 0
    elif type(event) is SucceededRun:
        table["flags"] = COMPLETE
    records += table.tobytes()


def _encode_message_event(event: Any, _: bytearray, records: bytearray) -> None:
    """An event that ends a message and has nothing else to say."""
    _add_message_record(records, event)


def _encode_leased(event: Any, _: bytearray, records: bytearray) -> None:
    _add_message_record(records, event, 0, event.visible_at)


def _encode_delivered(event: Delivered, _: bytearray, records: bytearray) -> None:
    _add_message_record(records, event, LEASED if event.leased else 0, event.visible_at)


def _encode_succeeded(event: Succeeded, heap: bytearray, records: bytearray) -> None:
    if event.result:
        heap += event.result
    _add_message_record(records, event, COMPLETE if event.complete else 0, 0, 0, 0, 0, len(event.result))


def _encode_dead_lettered(event: DeadLettered, _: bytearray, records: bytearray) -> None:
    _add_message_record(
        records,
        event,
        flags=WAS_FETCHED if event.fetched else 0,
        visible_at=event.visible_at,
        expires_at=event.expires_at,
        to_queue=event.to_queue,
        to_sequence=event.to_sequence,
    )


def _encode_moved(event: Moved, _: bytearray, records: bytearray) -> None:
    target = (event.to_queue, event.to_sequence)
    _add_message_record(records, event, 0, event.visible_at, event.expires_at, *target)


def _encode_carried(event: Carried, heap: bytearray, records: bytearray) -> None:
    heap += event.extent
    _add_message_record(records, event, 0, 0, 0, event.to_queue, event.to_sequence, len(event.extent))


def _encode_result(event: ResultStored | ResultCarried, heap: bytearray, records: bytearray) -> None:
    heap += event.result
    _add_message_record(records, event, body_bytes=len(event.result))


def _encode_receiver_moved(event: ReceiverMoved, _: bytearray, records: bytearray) -> None:
    records += _RECORD.pack(
        *(event.kind, 0, 0, event.queue, event.sequence, event.time, event.time, 0, 0),
        *(0, 0, event.consumer, 0, 0, 0, 0, 0, 0, 0, 0),
    )


def _add_message_record(
    records: bytearray,
    event: MessageEvent,
    flags: int = 0,
    visible_at: Nanos = 0,
    expires_at: Nanos = 0,
    to_queue: int = 0,
    to_sequence: int = 0,
    body_bytes: int = 0,
) -> None:
    """Every event about a message already logged. What an event does not have is zero."""
    records += _RECORD.pack(
        event.kind,
        flags,
        0,
        event.queue,
        event.sequence,
        event.time,
        event.created,
        visible_at,
        expires_at,
        0,
        event.receives,
        event.consumer,
        0,
        0,
        0,
        0,
        to_queue,
        to_sequence,
        body_bytes,
        0,
    )


def _encode_definition(event: Event, number: int, body: bytes, heap: bytearray, records: bytearray) -> None:
    heap += body
    records += _RECORD.pack(
        *(event.kind, 0, 0, number, 0, event.time, event.time, 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0, 0, len(body), 0),
    )


class _QueueFacts(msgspec.Struct):
    name: str
    settings: QueueSettings


def _encode_name(event: NameDefined | NameForgotten, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.number, event.text.encode(), heap, records)


def _encode_queue_created(event: QueueCreated, heap: bytearray, records: bytearray) -> None:
    facts = msgspec.json.encode({"name": event.name, "settings": event.settings.to_store()})
    _encode_definition(event, event.queue, facts, heap, records)


def _encode_queue_changed(event: QueueChanged, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.queue, msgspec.json.encode(event.settings.to_store()), heap, records)


def _encode_queue_removed(event: QueueRemoved, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.queue, b"", heap, records)


class _StagedFacts(msgspec.Struct):
    query: str
    batch: int
    part: str
    chunk: int
    rows: int


def _encode_staged(event: Staged, heap: bytearray, records: bytearray) -> None:
    """The rows are the body, and what they are stands in the place of headers."""
    facts = msgspec.json.encode(_StagedFacts(event.query, event.batch, event.part, event.chunk, event.rows))
    heap += event.data
    heap += facts
    records += _RECORD.pack(
        *(event.kind, 0, 0, 0, 0, event.time, event.time, 0, event.expires_at),
        *(0, 0, 0, 0, 0, 0, 0, 0, 0, len(event.data), len(facts)),
    )


def _encode_as_json(event: Event, heap: bytearray, records: bytearray) -> None:
    """An event of which there are few: all of it as JSON."""
    _encode_definition(event, 0, msgspec.json.encode(event), heap, records)


_ENCODERS: dict[type[Event], Callable[[Any, bytearray, bytearray], None]] = {
    Logged: _encode_logged,
    LoggedRun: _encode_logged_run,
    Queued: _encode_queued,
    QueuedRun: _encode_queued_run,
    Unchanged: _encode_unchanged,
    UnchangedRun: _encode_unchanged_run,
    **dict.fromkeys((FetchedRun, KickedRun, SucceededRun, DeliveredRun, HandedOverRun), _encode_message_run),
    NameDefined: _encode_name,
    NameForgotten: _encode_name,
    QueueCreated: _encode_queue_created,
    QueueChanged: _encode_queue_changed,
    QueueRemoved: _encode_queue_removed,
    **dict.fromkeys((Fetched, Retried, GivenBack, Restored, Extended, Rescheduled), _encode_leased),
    Succeeded: _encode_succeeded,
    DeadLettered: _encode_dead_lettered,
    Moved: _encode_moved,
    Carried: _encode_carried,
    Delivered: _encode_delivered,
    ResultStored: _encode_result,
    ResultCarried: _encode_result,
    ReceiverMoved: _encode_receiver_moved,
    Staged: _encode_staged,
    **dict.fromkeys((BatchCommitted, Admitted, Unstaged), _encode_as_json),
    **dict.fromkeys((Kicked, Exasperated, Failed, Expired, Deleted, HandedOver), _encode_message_event),
    **dict.fromkeys((Invalidated, Declined, Completed, Damaged), _encode_message_event),
}
assert {event.kind for event in _ENCODERS} == set(Kind)


# ── Decoding ──────────────────────────────────────────────────────────────────────────────────────────────

_Record = tuple[int, ...]


def _decode_logged(record: _Record, extent: bytes) -> Event:
    key_start = record[18]
    headers_start = key_start + record[2]
    digest_start = headers_start + record[19]
    return Logged(
        time=record[5],
        queue=record[3],
        sequence=record[4],
        visible_at=record[7],
        expires_at=record[8],
        priority=record[9],
        content_type=record[12],
        sender=record[13],
        object=record[14],
        topics=record[15],
        lease_ns=record[17],
        key=extent[key_start:headers_start],
        headers=extent[headers_start:digest_start],
        digest=extent[digest_start:],
        body=extent[:key_start],
    )


def _decode_queued(record: _Record, _: bytes) -> Event:
    return Queued(record[5], *record[3:5], *record[6:10], *record[12:18])


def _decode_unchanged(record: _Record, extent: bytes) -> Event:
    queue, sequence, priority = record[3], record[4], record[9]
    content_type, sender, about, topics, to_queue, to_sequence = record[12:18]
    names = (content_type, sender, about, topics)
    key, headers = extent[: record[2]], extent[record[2] :]
    return Unchanged(record[5], queue, sequence, priority, *names, to_queue, to_sequence, key, headers)


def _facts(record: _Record) -> tuple[int, int, int, int, int, int]:
    """Time, queue, sequence, created, receives, consumer: what every event about a message has."""
    return record[5], record[3], record[4], record[6], record[10], record[11]


def _decode_dead_lettered(record: _Record, _: bytes) -> Event:
    return DeadLettered(
        *_facts(record),
        fetched=bool(record[1] & WAS_FETCHED),
        visible_at=record[7],
        expires_at=record[8],
        to_queue=record[16],
        to_sequence=record[17],
    )


def _decode_queue_created(record: _Record, extent: bytes) -> Event:
    facts = msgspec.json.decode(extent, type=_QueueFacts)
    return QueueCreated(record[5], record[3], facts.name, facts.settings)


def _decode_staged(record: _Record, extent: bytes) -> Event:
    facts = msgspec.json.decode(extent[record[18] :], type=_StagedFacts)
    return Staged(
        *(record[5], facts.query, facts.batch, facts.part, facts.chunk, facts.rows),
        expires_at=record[8],
        data=extent[: record[18]],
    )


_DECODERS: dict[int, Callable[[_Record, bytes], Event]] = {
    Kind.LOGGED: _decode_logged,
    Kind.FETCHED: lambda record, _: Fetched(*_facts(record), visible_at=record[7]),
    Kind.KICKED: lambda record, _: Kicked(*_facts(record)),
    Kind.SUCCEEDED: lambda record, extent: Succeeded(
        *_facts(record), complete=bool(record[1] & COMPLETE), result=extent
    ),
    Kind.RETRIED: lambda record, _: Retried(*_facts(record), visible_at=record[7]),
    Kind.EXASPERATED: lambda record, _: Exasperated(*_facts(record)),
    Kind.DEAD_LETTERED: _decode_dead_lettered,
    Kind.EXPIRED: lambda record, _: Expired(*_facts(record)),
    Kind.DELETED: lambda record, _: Deleted(*_facts(record)),
    Kind.CARRIED: lambda record, extent: Carried(*_facts(record), extent, *record[16:18]),
    Kind.DELIVERED: lambda record, _: Delivered(*_facts(record), record[7], leased=bool(record[1] & LEASED)),
    Kind.GIVEN_BACK: lambda record, _: GivenBack(*_facts(record), visible_at=record[7]),
    Kind.FAILED: lambda record, _: Failed(*_facts(record)),
    Kind.HANDED_OVER: lambda record, _: HandedOver(*_facts(record)),
    Kind.RESULT_STORED: lambda record, extent: ResultStored(*_facts(record), result=extent),
    Kind.RESULT_CARRIED: lambda record, extent: ResultCarried(*_facts(record), result=extent),
    Kind.QUEUED: _decode_queued,
    Kind.UNCHANGED: _decode_unchanged,
    Kind.INVALID: lambda record, _: Invalidated(*_facts(record)),
    Kind.NOT_INTERESTED: lambda record, _: Declined(*_facts(record)),
    Kind.EXTENDED: lambda record, _: Extended(*_facts(record), visible_at=record[7]),
    Kind.RESCHEDULED: lambda record, _: Rescheduled(*_facts(record), visible_at=record[7]),
    Kind.MOVED: lambda record, _: Moved(*_facts(record), *record[7:9], *record[16:18]),
    Kind.COMPLETED: lambda record, _: Completed(*_facts(record)),
    Kind.DAMAGED: lambda record, _: Damaged(*_facts(record)),
    Kind.RESTORED: lambda record, _: Restored(*_facts(record), visible_at=record[7]),
    Kind.RECEIVER_MOVED: lambda record, _: ReceiverMoved(record[5], record[3], record[4], record[11]),
    Kind.NAME_DEFINED: lambda record, extent: NameDefined(record[5], record[3], extent.decode()),
    Kind.NAME_FORGOTTEN: lambda record, extent: NameForgotten(record[5], record[3], extent.decode()),
    Kind.QUEUE_CREATED: _decode_queue_created,
    Kind.QUEUE_CHANGED: lambda record, extent: QueueChanged(
        record[5], record[3], msgspec.json.decode(extent, type=QueueSettings)
    ),
    Kind.QUEUE_REMOVED: lambda record, _: QueueRemoved(record[5], record[3]),
    Kind.STAGED: _decode_staged,
    Kind.BATCH_COMMITTED: lambda _, extent: msgspec.json.decode(extent, type=BatchCommitted),
    Kind.ADMITTED: lambda _, extent: msgspec.json.decode(extent, type=Admitted),
    Kind.UNSTAGED: lambda _, extent: msgspec.json.decode(extent, type=Unstaged),
}
assert _DECODERS.keys() == {int(kind) for kind in Kind}
