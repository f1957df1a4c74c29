"""Encoding: collects events into a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from penstock.model.events import (
    EVENTS,
    Admitted,
    BatchCommitted,
    Carried,
    DeadLettered,
    Delivered,
    DeliveredRun,
    Event,
    FetchedRun,
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
    ResultCarried,
    ResultStored,
    Staged,
    Succeeded,
    SucceededRun,
    Unchanged,
    UnchangedRun,
    Unstaged,
)
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import (
    COMPLETE,
    HAS_DIGEST,
    HEADER_BYTES,
    LEASED,
    RECORD,
    RECORD_BYTES,
    RECORD_DTYPE,
    WAS_FETCHED,
    Header,
    Point,
)


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
    def appended(self) -> Point:
        """Where the log ends once this batch is written; nothing is written if it is empty."""
        return self.end if self.count else Point(self.base_offset, self.base_position)

    @property
    def end(self) -> Point:
        """Where the next batch begins."""
        return Point(self.base_offset + self.count, self._heap_position + self.size)

    def read(self, position: Position, size: int) -> bytes:
        start = position - self._heap_position
        return bytes(self.heap[start : start + size])

    def seal(self, now: Nanos) -> bytes:
        payload_crc = crc32c(self.records, crc32c(self.heap))
        header = Header(self.base_offset, self.base_position, now, self.count, len(self.heap), payload_crc)
        return b"".join((header.to_bytes(), self.heap, self.records))


def _encode_logged(event: Logged, heap: bytearray, records: bytearray) -> None:
    body, key, headers, digest = event.body, event.key, event.headers, event.digest
    heap += body
    if key or headers or digest:
        heap += key
        heap += headers
        heap += digest
    records += RECORD.pack(
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


def _table(event: Event, names: Iterable[str]) -> np.ndarray:
    """The records of a run, with the columns that are named as the fields of the event."""
    table = np.zeros(event.records, dtype=RECORD_DTYPE)
    table["kind"] = event.kind
    table["time"] = table["created"] = event.time
    for name in names:
        table[name] = getattr(event, name)
    return table


def _consecutive(event: LoggedRun | UnchangedRun) -> np.ndarray:
    return np.arange(event.sequence, event.sequence + event.records)


def _encode_logged_run(event: LoggedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as a `Logged` for each message."""
    table = _table(event, _LOGGED_COLUMNS)
    table["sequence"] = _consecutive(event)
    table["to_sequence"] = event.lease_ns
    table["body_bytes"] = np.fromiter(map(len, event.bodies), dtype=np.int64, count=len(table))
    if event.keys:
        table["key_bytes"] = np.fromiter(map(len, event.keys), dtype=np.int64, count=len(table))
        heap += b"".join(chain.from_iterable(zip(event.bodies, event.keys, strict=True)))
    else:
        heap += b"".join(event.bodies)
    records += table.tobytes()


_LOGGED_COLUMNS = [name for name in LoggedRun.__struct_fields__ if name in (RECORD_DTYPE.names or ())]


def _encode_queued(event: Queued, _: bytearray, records: bytearray) -> None:
    records += RECORD.pack(
        *(event.kind, 0, 0, event.queue, event.sequence, event.time, event.created),
        *(event.visible_at, event.expires_at, event.priority, 0, 0),
        *(event.content_type, event.sender, event.object, event.topics, event.to_queue, event.to_sequence, 0, 0),
    )


def _encode_queued_run(event: QueuedRun, _: bytearray, records: bytearray) -> None:
    """The same records as a `Queued` for each message."""
    records += _table(event, QueuedRun.__struct_fields__).tobytes()


def _encode_unchanged(event: Unchanged, heap: bytearray, records: bytearray) -> None:
    heap += event.key
    heap += event.headers
    records += RECORD.pack(
        *(event.kind, 0, len(event.key), event.queue, event.sequence, event.time, event.time),
        *(0, 0, event.priority, 0, 0, event.content_type, event.sender, event.object, event.topics),
        *(event.to_queue, event.to_sequence, 0, len(event.headers)),
    )


