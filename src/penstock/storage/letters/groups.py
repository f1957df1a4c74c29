"""Batches in groups that are worth decoding together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from penstock.storage.log.batch import Header

RECORDS_PER_GROUP = 8_192  # Measured: smaller groups pay for the calls, larger ones for touching fresh memory.
BYTES_PER_GROUP = 64 << 20  # Bodies end a group earlier; Arrow's offsets have room for 2 GiB.

_Batch = TypeVar("_Batch")


def grouped(
    batches: Iterable[_Batch], header_of: Callable[[_Batch], Header], records_min: int = RECORDS_PER_GROUP
) -> Iterator[list[_Batch]]:
    """Batches in groups that are worth decoding together."""
    group: list[_Batch] = []
    records = size = 0
    for batch in batches:
        header = header_of(batch)
        group.append(batch)
        records += header.records
        size += header.heap_bytes
        if records >= records_min or size >= BYTES_PER_GROUP:
            yield group
            group = []
            records = size = 0
    if group:
        yield group
