"""The rows that a group of batches makes: one for every letter of every record, with no loop over events."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedLogError
from penstock.limits import INT32_MAX
from penstock.model.kinds import DEFINES, MOVES, Kind
from penstock.storage.letters import forms
from penstock.storage.letters.forms import Mask
from penstock.storage.log.batch import DIGEST_BYTES, HAS_DIGEST, RECORD_DTYPE, Batches, Header
from penstock.storage.log.names import queue_name

Array = NDArray[Any]

_COPY_BYTES_MAX = 4096
SLOTS = 4  # Of each record in the heap: body (or result), key, headers, digest.


class Definitions(Protocol):
    """What takes note of the names that batches define."""

    def define(self, number: int, text: str) -> None: ...
    def define_queue(self, number: int, name: str) -> None: ...


class Rows:
    """The rows of a group of batches. What several columns need is computed once and kept."""

    def __init__(self, batches: Batches, names: Definitions | None) -> None:
        self.batches = batches
        self.names = names
        self.records = _join_records(batches)
        keys = self.records.view("<u2")[:: self.records.dtype.itemsize // 2] & forms.KEY_MASK
        self._count = forms.ROWS_OF[keys]
        if len(keys) and self._count.max() == forms.UNKNOWN:
            unknown = int(keys[self._count == forms.UNKNOWN][0]) & 0xFF
            raise DamagedLogError(f"unknown event kind {unknown}: written by a newer version, or damaged")
        self.index = np.repeat(np.arange(len(keys)), self._count)  # The record of each row.
        self._keys = keys
        if names is not None and self._has(DEFINES):
            self._learn(names)

    def column(self, name: str) -> Array:
        return self.records[name][self.index]

    def are(self, chosen: Mask) -> Mask:
        """Which rows have one of the chosen forms."""
        return chosen.take(self.form)

    @cached_property
    def _kinds(self) -> bytes:
        return self.records["kind"].tobytes()

    def _has(self, chosen: frozenset[Kind]) -> bool:
        """Whether there are records of these kinds: a search in bytes costs a fraction of a comparison of columns."""
        return any(kind in self._kinds for kind in chosen)

    def _of_kinds(self, chosen: frozenset[Kind]) -> Mask:
        """Which records are of these kinds."""
        kinds = self.records["kind"]
        found: Mask = np.logical_or.reduce([kinds == kind for kind in chosen])
        return found

    @cached_property
    def form(self) -> Array:
        """The form of each row: a letter as part of a kind of record."""
        first_row = np.cumsum(self._count, dtype=np.int64) - self._count
        base: Array = forms.FIRST_FORM[self._keys] - first_row
        form: Array = np.arange(len(self.index)) + base[self.index]
        return form

    @cached_property
    def moved(self) -> Array:
        """The rows of messages in the queues that they were moved to."""
        if not self._has(MOVES):
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.are(forms.IS_MOVED))

    @cached_property
    def offset(self) -> Array:
        if not self.batches:
            return np.empty(0, dtype=np.int64)
        first, last = self.batches[0][0], self.batches[-1][0]
        if last.end.offset - first.base_offset == len(self.records):  # No gap between the batches.
            return self.index + first.base_offset
        bases = np.array([header.base_offset for header, _ in self.batches], dtype=np.int64)
        counts = np.array([header.records for header, _ in self.batches], dtype=np.int64)
        lead: Array = np.repeat(bases - (np.cumsum(counts) - counts), counts)
        offset: Array = self.index + lead[self.index]
        return offset

    @cached_property
    def of_messages(self) -> Mask | None:
        """Which rows are about a message, not about a queue. None: all of them."""
        return self.are(forms.IS_OF_MESSAGE) if self._has(forms.OF_QUEUES) else None

    @cached_property
    def queue(self) -> Array:
        return self._placed("queue", "to_queue")

    @cached_property
    def sequence(self) -> Array:
        return self._placed("sequence", "to_sequence")

    def _placed(self, name: str, moved_name: str) -> Array:
        values = self.column(name)
        if len(self.moved):
            values[self.moved] = self.records[moved_name][self.index[self.moved]]
        return values

    # The heap

    @cached_property
    def heap(self) -> bytes | memoryview:
        assert sum(header.heap_bytes for header, _ in self.batches) <= INT32_MAX, "decode_grouped bounds a group"
        if len(self.batches) == 1:
            header, payload = self.batches[0]
            return memoryview(payload)[: header.heap_bytes]
        return b"".join([_heap(header, payload) for header, payload in self.batches])

    @cached_property
    def slot_bounds(self) -> NDArray[np.int32]:
        """Where each slot of each record ends in the heap, after a leading 0."""
        records = self.records
        sizes = np.empty((len(records), SLOTS), dtype=np.int64)
        sizes[:, 0] = records["body_bytes"]
        sizes[:, 1] = records["key_bytes"]
        sizes[:, 2] = records["headers_bytes"]
        sizes[:, 3] = (records["flags"] & HAS_DIGEST) * DIGEST_BYTES
        bounds = bounds_of(sizes.reshape(-1))
        if bounds[-1] != len(self.heap):
            raise DamagedLogError(f"the heap has {len(self.heap)} bytes, but its records add up to {bounds[-1]}")
        return bounds

    @property
    def result_bytes(self) -> Array:
        sizes: Array = self.records["body_bytes"] * self._of_kinds(forms.WITH_RESULT)
        return sizes

    def _learn(self, names: Definitions) -> None:
        kinds = self.records["kind"]
        for at in np.flatnonzero(self._of_kinds(DEFINES)).tolist():
            start, end = self.slot_bounds[SLOTS * at : SLOTS * at + 2].tolist()
            text, number = bytes(self.heap[start:end]), int(self.records["queue"][at])
            if kinds[at] == Kind.QUEUE_CREATED:
                names.define_queue(number, queue_name(text))
            else:  # Also where a name is forgotten: it was in use before.
                names.define(number, text.decode())


def bounds_of(sizes: Array) -> NDArray[np.int32]:
    """Where each of some values ends, after a leading 0."""
    bounds = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _heap(header: Header, payload: bytes) -> bytes | memoryview:
    # A small copy costs a third of what a view does.
    size = header.heap_bytes
    return payload[:size] if size < _COPY_BYTES_MAX else memoryview(payload)[:size]


def _join_records(batches: Batches) -> Array:
    # A single batch is copied too: after a heap of any length its records would not be aligned.
    joined = b"".join([payload[header.heap_bytes :] for header, payload in batches])
    return np.frombuffer(joined, dtype=RECORD_DTYPE)
