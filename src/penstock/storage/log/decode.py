"""Decoding: the events of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.model.events import (
    EVENTS,
    Admitted,
    BatchCommitted,
    Event,
    Logged,
    MessageEvent,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueueRemoved,
    ReceiverMoved,
    Staged,
    Unchanged,
    Unstaged,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.model.values import Position
from penstock.storage.log.batch import (
    COMPLETE,
    DIGEST_BYTES,
    HAS_DIGEST,
    HEADER_BYTES,
    LEASED,
    RECORD,
    WAS_FETCHED,
    Header,
    extent_bounds,
    records_of,
)

_Record = tuple[int, ...]  # The fields of one record, in the order of `RECORD`.


class _QueueFacts(msgspec.Struct):
    name: str
    settings: QueueSettings


class _StagedFacts(msgspec.Struct):
    query: str
    batch: int
    part: str
    chunk: int
    rows: int


def events_of(header: Header, payload: bytes) -> Iterator[tuple[Event, Position]]:
    """The events of a batch, with the positions of their extents."""
    at = 0
    heap_position = header.base_position + HEADER_BYTES
    for record in RECORD.iter_unpack(memoryview(payload)[header.heap_bytes :]):
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


_Decoder = Callable[[_Record, bytes], Event]
# Kinds with a form of their own. All others are about a message in a queue, and are read by what they store.
_DECODERS: dict[int, _Decoder] = {
    Kind.LOGGED: _decode_logged,
    Kind.QUEUED: _decode_queued,
    Kind.UNCHANGED: _decode_unchanged,
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


def _decoder_of(event: Any) -> _Decoder:
    """How to read an event about a message in a queue. A message's records are read often: so each has its lambda."""
    match event.kind.row.stores:
        case ():
            return lambda record, _: event(*_facts(record))
        case ("visible_at",):
            return lambda record, _: event(*_facts(record), record[7])
        case ("visible_at", "leased"):
            return lambda record, _: event(*_facts(record), record[7], bool(record[1] & LEASED))
        case ("complete", "result"):
            return lambda record, extent: event(*_facts(record), bool(record[1] & COMPLETE), extent)
        case ("result",):
            return lambda record, extent: event(*_facts(record), extent)
        case ("visible_at", "expires_at", "to_queue", "to_sequence"):
            return lambda record, _: event(*_facts(record), *record[7:9], *record[16:18])
        case ("fetched", "visible_at", "expires_at", "to_queue", "to_sequence"):
            return lambda record, _: event(
                *_facts(record), bool(record[1] & WAS_FETCHED), *record[7:9], *record[16:18]
            )
        case ("extent", "to_queue", "to_sequence"):
            return lambda record, extent: event(*_facts(record), extent, *record[16:18])
        case stores:
            raise AssertionError(f"no event is stored as {stores}")


for _event in EVENTS:
    if issubclass(_event, MessageEvent):
        _DECODERS[_event.kind] = _decoder_of(_event)
assert _DECODERS.keys() == set(Kind)
