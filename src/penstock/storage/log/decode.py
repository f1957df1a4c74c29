"""Decoding: the events of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.decoding import decode_json
from penstock.errors import DamagedLogError
from penstock.model.events import (
    EVENTS,
    RUNS,
    Admitted,
    BatchCommitted,
    Event,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Staged,
    Unstaged,
)
from penstock.model.kinds import Kind
from penstock.model.schedules import SCHEDULE_EVENTS
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import Collected, Taken
from penstock.model.tokens import TOKEN_EVENTS
from penstock.model.values import Position
from penstock.storage.log.batch import (
    DIGEST_BYTES,
    FIELDS,
    FLAGS,
    HAS_DIGEST,
    HEADER_BYTES,
    RECORD,
    RENAMED,
    SLOTS,
    Header,
    extent_bounds,
    records_of,
)

_Record = tuple[int, ...]  # The fields of one record, in the order of `FIELDS`.
_Decoder = Callable[[_Record, bytes], Event]

_AT = {name: at for at, name in enumerate(FIELDS)}
_KIND, _FLAGS, _TIME, _QUEUE = _AT["kind"], _AT["flags"], _AT["time"], _AT["queue"]
_BODY_BYTES, _KEY_BYTES, _HEADERS_BYTES = _AT["body_bytes"], _AT["key_bytes"], _AT["headers_bytes"]


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
    try:
        for record in RECORD.iter_unpack(memoryview(payload)[header.heap_bytes :]):
            end = at + record[_BODY_BYTES] + record[_KEY_BYTES] + record[_HEADERS_BYTES]
            if record[_FLAGS] & HAS_DIGEST:
                end += DIGEST_BYTES
            yield _DECODERS[record[_KIND]](record, payload[at:end]), heap_position + at
            at = end
    except _UNREADABLE as error:
        raise _damaged(header, error) from None
    _check_heap(header, at)


def events_at(header: Header, payload: bytes, indices: Sequence[int]) -> Iterator[tuple[int, Event]]:
    """Some events of a batch, each with its index."""
    records = records_of(header, payload)
    bounds = extent_bounds(records).tolist()
    _check_heap(header, bounds[-1])
    try:
        for at in indices:
            record = records[at].item()
            yield at, _DECODERS[record[_KIND]](record, payload[bounds[at] : bounds[at + 1]])
    except _UNREADABLE as error:
        raise _damaged(header, error) from None


_UNREADABLE = (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _damaged(header: Header, error: Exception) -> DamagedLogError:
    """For a record that this version cannot read, though its checksum is right."""
    events = f"one of the events {header.base_offset} to {header.end.offset - 1}"
    problem = f"unknown event kind {error}" if isinstance(error, KeyError) else str(error)
    return DamagedLogError(f"{events} cannot be read: {problem}: written by a newer version, or damaged")


def _check_heap(header: Header, end: int) -> None:
    if end != header.heap_bytes:
        raise DamagedLogError(
            f"the heap of the events {header.base_offset} to {header.end.offset - 1} has {header.heap_bytes} bytes,"
            f" but its records add up to {end}"
        )


def _decoder_of(event: type[Event]) -> _Decoder:
    """A decoder compiled from the fields of an event: the opposite of what `encode.py` makes of them."""
    fields = event.__struct_fields__
    slots = [SLOTS[name] for name in fields if name in SLOTS]
    parts = dict.fromkeys(slots, "extent")
    lines = []
    if len(slots) > 1:
        sizes = f"record[{_BODY_BYTES}], record[{_KEY_BYTES}], record[{_HEADERS_BYTES}]"
        lines = [f"    body, key, headers = {sizes}", "    key += body", "    headers += key"]
        parts = {"body": "extent[:body]", "key": "extent[body:key]"}
        parts |= {"headers": "extent[key:headers]", "digest": "extent[headers:]"}
    values = {name: f"record[{_AT[RENAMED.get(name, name)]}]" for name in fields if RENAMED.get(name, name) in _AT}
    values |= {name: f"record[{_FLAGS}] & {FLAGS[name]} != 0" for name in fields if name in FLAGS}
    values |= {name: parts[SLOTS[name]] for name in fields if name in SLOTS}
    lines += [f"    return event({', '.join([values[name] for name in fields])})"]
    made: dict[str, Any] = {}
    exec("\n".join(["def decode(record, extent):", *lines]), {"event": event}, made)
    decoder: _Decoder = made["decode"]
    return decoder


def _decode_queue_created(record: _Record, extent: bytes) -> Event:
    facts = decode_json(extent, _QueueFacts)
    return QueueCreated(record[_TIME], record[_QUEUE], facts.name, facts.settings)


def _decode_queue_changed(record: _Record, extent: bytes) -> Event:
    return QueueChanged(record[_TIME], record[_QUEUE], decode_json(extent, QueueSettings))


def _decode_staged(record: _Record, extent: bytes) -> Event:
    data, facts = extent[: record[_BODY_BYTES]], extent[record[_BODY_BYTES] :]
    chunk = msgspec.structs.asdict(decode_json(facts, _StagedFacts))
    return Staged(time=record[_TIME], expires_at=record[_AT["expires_at"]], data=data, **chunk)


def _decoder_of_json(event: type[Event]) -> _Decoder:
    decode = msgspec.json.Decoder(event).decode
    return lambda _, extent: decode(extent)


_DECODERS: dict[int, _Decoder] = {
    Kind.NAME_DEFINED: lambda record, extent: NameDefined(record[_TIME], record[_QUEUE], extent.decode()),
    Kind.NAME_FORGOTTEN: lambda record, extent: NameForgotten(record[_TIME], record[_QUEUE], extent.decode()),
    Kind.QUEUE_CREATED: _decode_queue_created,
    Kind.QUEUE_CHANGED: _decode_queue_changed,
    Kind.STAGED: _decode_staged,
}
_IN_JSON: tuple[type[Event], ...] = (
    *(BatchCommitted, Admitted, Unstaged, Taken, Collected),
    *(*SCHEDULE_EVENTS, *TOKEN_EVENTS),
)
_DECODERS |= {event.kind: _decoder_of_json(event) for event in _IN_JSON}
_SINGLE = [event for event in EVENTS if not issubclass(event, RUNS)]
_DECODERS |= {event.kind: _decoder_of(event) for event in _SINGLE if event.kind not in _DECODERS}