def _encode_unchanged_run(event: UnchangedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as an `Unchanged` for each message."""
    table = _table(event, UnchangedRun.__struct_fields__[:-1])
    table["sequence"] = _consecutive(event)
    table["key_bytes"] = [len(key) for key in event.keys]
    heap += b"".join(event.keys)
    records += table.tobytes()


def _encode_message_run(event: MessageRun, _: bytearray, records: bytearray) -> None:
    """The same records as an event for each message."""
    table = _table(event, MessageRun.__struct_fields__)
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
    records += RECORD.pack(
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
    records += RECORD.pack(
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
    records += RECORD.pack(
        *(event.kind, 0, 0, number, 0, event.time, event.time, 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0, 0, len(body), 0),
    )


def _encode_name(event: NameDefined | NameForgotten, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.number, event.text.encode(), heap, records)


def _encode_queue_created(event: QueueCreated, heap: bytearray, records: bytearray) -> None:
    facts = msgspec.json.encode({"name": event.name, "settings": event.settings.to_store()})
    _encode_definition(event, event.queue, facts, heap, records)


def _encode_queue_changed(event: QueueChanged, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.queue, msgspec.json.encode(event.settings.to_store()), heap, records)


def _encode_queue_removed(event: QueueRemoved, heap: bytearray, records: bytearray) -> None:
    _encode_definition(event, event.queue, b"", heap, records)


def _encode_staged(event: Staged, heap: bytearray, records: bytearray) -> None:
    """The rows are the body, and what they are stands in the place of headers."""
    facts = msgspec.json.encode({name: getattr(event, name) for name in ("query", "batch", "part", "chunk", "rows")})
    heap += event.data
    heap += facts
    records += RECORD.pack(
        *(event.kind, 0, 0, 0, 0, event.time, event.time, 0, event.expires_at),
        *(0, 0, 0, 0, 0, 0, 0, 0, 0, len(event.data), len(facts)),
    )


def _encode_as_json(event: Event, heap: bytearray, records: bytearray) -> None:
    """An event of which there are few: all of it as JSON."""
    _encode_definition(event, 0, msgspec.json.encode(event), heap, records)


# Kinds with a form of their own. All others are about a message in a queue, and are written by what they store.
_ENCODERS: dict[type[Event], Callable[[Any, bytearray, bytearray], None]] = {
    Logged: _encode_logged,
    LoggedRun: _encode_logged_run,
    Queued: _encode_queued,
    QueuedRun: _encode_queued_run,
    Unchanged: _encode_unchanged,
    UnchangedRun: _encode_unchanged_run,
    NameDefined: _encode_name,
    NameForgotten: _encode_name,
    QueueCreated: _encode_queue_created,
    QueueChanged: _encode_queue_changed,
    QueueRemoved: _encode_queue_removed,
    ReceiverMoved: _encode_receiver_moved,
    Staged: _encode_staged,
    **dict.fromkeys((BatchCommitted, Admitted, Unstaged), _encode_as_json),
}
_SHAPES: dict[tuple[str, ...], Callable[[Any, bytearray, bytearray], None]] = {
    (): _encode_message_event,
    ("visible_at",): _encode_leased,
    ("visible_at", "leased"): _encode_delivered,
    ("complete", "result"): _encode_succeeded,
    ("result",): _encode_result,
    ("visible_at", "expires_at", "to_queue", "to_sequence"): _encode_moved,
    ("fetched", "visible_at", "expires_at", "to_queue", "to_sequence"): _encode_dead_lettered,
    ("extent", "to_queue", "to_sequence"): _encode_carried,
}
for _event in EVENTS:
    if issubclass(_event, MessageRun):
        _ENCODERS[_event] = _encode_message_run
    elif issubclass(_event, MessageEvent):
        _ENCODERS[_event] = _SHAPES[_event.kind.row.stores]
assert _ENCODERS.keys() == set(EVENTS)
