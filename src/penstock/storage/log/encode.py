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
    DeliveredRun,
    Event,
    FetchedRun,
    LoggedRun,
    MessageRun,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    QueuedRun,
    Staged,
    SucceededRun,
    UnchangedRun,
    Unstaged,
)
from penstock.model.schedules import ScheduleRan, ScheduleRemoved, ScheduleSet, ScheduleSkipped
from penstock.model.shard_events import Collected, LearnedRun, Taken
from penstock.model.tokens import TOKEN_EVENTS
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import (
    AHEAD,
    COMPLETE,
    FIELDS,
    FLAGS,
    HAS_DIGEST,
    HEADER_BYTES,
    LEASED,
    RECORD,
    RECORD_BYTES,
    RECORD_DTYPE,
    RENAMED,
    SLOTS,
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


_Encoder = Callable[[Any, bytearray, bytearray], None]


def _encoder_of(event: type[Event]) -> _Encoder:
    """An encoder compiled from the fields of an event: one call packs its record, and nothing loops over fields."""
    fields = set(event.__struct_fields__)
    assert fields <= FIELDS.keys() | FLAGS.keys() | RENAMED.keys() | SLOTS.keys(), f"{event.__name__} is not plain"
    assert len({RENAMED.get(name, name) for name in fields}) == len(fields), f"{event.__name__} needs a field twice"
    slots = {slot: f"event.{name}" for name, slot in SLOTS.items() if name in fields}  # In the order of the heap.
    flags = {name: flag for name, flag in {**FLAGS, "digest": HAS_DIGEST}.items() if name in fields}
    values = {"created": "event.time"} | {RENAMED.get(name, name): f"event.{name}" for name in fields}
    values |= {f"{slot}_bytes": f"len({value})" for slot, value in slots.items()}
    values["kind"] = str(int(event.kind))
    values["flags"] = " | ".join([f"({flag} if event.{name} else 0)" for name, flag in flags.items()]) or "0"
    lines = [f"    if {value}: heap += {value}" for value in slots.values()]
    lines += [f"    records += pack({', '.join([values.get(name, '0') for name in FIELDS])})"]
    made: dict[str, Any] = {}
    exec("\n".join(["def encode(event, heap, records):", *lines]), {"pack": RECORD.pack}, made)
    encoder: _Encoder = made["encode"]
    return encoder


def _table(event: Event, names: Iterable[str]) -> np.ndarray:
    """The records of a run, with the columns that are named as the fields of the event."""
    table = np.zeros(event.records, dtype=RECORD_DTYPE)
    table["kind"] = event.kind
    for name in names:
        table[name] = getattr(event, name)
    return table


def _table_of_new(event: LoggedRun | UnchangedRun, names: Iterable[str]) -> np.ndarray:
    """As `_table`, for messages with consecutive sequences that are created now."""
    table = _table(event, names)
    table["created"] = event.time
    table["sequence"] = np.arange(event.sequence, event.sequence + len(table))
    return table


def _encode_logged_run(event: LoggedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as a `Logged` for each message."""
    table = _table_of_new(event, _LOGGED_COLUMNS)
    table["to_sequence"] = event.lease_ns
    table["body_bytes"] = np.fromiter(map(len, event.bodies), dtype=np.int64, count=len(table))
    if event.keys:
        table["key_bytes"] = np.fromiter(map(len, event.keys), dtype=np.int64, count=len(table))
        heap += b"".join(chain.from_iterable(zip(event.bodies, event.keys, strict=True)))
    else:
        heap += b"".join(event.bodies)
    records += table.tobytes()


_LOGGED_COLUMNS = [name for name in LoggedRun.__struct_fields__ if name in (FIELDS)]


def _encode_queued_run(event: QueuedRun, _: bytearray, records: bytearray) -> None:
    """The same records as a `Queued` for each message."""
    records += _table(event, QueuedRun.__struct_fields__).tobytes()


def _encode_unchanged_run(event: UnchangedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as an `Unchanged` for each message."""
    table = _table_of_new(event, UnchangedRun.__struct_fields__[:-1])
    table["key_bytes"] = [len(key) for key in event.keys]
    heap += b"".join(event.keys)
    records += table.tobytes()


def _encode_learned_run(event: LearnedRun, heap: bytearray, records: bytearray) -> None:
    """The same records as a `Learned` for each version."""
    table = _table(event, ("time", "queue", "sequence", "created", "object"))
    table["body_bytes"] = [len(content) for content in event.contents]
    table["key_bytes"] = [len(key) for key in event.keys]
    heap += b"".join(chain.from_iterable(zip(event.contents, event.keys, strict=True)))
    records += table.tobytes()


def _encode_message_run(event: MessageRun, _: bytearray, records: bytearray) -> None:
    """The same records as an event for each message."""
    table = _table(event, MessageRun.__struct_fields__)
    if isinstance(event, FetchedRun | DeliveredRun):
        table["visible_at"] = event.visible_at
        flag = AHEAD if isinstance(event, FetchedRun) else LEASED
        table["flags"] = flag if (event.ahead if isinstance(event, FetchedRun) else event.leased) else 0
    elif type(event) is SucceededRun:
        table["flags"] = COMPLETE
    records += table.tobytes()


def _add_facts(
    event: Event, heap: bytearray, records: bytearray, body: bytes, headers: bytes = b"", **values: int
) -> None:
    """A rare event: most of it is in the heap."""
    heap += body + headers
    values |= {"kind": event.kind, "time": event.time, "created": event.time}
    values |= {"body_bytes": len(body), "headers_bytes": len(headers)}
    records += RECORD.pack(*[values.get(name, 0) for name in FIELDS])


def _encode_name(event: NameDefined | NameForgotten, heap: bytearray, records: bytearray) -> None:
    _add_facts(event, heap, records, event.text.encode(), queue=event.number)


def _encode_queue_created(event: QueueCreated, heap: bytearray, records: bytearray) -> None:
    facts = {"name": event.name, "settings": event.settings.to_store()}
    _add_facts(event, heap, records, msgspec.json.encode(facts), queue=event.queue)


def _encode_queue_changed(event: QueueChanged, heap: bytearray, records: bytearray) -> None:
    _add_facts(event, heap, records, msgspec.json.encode(event.settings.to_store()), queue=event.queue)


def _encode_staged(event: Staged, heap: bytearray, records: bytearray) -> None:
    """The rows are the body, and the facts about them take the place of headers."""
    facts = msgspec.json.encode({name: getattr(event, name) for name in ("query", "batch", "part", "chunk", "rows")})
    _add_facts(event, heap, records, event.data, facts, expires_at=event.expires_at)


def _encode_schedule_set(event: ScheduleSet, heap: bytearray, records: bytearray) -> None:
    facts = {"time": event.time, "schedule": event.schedule, "next": event.next}
    _add_facts(event, heap, records, msgspec.json.encode(facts | {"definition": event.definition.to_store()}))


def _encode_schedule_ran(event: ScheduleRan, heap: bytearray, records: bytearray) -> None:
    _add_facts(event, heap, records, msgspec.json.encode(event), queue=event.queue, sequence=event.sequence)


def _encode_as_json(event: Event, heap: bytearray, records: bytearray) -> None:
    _add_facts(event, heap, records, msgspec.json.encode(event))


_ENCODERS: dict[type[Event], _Encoder] = {
    LoggedRun: _encode_logged_run,
    QueuedRun: _encode_queued_run,
    UnchangedRun: _encode_unchanged_run,
    LearnedRun: _encode_learned_run,
    **{event: _encode_message_run for event in EVENTS if issubclass(event, MessageRun)},
    **dict.fromkeys((NameDefined, NameForgotten), _encode_name),
    QueueCreated: _encode_queue_created,
    QueueChanged: _encode_queue_changed,
    Staged: _encode_staged,
    ScheduleSet: _encode_schedule_set,
    ScheduleRan: _encode_schedule_ran,
    **dict.fromkeys((BatchCommitted, Admitted, Unstaged, Taken, Collected), _encode_as_json),
    **dict.fromkeys((ScheduleSkipped, ScheduleRemoved, *TOKEN_EVENTS), _encode_as_json),
}
_ENCODERS |= {event: _encoder_of(event) for event in EVENTS if event not in _ENCODERS}
