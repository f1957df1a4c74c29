"""Which blocks of a part may hold records of a message.

A part is divided into blocks of about 256 KiB. For each block and each queue the index has the lowest and the
highest sequence in the block's records; names are indexed in the same way, by their numbers. It is made when a trace
first comes through the part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.limits import SEQUENCE_MAX, TRACE_INDEX_BYTES_MAX
from penstock.model.kinds import ABOUT_MESSAGES, MOVES, Kind
from penstock.model.values import Place, Position
from penstock.storage.log.batch import RECORD_BYTES, RECORD_DTYPE
from penstock.storage.log.parts import Part, PartCache, PartFile, ReadAhead, opened, walk

_Array = NDArray[Any]

NAMES = 0
"""In place of the number of a queue, which is never 0: the sequence is the number of a name."""
BLOCK_BYTES = 256 << 10
_ENTRY = np.dtype([("block", "<u4"), ("queue", "<u4"), ("low", "<u8"), ("high", "<u8")])

# By kind: does a record join two places? The message goes from one to the other, or is in both.
IS_JOIN, _IS_ABOUT_MESSAGE, _IS_NAME = np.zeros((3, 256), dtype=np.bool_)
IS_JOIN[list(MOVES | {Kind.QUEUED, Kind.CAME_FROM, Kind.COPIED_FROM})] = True
_IS_ABOUT_MESSAGE[list(ABOUT_MESSAGES)] = True
_IS_NAME[[Kind.NAME_DEFINED, Kind.NAME_FORGOTTEN]] = True


class BlockIndex:
    def __init__(self, part: Part, block_bytes: int) -> None:
        self._part = part
        self._block_bytes = block_bytes
        self._lock = Lock()
        self._bounds = [part.base_position]  # Where each block begins, and the last one ends.
        self._entries = np.empty(0, dtype=_ENTRY)  # Of all blocks, by queue.

    @property
    def nbytes(self) -> int:
        return int(self._entries.nbytes) + 32 * len(self._bounds)

    def last_block(
        self, places: Iterable[Place], before: Position, end: Position, *, finished: bool
    ) -> tuple[Position, Position] | None:
        """The last block before a position that may have records of one of these places, from where to where. In a
        part that is being written, everything after the last full block counts as one more block."""
        self._cover(end, finished=finished)
        entries, bounds = self._entries, self._bounds
        if bounds[-1] < min(before, end):
            return bounds[-1], end
        block = bisect_left(bounds, before) - 1  # The last one that begins before it.
        last = -1
        for queue, sequence in places:
            low, high = np.searchsorted(entries["queue"], [queue, queue + 1])
            of_queue = entries[low:high]
            inside = (of_queue["low"] <= sequence) & (sequence <= of_queue["high"]) & (of_queue["block"] <= block)
            last = max([last, *of_queue["block"][inside].tolist()])
        return (bounds[last], bounds[last + 1]) if last >= 0 else None

    def _cover(self, end: Position, *, finished: bool) -> None:
        """Extend the index by whole blocks to where the part ends now."""
        with self._lock:
            if end - self._bounds[-1] >= (1 if finished else self._block_bytes):
                with opened(self._part, self._part.base_offset) as file:
                    fresh = list(self._new_blocks(ReadAhead(file), end, finished=finished))
                entries = np.concatenate([self._entries, *fresh])
                self._entries = entries[np.argsort(entries["queue"], kind="stable")]

    def _new_blocks(self, file: PartFile, end: Position, *, finished: bool) -> Iterator[_Array]:
        records: list[bytes] = []
        for header in walk(file, self._bounds[-1], end, over_damage=True):
            size = header.records * RECORD_BYTES
            after = header.base_position + header.total_bytes
            records.append(file.read(after - size, size))
            if after - self._bounds[-1] >= self._block_bytes or (finished and after == end):
                yield _ranges(np.frombuffer(b"".join(records), dtype=RECORD_DTYPE), len(self._bounds) - 1)
                self._bounds.append(after)
                records = []


class Traces(PartCache[BlockIndex]):
    """The block indexes of the parts of one log, shared by all traces."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(lambda part: BlockIndex(part, block_bytes), TRACE_INDEX_BYTES_MAX, lambda each: each.nbytes)


def _ranges(records: _Array, block: int) -> _Array:
    """The lowest and the highest sequence of each queue in these records."""
    about, joined = records[_IS_ABOUT_MESSAGE[records["kind"]]], records[IS_JOIN[records["kind"]]]
    removed = records["queue"][records["kind"] == Kind.QUEUE_REMOVED]  # The record is about every message in them.
    all_of_them = np.repeat(np.array((0, SEQUENCE_MAX), dtype=np.uint64), len(removed))
    names = records["queue"][_IS_NAME[records["kind"]]]  # Where their records have their numbers.
    queues = np.concatenate((about["queue"], joined["to_queue"], removed, removed, np.full_like(names, NAMES)))
    sequences = np.concatenate((about["sequence"], joined["to_sequence"], all_of_them, names.astype(np.uint64)))
    order = np.lexsort((sequences, queues))
    queues, sequences = queues[order], sequences[order]
    first = np.flatnonzero(np.append(True, queues[1:] != queues[:-1])) if len(queues) else np.empty(0, dtype=np.int64)
    entries = np.zeros(len(first), dtype=_ENTRY)
    entries["block"] = block
    entries["queue"] = queues[first]
    entries["low"] = sequences[first]
    entries["high"] = sequences[np.append(first[1:], len(queues)) - 1] if len(first) else 0
    return entries
