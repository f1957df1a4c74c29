"""The names that batches define: what the numbers of queues and of names in the log stand for."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.model.kinds import Kind
from penstock.storage.log.batch import RECORD_BYTES, Header, extent_bounds, records_of


def queues_created(header: Header, payload: bytes) -> dict[int, str]:
    """The queues that a batch creates: their names by their numbers."""
    created = _texts(header, payload, (Kind.QUEUE_CREATED,))
    return {number: queue_name(facts) for number, facts in created}


def queue_name(facts: bytes) -> str:
    """The name in the extent of an event that creates a queue."""
    return decode_json(facts, _Named).name


def names_defined(header: Header, payload: bytes) -> dict[int, str]:
    """The names that a batch defines or forgets, by their numbers: an event that forgets a name repeats its text."""
    return {
        number: text.decode() for number, text in _texts(header, payload, (Kind.NAME_DEFINED, Kind.NAME_FORGOTTEN))
    }


class _Named(msgspec.Struct):
    name: str


def _texts(header: Header, payload: bytes, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, bytes]]:
    present = payload[header.heap_bytes :: RECORD_BYTES]  # The kind is the first byte of a record.
    if not any(bytes([kind]) in present for kind in kinds):
        return
    records = records_of(header, payload)
    bounds = extent_bounds(records)
    for at in np.flatnonzero(np.isin(records["kind"], kinds)).tolist():
        yield int(records["queue"][at]), payload[bounds[at] : bounds[at + 1]]
