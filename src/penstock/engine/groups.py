"""The receivers of a queue: how far each has read, which results it owes, and the results it has sent.

A receiver is a name with a cursor: every message up to the cursor was delivered to that name, or skipped. What it
owes or has sent for a single message is in a slot (`slots.py`). What it owes is also in a line, ordered by when it is
due or when its lease ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penstock.engine.line import Holds, Line
from penstock.engine.rows import Columns
from penstock.engine.slots import AWAITED, DECLINED, HELD, STORED, Slot, Slots
from penstock.limits import NEVER_NS
from penstock.model.values import Nanos, Position

WORKERS = 0  # The receiver that represents all workers, if several consumers must confirm a message.
_DUE_PER_LOOK = 256


class _Receiver:
    __slots__ = ("awaited", "cursor")

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor
        self.awaited: Line | None = None  # By when results are due. None if the receiver owes none.


class Groups(Slots):
    __slots__ = ("_held", "_receivers")

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, _Receiver] = {}  # By the number of their name.
        self._held: dict[int, Line] = {}  # For receivers that hold messages: those messages, by when the leases end.

    # Views

    def __len__(self) -> int:
        return len(self._receivers)

    def __contains__(self, receiver: int) -> bool:
        return receiver in self._receivers

    def names(self) -> set[int]:
        """The numbers of the names of all receivers."""
        return self._receivers.keys() | {receiver for chunks in self.slots.values() for receiver in chunks}

    def cursor(self, receiver: int) -> int:
        known = self._receivers.get(receiver)
        return known.cursor if known else 0

    def due(self, receiver: int, count: int, now: Nanos, besides: Container[int]) -> list[tuple[int, int]]:
        """The messages to deliver again, in the order of sequences, each with its number of deliveries so far."""
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
        """Sequence, receiver and slot of messages whose leases have ended, the longest overdue first."""
        found: list[tuple[Nanos, int, int]] = []
        for receiver, line in self._held.items():
            pairs = line.peek(count, self._holds(receiver, HELD), now)
            found += [(time, sequence, receiver) for time, sequence in pairs]
        ended = [
            (sequence, receiver, self.slot(receiver, sequence)) for _, sequence, receiver in sorted(found)[:count]
        ]
        return [(sequence, receiver, slot) for sequence, receiver, slot in ended if slot]

    def next_end(self) -> Nanos:
        """When the next lease of a receiver ends."""
        heads = [line.first() for line in self._held.values()]
        return min([head[0] for head in heads if head], default=NEVER_NS)

    # Changes

    def move(self, receiver: int, sequence: int) -> None:
        known = self._known(receiver)
        known.cursor = max(known.cursor, sequence)

    def deliver(self, receiver: int, sequence: int, deliveries: int, due_at: Nanos) -> None:
        """Record a delivery. `due_at`: when the message is delivered again unless a result comes; never, if this was
        the last time."""
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
        """Record that the receiver holds the message until then. No result is expected later."""
        self.move(receiver, sequence)
        self._hand(receiver, sequence, HELD, deliveries, until)

    def give_back(self, receiver: int, sequence: int, deliveries: int, due_at: Nanos) -> None:
        """Record that the receiver no longer holds the message, and will get it again."""
        self._hand(receiver, sequence, AWAITED, deliveries, due_at)

    def deliver_run(self, receiver: int, first: int, count: int, due_at: Nanos, *, lend: bool) -> None:
        """Like `deliver` or `lend`, for consecutive sequences that are delivered the first time and have no
        result."""
        self.move(receiver, first + count - 1)
        if due_at == NEVER_NS and not lend:
            return
        state = HELD if lend else AWAITED
        self._set_run(receiver, first, count, state, 1, due_at)
        self._line(receiver, state).add_run(due_at, first, count)

    def store(self, receiver: int, sequence: int, position: Position, size: int) -> None:
        """Record where a result is stored."""
        self._known(receiver)
        slot = self.slot(receiver, sequence)
        self._set(receiver, sequence, STORED, size, position)
        if slot:
            self._no_longer_due(receiver, sequence, slot)

    def decline(self, receiver: int, sequence: int) -> None:
        """Record that a receiver will not send the result that it owes."""
        slot = self.slot(receiver, sequence)
        assert slot is not None
        self._set(receiver, sequence, DECLINED, 0, 0)
        self._no_longer_due(receiver, sequence, slot)

    def forget(self, sequence: int) -> None:
        """Forget a message that is gone, with all results owed and sent."""
        self._drop(sequence, (AWAITED, STORED, DECLINED, HELD))

    def release(self, sequence: int) -> None:
        """Forget the results owed for a message. Those that were sent stay."""
        self._drop(sequence, (AWAITED, HELD))

    def _drop(self, sequence: int, states: tuple[int, ...]) -> None:
        for receiver in self.receivers_of(sequence):
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
        """The line of awaited, or of held messages."""
        known = self._known(receiver)
        if state == HELD:
            return self._held.setdefault(receiver, Line())
        if known.awaited is None:
            known.awaited = Line()
        return known.awaited

    def _no_longer_due(self, receiver: int, sequence: int, slot: Slot) -> None:
        """Remove a slot that has changed from the line of its old state, if that was awaited or held."""
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

    # Snapshots

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        if self._receivers:
            numbers = sorted(self._receivers)
            cursors = [self._receivers[number].cursor for number in numbers]
            yield "receivers", b"", (np.array(numbers, dtype=np.int64), np.array(cursors, dtype=np.int64))
        for columns in self.tables():
            yield "slots", b"", columns

    def restore(self, kind: str, columns: Columns) -> None:
        if kind == "receivers":
            for number, cursor in zip(columns[0].view(np.int64).tolist(), columns[1].view(np.int64), strict=True):
                self._receivers[number] = _Receiver(int(cursor))
        else:
            assert kind == "slots", kind
            self.restore_slots(columns)

    def line_up(self) -> None:
        """Build the lines from restored slots."""
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
    """All sequences in order, sorted a piece at a time: a caller that needs a few of many does not pay for all."""
    while len(sequences) > piece:
        sequences = np.partition(sequences, piece)
        yield from np.sort(sequences[:piece]).tolist()
        sequences = sequences[piece:]
    yield from np.sort(sequences).tolist()
