"""Slots: the state of a message for one receiver, 16 bytes for each pair that has one.

A slot records that the message is to be delivered again unless a result comes, where in the log the result is, that
there will be none, or until when the receiver holds the message. Slots are in chunks of neighbouring sequences, first
by sequence and then by receiver, so that all slots of a message are removed without visiting every receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np

from penstock.engine.rows import Columns, spans
from penstock.limits import ROWS_PER_CHUNK
from penstock.model.values import Position

_SLOT = Struct("<B3xIQ")
SLOT_DTYPE = np.dtype([("state", "u1"), ("_", "u1", (3,)), ("size", "<u4"), ("value", "<u8")])
assert _SLOT.size == SLOT_DTYPE.itemsize == 16

_EMPTY, AWAITED, STORED, DECLINED, HELD = range(5)  # The states of a slot; the numbers are in snapshots.
_SHIFT = ROWS_PER_CHUNK.bit_length() - 1
_MASK = ROWS_PER_CHUNK - 1
_SLOT_BYTES = _SLOT.size
_LIVE = ROWS_PER_CHUNK * _SLOT_BYTES  # The last byte of a chunk counts its slots in use.
_EMPTY_CHUNK = bytes(_LIVE + 1)
_CHUNKS_PER_TABLE = 256


class Slot(NamedTuple):
    state: int
    size: int  # The size of a stored result; if one is awaited or the message held, the deliveries so far.
    value: int  # The position of a stored result; if awaited, when it is due again; if held, until when.


class Stored(NamedTuple):
    """Where a result is in the log."""

    receiver: int
    position: Position
    size: int


class Slots:
    __slots__ = ("slots",)

    def __init__(self) -> None:
        self.slots: dict[int, dict[int, bytearray]] = {}  # In chunks, by sequence and then by receiver.

    def slot(self, receiver: int, sequence: int) -> Slot | None:
        chunk = self.slots.get(sequence >> _SHIFT, {}).get(receiver)
        if chunk is None:
            return None
        slot = Slot._make(_SLOT.unpack_from(chunk, (sequence & _MASK) * _SLOT_BYTES))
        return slot if slot.state else None

    def has_slots(self, receiver: int, first: int, count: int) -> bool:
        """Whether there is a slot for one of these consecutive sequences."""
        for number, start, stop in spans(first, count):
            chunk = self.slots.get(number, {}).get(receiver)
            if chunk and chunk[start * _SLOT_BYTES : stop * _SLOT_BYTES].strip(b"\0"):
                return True
        return False

    def result(self, sequence: int, receiver: int = 0) -> Stored | None:
        """The result of a receiver; without a receiver, the first result found."""
        for each in (receiver,) if receiver else self.receivers_of(sequence):
            slot = self.slot(each, sequence)
            if slot and slot.state == STORED:
                return Stored(each, slot.value, slot.size)
        return None

    def holds(self, receiver: int, sequence: int, position: Position) -> bool:
        """Whether this receiver's result is stored at this position."""
        slot = self.slot(receiver, sequence)
        return slot is not None and (slot.state, slot.value) == (STORED, position)

    def owes(self, receiver: int, sequence: int) -> bool:
        """Whether a result of this receiver is awaited, even if it holds the message now."""
        slot = self.slot(receiver, sequence) if self.slots else None
        return slot is not None and slot.state in (AWAITED, HELD)

    def has(self, receiver: int, sequence: int) -> bool:
        """Whether this receiver holds the message now."""
        slot = self.slot(receiver, sequence) if self.slots else None
        return slot is not None and slot.state == HELD

    def results(self, sequence: int) -> int:
        """How many receivers have sent a result."""
        slots = [self.slot(receiver, sequence) for receiver in self.receivers_of(sequence)]
        return sum([slot is not None and slot.state == STORED for slot in slots])

    def receivers_of(self, sequence: int) -> list[int]:
        """The receivers that have a slot for this message or for one near it."""
        return list(self.slots.get(sequence >> _SHIFT, ()))

    def _set(self, receiver: int, sequence: int, state: int, size: int, value: int) -> None:
        chunk = self._chunk(receiver, sequence >> _SHIFT)
        at = (sequence & _MASK) * _SLOT_BYTES
        chunk[_LIVE] += chunk[at] == _EMPTY
        _SLOT.pack_into(chunk, at, state, size, value)

    def _clear(self, receiver: int, sequence: int) -> None:
        by_receiver = self.slots[sequence >> _SHIFT]
        chunk = by_receiver[receiver]
        at = (sequence & _MASK) * _SLOT_BYTES
        chunk[at : at + _SLOT_BYTES] = bytes(_SLOT_BYTES)
        chunk[_LIVE] -= 1
        if not chunk[_LIVE]:
            del by_receiver[receiver]
            if not by_receiver:
                del self.slots[sequence >> _SHIFT]

    def _set_run(self, receiver: int, first: int, count: int, state: int, size: int, value: int) -> None:
        """Like `_set`, for consecutive sequences that have no slot."""
        slot = _SLOT.pack(state, size, value)
        for number, start, stop in spans(first, count):
            chunk = self._chunk(receiver, number)
            chunk[start * _SLOT_BYTES : stop * _SLOT_BYTES] = slot * (stop - start)
            chunk[_LIVE] += stop - start

    def _chunk(self, receiver: int, number: int) -> bytearray:
        by_receiver = self.slots.get(number)
        if by_receiver is None:
            by_receiver = self.slots[number] = {}
        chunk = by_receiver.get(receiver)
        if chunk is None:
            chunk = by_receiver[receiver] = bytearray(_EMPTY_CHUNK)
        return chunk

    # Snapshots

    def tables(self) -> Iterator[Columns]:
        """All slots in use, in bounded pieces: pairs of sequence and receiver, and the slots."""
        places = [(number, receiver) for number in sorted(self.slots) for receiver in sorted(self.slots[number])]
        for start in range(0, len(places), _CHUNKS_PER_TABLE):
            piece = places[start : start + _CHUNKS_PER_TABLE]
            joined = b"".join([memoryview(self.slots[number][receiver])[:_LIVE] for number, receiver in piece])
            slots = np.frombuffer(joined, dtype=SLOT_DTYPE)
            pairs = np.repeat(np.array(piece, dtype=np.int64), ROWS_PER_CHUNK, axis=0)
            pairs[:, 0] = pairs[:, 0] * ROWS_PER_CHUNK + np.tile(np.arange(ROWS_PER_CHUNK), len(piece))
            used = slots["state"] != _EMPTY
            yield pairs[used], slots[used]

    def restore_slots(self, columns: Columns) -> None:
        """Load one piece of `tables`."""
        pairs, slots = columns[0].view(np.int64).reshape(-1, 2), columns[1].view(SLOT_DTYPE)
        numbers, receivers = pairs[:, 0] >> _SHIFT, pairs[:, 1]
        is_first = np.ones(len(pairs), dtype=np.bool_)  # Of its chunk.
        is_first[1:] = (np.diff(numbers) != 0) | (np.diff(receivers) != 0)
        full = np.zeros(np.count_nonzero(is_first) * ROWS_PER_CHUNK, dtype=SLOT_DTYPE)
        full[(np.cumsum(is_first) - 1) * ROWS_PER_CHUNK + (pairs[:, 0] & _MASK)] = slots
        data = full.tobytes()
        counts = np.diff(np.flatnonzero(is_first), append=len(pairs)).tolist()
        places = zip(numbers[is_first].tolist(), receivers[is_first].tolist(), counts, strict=True)
        for index, (number, receiver, count) in enumerate(places):
            chunk = self._chunk(receiver, number)
            chunk[:_LIVE] = data[index * _LIVE : (index + 1) * _LIVE]
            chunk[_LIVE] = count
