"""The receivers of a queue: how far each has come, what it owes a result for, and the results it has sent.

A receiver is a name with a cursor: everything up to it was delivered to that name, or passed over. A message has a
slot of 16 bytes with a receiver only while there is something to know: that it is to be delivered again unless a
result comes, where in the log the result is, that there will be none, or until when the receiver has the message.
Slots live in chunks of neighbouring sequences, first by sequence and then by receiver, so that a message that goes
takes all of its slots with it without asking every receiver.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.engine.line import Holds, Line
from penstock.engine.rows import spans
from penstock.limits import NEVER_NS, ROWS_PER_CHUNK
from penstock.model.values import Nanos, Position

_SLOT = Struct("<B3xIQ")
SLOT_DTYPE = np.dtype([("state", "u1"), ("_", "u1", (3,)), ("size", "<u4"), ("value", "<u8")])
assert _SLOT.size == SLOT_DTYPE.itemsize == 16

_EMPTY, AWAITED, STORED, DECLINED, HELD = range(5)  # The states of a slot; the numbers are in snapshots.
WORKERS = 0  # The receiver that stands for all workers, where several consumers have to confirm a message.
_SHIFT = ROWS_PER_CHUNK.bit_length() - 1
_MASK = ROWS_PER_CHUNK - 1
_SLOT_BYTES = _SLOT.size
_LIVE = ROWS_PER_CHUNK * _SLOT_BYTES  # The last byte of a chunk counts its slots in use.
_EMPTY_CHUNK = bytes(_LIVE + 1)
_CHUNKS_PER_TABLE = 256
_DUE_PER_LOOK = 256

_Columns = tuple[NDArray[Any], ...]


class Slot(NamedTuple):
    state: int
    size: int  # Of a result; of what is awaited or held, the deliveries so far.
    value: int  # The position of a result; of what is awaited, when it is due again; of what is held, until when.


class Stored(NamedTuple):
    """Where a result is."""

    receiver: int
    position: Position
    size: int


class _Receiver:
    __slots__ = ("awaited", "cursor")

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self.awaited: Line | None = None  # By when they are due. Made for those who owe results.


class Groups:
    __slots__ = ("_held", "_receivers", "slots")

    def __init__(self) -> None:
        self._receivers: dict[int, _Receiver] = {}  # By the number of the name.
        self._held: dict[int, Line] = {}  # What receivers hold, by when that ends; of those who hold something.
        self.slots: dict[int, dict[int, bytearray]] = {}  # In chunks, by sequence and then by receiver.

    # Views

    def __len__(self) -> int:
        return len(self._receivers)

    def __contains__(self, receiver: int) -> bool:
        return receiver in self._receivers

    def names(self) -> set[int]:
        """Of all receivers, by number."""
        return self._receivers.keys() | {receiver for chunks in self.slots.values() for receiver in chunks}

    def cursor(self, receiver: int) -> int:
        known = self._receivers.get(receiver)
        return known.cursor if known else 0

    def slot(self, receiver: int, sequence: int) -> Slot | None:
        chunk = self.slots.get(sequence >> _SHIFT, {}).get(receiver)
        if chunk is None:
            return None
        slot = Slot._make(_SLOT.unpack_from(chunk, (sequence & _MASK) * _SLOT_BYTES))
        return slot if slot.state else None

    def has_slots(self, receiver: int, first: int, count: int) -> bool:
        """Is there a slot for one of these following sequences?"""
        for number, start, stop in spans(first, count):
            chunk = self.slots.get(number, {}).get(receiver)
            if chunk and chunk[start * _SLOT_BYTES : stop * _SLOT_BYTES].strip(b"\0"):
                return True
        return False

    def result(self, sequence: int, receiver: int = 0) -> Stored | None:
        """The result of a receiver; without one, of the first there is."""
        for each in (receiver,) if receiver else self.slots.get(sequence >> _SHIFT, ()):
            slot = self.slot(each, sequence)
            if slot and slot.state == STORED:
                return Stored(each, slot.value, slot.size)
        return None

    def holds(self, receiver: int, sequence: int, position: Position) -> bool:
        """Is this receiver's result there, and at this position?"""
        slot = self.slot(receiver, sequence)
        return slot is not None and (slot.state, slot.value) == (STORED, position)

    def owes(self, receiver: int, sequence: int) -> bool:
        """Is a result of this receiver awaited, be it that it has the message now?"""
        slot = self.slot(receiver, sequence) if self.slots else None
        return slot is not None and slot.state in (AWAITED, HELD)

    def has(self, receiver: int, sequence: int) -> bool:
        """Has this receiver the message now?"""
        slot = self.slot(receiver, sequence) if self.slots else None
        return slot is not None and slot.state == HELD

    def results(self, sequence: int) -> int:
        """How many receivers have sent one."""
        slots = [self.slot(receiver, sequence) for receiver in self.slots.get(sequence >> _SHIFT, ())]
        return sum([slot is not None and slot.state == STORED for slot in slots])

    def due(self, receiver: int, count: int, now: Nanos, besides: Container[int]) -> list[tuple[int, int]]:
        """What is to be delivered again, each with its deliveries so far: by sequence."""
        if self.next_due(receiver) > now:
            return []
        line = self._receivers[receiver].awaited
        assert line is not None
        found: dict[int, int] = {}
        for sequence in _ascending(line.until(now), _DUE_PER_LOOK):
            slot = self.slot(receiver, sequence)
            if slot and slot.state == AWAITED and slot.value <= now and sequence not in besides:
                found[sequence] = slot.size
                if len(found) == count:
                    break
        return list(found.items())

    def next_due(self, receiver: int) -> Nanos:
        known = self._receivers.get(receiver)
        head = known.awaited.first() if known and known.awaited else None
        return head[0] if head else NEVER_NS

    def overdue(self, count: int, now: Nanos) -> list[tuple[int, int, Slot]]:
        """Sequence, receiver and slot of what was held until now: the longest overdue first."""
        found: list[tuple[Nanos, int, int]] = []
        for receiver, line in self._held.items():
            pairs = line.peek(count, self._holds(receiver, HELD), now)
            found += [(time, sequence, receiver) for time, sequence in pairs]
        ended = [
            (sequence, receiver, self.slot(receiver, sequence)) for _, sequence, receiver in sorted(found)[:count]
        ]
        return [(sequence, receiver, slot) for sequence, receiver, slot in ended if slot]

    def next_end(self) -> Nanos:
        """When a receiver has something no longer."""
        heads = [line.first() for line in self._held.values()]
        return min([head[0] for head in heads if head], default=NEVER_NS)

    # Changes

    def move(self, receiver: int, sequence: int) -> None:
        known = self._known(receiver)
        known.cursor = max(known.cursor, sequence)

    def deliver(self, receiver: int, sequence: int, deliveries: int, due_at: Nanos) -> None:
        """`due_at`: when it is delivered again unless a result comes; never, if this was the last time."""
        self.move(receiver, sequence)
        slot = self.slot(receiver, sequence)
        if slot and slot.state == STORED:
            return
        if due_at != NEVER_NS:
            self._hand(receiver, sequence, AWAITED, deliveries, due_at)
        elif slot:
            self._clear(receiver, sequence)
            self._no_longer_due(receiver, sequence, slot)

    def lend(self, receiver: int, sequence: int, deliveries: int, until: Nanos) -> None:
        """The receiver has the message until then, and nobody counts on a result later."""
        self.move(receiver, sequence)
        self._hand(receiver, sequence, HELD, deliveries, until)

    def give_back(self, receiver: int, sequence: int, deliveries: int, due_at: Nanos) -> None:
        """The receiver has the message no longer, and gets it again."""
        self._hand(receiver, sequence, AWAITED, deliveries, due_at)

    def deliver_run(self, receiver: int, first: int, count: int, due_at: Nanos, *, lend: bool) -> None:
        """As `deliver` or `lend`, for following sequences that are delivered the first time and have no result."""
        self.move(receiver, first + count - 1)
        if due_at == NEVER_NS and not lend:
            return
        state = HELD if lend else AWAITED
        slot = _SLOT.pack(state, 1, due_at)
        for number, start, stop in spans(first, count):
            chunk = self._chunk(receiver, number)
            chunk[start * _SLOT_BYTES : stop * _SLOT_BYTES] = slot * (stop - start)
            chunk[_LIVE] += stop - start
        self._line(receiver, state).add_run(due_at, first, count)

    def store(self, receiver: int, sequence: int, position: Position, size: int) -> None:
        """A result has come."""
        self._known(receiver)
        slot = self.slot(receiver, sequence)
        self._set(receiver, sequence, STORED, size, position)
        if slot:
            self._no_longer_due(receiver, sequence, slot)

    def decline(self, receiver: int, sequence: int) -> None:
        """No result will come of a receiver that owes one."""
        slot = self.slot(receiver, sequence)
        assert slot is not None
        self._set(receiver, sequence, DECLINED, 0, 0)
        self._no_longer_due(receiver, sequence, slot)

    def forget(self, sequence: int) -> None:
        """A message has gone, and with it what receivers owe for it or have sent."""
        self._drop(sequence, (AWAITED, STORED, DECLINED, HELD))

    def release(self, sequence: int) -> None:
        """Nobody owes a result for a message any more; those that were sent stay."""
        self._drop(sequence, (AWAITED, HELD))

    def _drop(self, sequence: int, states: tuple[int, ...]) -> None:
        for receiver in list(self.slots.get(sequence >> _SHIFT, ())):
            slot = self.slot(receiver, sequence)
            if slot and slot.state in states:
                self._clear(receiver, sequence)
                self._no_longer_due(receiver, sequence, slot)

    def _known(self, receiver: int) -> _Receiver:
        known = self._receivers.get(receiver)
        if known is None:
            known = self._receivers[receiver] = _Receiver()
        return known

    def _hand(self, receiver: int, sequence: int, state: int, deliveries: int, time: Nanos) -> None:
        slot = self.slot(receiver, sequence)
        self._set(receiver, sequence, state, deliveries, time)
        if slot:
            self._no_longer_due(receiver, sequence, slot)
        self._line(receiver, state).add(time, sequence)

    def _line(self, receiver: int, state: int) -> Line:
        """The line of what is awaited, or of what is held."""
        known = self._known(receiver)
        if state == HELD:
            return self._held.setdefault(receiver, Line())
        if known.awaited is None:
            known.awaited = Line()
        return known.awaited

    def _no_longer_due(self, receiver: int, sequence: int, slot: Slot) -> None:
        """The slot is no longer what it was; if it was awaited or held, it leaves the line."""
        if slot.state in (AWAITED, HELD):
            line = self._line(receiver, slot.state)
            line.leave(slot.value, sequence, self._holds(receiver, slot.state))
            if slot.state == HELD and not line.live:
                del self._held[receiver]

    def _holds(self, receiver: int, state: int) -> Holds:
        def holds(time: Nanos, sequence: int) -> bool:
            slot = self.slot(receiver, sequence)
            return slot is not None and slot.state == state and slot.value == time

        return holds

    def _chunk(self, receiver: int, number: int) -> bytearray:
        by_receiver = self.slots.get(number)
        if by_receiver is None:
            by_receiver = self.slots[number] = {}
        chunk = by_receiver.get(receiver)
        if chunk is None:
            chunk = by_receiver[receiver] = bytearray(_EMPTY_CHUNK)
        return chunk

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

    # Snapshots

    def sections(self) -> Iterator[tuple[str, bytes, _Columns]]:
        if self._receivers:
            numbers = sorted(self._receivers)
            cursors = [self._receivers[number].cursor for number in numbers]
            yield "receivers", b"", (np.array(numbers, dtype=np.int64), np.array(cursors, dtype=np.int64))
        for columns in self.tables():
            yield "slots", b"", columns

    def tables(self) -> Iterator[_Columns]:
        """All slots in use, in bounded pieces: pairs of sequence and receiver, and what is in each."""
        places = [(number, receiver) for number in sorted(self.slots) for receiver in sorted(self.slots[number])]
        for start in range(0, len(places), _CHUNKS_PER_TABLE):
            piece = places[start : start + _CHUNKS_PER_TABLE]
            joined = b"".join([memoryview(self.slots[number][receiver])[:_LIVE] for number, receiver in piece])
            slots = np.frombuffer(joined, dtype=SLOT_DTYPE)
            pairs = np.repeat(np.array(piece, dtype=np.int64), ROWS_PER_CHUNK, axis=0)
            pairs[:, 0] = pairs[:, 0] * ROWS_PER_CHUNK + np.tile(np.arange(ROWS_PER_CHUNK), len(piece))
            used = slots["state"] != _EMPTY
            yield pairs[used], slots[used]

    def restore(self, kind: str, columns: _Columns) -> None:
        if kind == "receivers":
            for number, cursor in zip(columns[0].view(np.int64).tolist(), columns[1].view(np.int64), strict=True):
                self._receivers[number] = _Receiver(int(cursor))
        else:
            assert kind == "slots", kind
            self._restore_slots(columns[0].view(np.int64).reshape(-1, 2), columns[1].view(SLOT_DTYPE))

    def _restore_slots(self, pairs: NDArray[np.int64], slots: NDArray[Any]) -> None:
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

    def line_up(self) -> None:
        """Line restored slots up again: every line is a function of the slots."""
        self._line_up(AWAITED)
        self._line_up(HELD)

    def _line_up(self, state: int) -> None:
        pieces = [
            (pairs[waiting], slots["value"][waiting].astype(np.int64))
            for pairs, slots in self.tables()
            if (waiting := slots["state"] == state).any()
        ]
        if not pieces:
            return
        pairs, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(pairs[:, 1], kind="stable")
        pairs, times = pairs[order], times[order]
        bounds = [*np.flatnonzero(np.diff(pairs[:, 1], prepend=0)).tolist(), len(pairs)]
        for start, stop in pairwise(bounds):
            self._line(int(pairs[start, 1]), state).extend(times[start:stop], pairs[start:stop, 0])


def _ascending(sequences: NDArray[np.int64], piece: int) -> Iterator[int]:
    """All of these in order, a piece at a time: whoever needs a few of many does not pay for sorting them all."""
    while len(sequences) > piece:
        sequences = np.partition(sequences, piece)
        yield from np.sort(sequences[:piece]).tolist()
        sequences = sequences[piece:]
    yield from np.sort(sequences).tolist()
