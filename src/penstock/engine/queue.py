"""One queue: its rows, and the lines of its messages."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.engine.digests import Digests
from penstock.engine.groups import Groups
from penstock.engine.line import Holds, Line
from penstock.engine.rows import AHEAD, Row, Rows
from penstock.engine.topics import TopicIndex
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.lifecycle import DAMAGED, DELAYED, KEPT, LEASED, READY
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos

_LINED_UP_BY = ("state", "priority", "visible_at", "expires_at", "topics")


class Queue:
    """The messages of one queue. It has more than 30 methods because rows and lines change together."""

    __slots__ = (
        "_priorities",
        "_ready",
        "armed",
        "changed",
        "created",
        "damaged",
        "delayed",
        "digests",
        "groups",
        "kept",
        "last_sequence",
        "leases",
        "lifetimes",
        "name",
        "number",
        "rows",
        "settings",
        "topics",
    )

    def __init__(self, number: int, name: str, settings: QueueSettings, created: Nanos = 0) -> None:
        """`created`: only where there are several shards; 0 if that was before it was remembered."""
        self.number = number
        self.name = name
        self.created = created
        self.settings = settings
        self.changed: Nanos = created  # When its settings were set; as `created`.
        self.last_sequence = 0
        self.rows = Rows()
        self._ready: dict[int, Line] = {}  # By priority.
        self._priorities: list[int] = []  # Negated, so that the highest comes first.
        self.delayed = Line()
        self.leases = Line()
        self.lifetimes = Line()
        self.kept = 0
        self.damaged = 0
        self.groups = Groups()
        self.digests = Digests()
        self.topics: TopicIndex | None = None  # Made for the first message that has topics.
        self.armed: Nanos = NEVER_NS  # When the engine checks this queue's deadlines next.

    # Views

    @property
    def ready(self) -> int:
        return self.rows.count - self.leases.live - self.delayed.live - self.kept - self.damaged

    @property
    def left(self) -> int:
        """How many messages have ever left it, or are only kept for receivers."""
        return self.last_sequence - self.rows.count + self.kept

    @property
    def ready_since(self) -> Nanos | None:
        """When the ready message that waits longest became ready."""
        heads = [head for line in self._ready.values() if (head := line.first())]
        return min(heads)[0] if heads else None

    def next_ready(self, count: int, now: Nanos) -> list[tuple[int, Row]]:
        """The messages that leave next: by priority, then by the time they became visible, then by sequence."""
        chosen: list[tuple[int, Row]] = []
        for priority in self._priorities:
            line = self._ready[-priority]
            head = line.first()
            if head is None:
                continue
            row = self.rows.get(head[1])
            assert row is not None
            wanted = count - len(chosen)
            if wanted == 1 and row.expires_at > now:
                chosen.append((head[1], row))
            else:
                chosen.extend(self._living(line, wanted, now))
            if len(chosen) >= count:
                break
        return chosen

    def ready_run(self, count: int, now: Nanos) -> tuple[int, NDArray[Any]] | None:
        """The messages that leave next, as the first sequence and a table, if they can be taken together: consecutive
        sequences of one priority, none of them stale or expired."""
        wanted = min(count, self.ready)
        line = next((line for level in self._priorities if (line := self._ready[-level]).live), None)
        if line is None or wanted < RUN_MESSAGES_MIN or line.live < wanted:
            return None
        pairs = line.head_run(wanted)
        if len(pairs) < wanted:
            return None
        first = int(pairs[0, 1])
        rows = self.rows.run(first, wanted)
        if rows is None or (rows["state"] != READY).any() or (rows["visible_at"] != pairs[:, 0]).any():
            return None
        return None if (rows["expires_at"] <= now).any() else (first, rows)

    def _living(self, line: Line, count: int, now: Nanos) -> list[tuple[int, Row]]:
        """Entries of a ready line that have not expired. An expired message only waits for the next tick."""

        def holds(time: Nanos, sequence: int) -> bool:
            row = self.rows.get(sequence)
            return row is not None and row[:4:3] == (time, READY) and row.expires_at > now

        return self._rows_of(sequence for _, sequence in line.peek(count, holds))

    def overdue_leases(self, count: int, now: Nanos) -> list[tuple[int, Row]]:
        return self._overdue(self.leases, count, now, self.rows.is_leased)

    def overdue_lifetimes(self, count: int, now: Nanos) -> list[tuple[int, Row]]:
        return self._overdue(self.lifetimes, count, now, self.rows.is_alive)

    def _overdue(self, line: Line, count: int, now: Nanos, holds: Holds) -> list[tuple[int, Row]]:
        head = line.first()
        if head is None or head[0] > now:
            return []
        return self._rows_of(sequence for _, sequence in line.peek(count, holds, now))

    def _rows_of(self, sequences: Iterable[int]) -> list[tuple[int, Row]]:
        return [(sequence, row) for sequence in sequences if (row := self.rows.get(sequence))]

    def next_deadline(self) -> Nanos:
        heads = (self.delayed.first(), self.leases.first(), self.lifetimes.first())
        return min([self.groups.next_end(), *[head[0] for head in heads if head]])

    def worker(self, sequence: int, row: Row) -> int:
        """The consumer with the lease; 0 if that name also owes a confirmation of its own, to avoid confusing the
        two."""
        return 0 if self.groups.owes(row.consumer, sequence) else row.consumer

    def completes(self, sequence: int, besides: int = 0) -> bool:
        """Whether one more confirmation is enough. `besides`: confirmations that are not applied yet."""
        needed = self.settings.confirmations
        if needed <= 1:
            return False
        confirmed = self.groups.results(sequence) + besides + 1
        return confirmed == needed if self.settings.keep == "all" else confirmed >= needed

    # Changes

    def enter(self, sequence: int, state: int, visible_at: Nanos, priority: int, expires_at: Nanos) -> None:
        """Add a message, whose row exists, to its lines."""
        self.last_sequence = sequence
        line = self._ready.get(priority) if state == READY else None
        if line is not None:
            line.add(visible_at, sequence)
        else:
            self._enter(state, visible_at, priority, sequence)
        if expires_at != NEVER_NS:
            self.lifetimes.add(expires_at, sequence)

    def enter_run(
        self, first: int, count: int, state: int, visible_at: Nanos, priority: int, expires_at: Nanos
    ) -> None:
        """Like `enter`, for messages with consecutive sequences and the same times."""
        self._enter(state, visible_at, priority, first)
        line = self._ready[priority] if state == READY else self.delayed
        line.add_run(visible_at, first + 1, count - 1)
        if expires_at != NEVER_NS:
            self.lifetimes.add_run(expires_at, first, count)
        self.last_sequence = first + count - 1

    def index_topics(self, number: int, first: int, count: int = 1) -> None:
        """Index messages with consecutive sequences by the number of their topics."""
        if self.topics is None:
            self.topics = TopicIndex()
        if count == 1:
            self.topics.add(number, first)
        else:
            self.topics.add_all(number, array("q", range(first, first + count)))

    def change(
        self, sequence: int, row: Row, state: int, visible_at: Nanos, receives: int, consumer: int, marks: int = 0
    ) -> None:
        self.rows.change(sequence, visible_at, receives, consumer, state, marks)
        self._leave(row, sequence)
        self._enter(state, visible_at, row.priority, sequence)

    def extend(self, sequence: int, row: Row, visible_at: Nanos, *, begun: bool) -> None:
        """Whoever has the message has it longer, and may begin now with what it has fetched ahead."""
        marks = AHEAD if begun and row.is_unbegun else row.marks
        self.rows.change(sequence, visible_at, row.receives, row.consumer, row.state, marks)
        self._leave(row, sequence)
        self._enter(row.state, visible_at, row.priority, sequence)

    def lease(self, sequence: int, row: Row, visible_at: Nanos, receives: int, consumer: int, *, ahead: bool) -> None:
        """Like `change`, for the most frequent case."""
        self.rows.change(sequence, visible_at, receives, consumer, LEASED, row.marks_ahead if ahead else 0)
        self._leave(row, sequence)
        self.leases.add(visible_at, sequence)

    def lease_run(self, first: int, visible_at: Nanos, receives: list[int], consumer: int, *, ahead: bool) -> None:
        """Like `lease`, for ready messages with consecutive sequences at the head of their line."""
        row = self.rows.get(first)
        assert row is not None
        self.rows.lease_run(first, visible_at, receives, consumer, ahead=ahead)
        self._leave_run(row.priority, list(range(first, first + len(receives))))
        self.leases.add_run(visible_at, first, len(receives))

    def hand_over_run(self, first: int, count: int) -> None:
        """Like `remove`, for ready messages with consecutive sequences at the head of their line."""
        row = self.rows.get(first)
        assert row is not None
        sequences = list(range(first, first + count))
        mortal = self.rows.remove_many(sequences)
        self._leave_run(row.priority, sequences)
        self._end_many(sequences, mortal)

    def finish_many(self, sequences: list[int]) -> None:
        """Like `remove`, for leased messages."""
        ordered = sorted(sequences)
        mortal = self.rows.remove_many(ordered)
        self.leases.leave_many(ordered, self.rows.is_leased)
        self._end_many(ordered, mortal)

    def _end_many(self, sequences: list[int], mortal: list[int]) -> None:
        self.lifetimes.leave_many(mortal, self.rows.is_alive)
        if self.digests.by_sequence:
            for sequence in sequences:
                self.digests.forget(sequence)
        if self.groups.slots:
            for sequence in sequences:
                self.groups.forget(sequence)
        if self.topics is not None:
            self.topics.trim(self.rows.count, self.rows.is_there)

    def keep(self, sequence: int, row: Row, receives: int, consumer: int) -> None:
        """Remove a message from the workers' lines, and keep it for receivers."""
        self.rows.change(sequence, row.visible_at, receives, consumer, KEPT)
        self._leave(row, sequence)
        self.kept += 1

    def set_aside(self, sequence: int, row: Row, consumer: int) -> None:
        """Hide a damaged message from workers and receivers. The same body may be published again."""
        visible_at = NEVER_NS if row.state == KEPT else row.visible_at
        self.rows.change(sequence, visible_at, row.receives, consumer, DAMAGED)
        self._leave(row, sequence)
        self.damaged += 1
        self.digests.forget(sequence)
        self.groups.release(sequence)

    def remove(self, sequence: int, row: Row) -> None:
        self.rows.remove(sequence)
        if row.state == LEASED:
            self.leases.leave(row.visible_at, sequence, self.rows.is_leased)
        else:
            self._leave(row, sequence)
        if row.expires_at != NEVER_NS:
            self.lifetimes.leave(row.expires_at, sequence, self.rows.is_alive)
        if self.digests.by_sequence:
            self.digests.forget(sequence)
        if self.groups.slots:
            self.groups.forget(sequence)
        if self.topics is not None:
            self.topics.trim(self.rows.count, self.rows.is_there)

    def mature(self, now: Nanos, count: int) -> bool:
        """Make delayed messages ready whose time has come, at most `count`. Returns whether there were any."""
        matured = False
        for _ in range(count):
            head = self.delayed.first()
            if head is None or head[0] > now:
                break
            time, sequence = head
            row = self.rows.get(sequence)
            assert row is not None
            self.rows.change(sequence, time, row.receives, 0, READY)
            self.delayed.leave(time, sequence, self.rows.is_delayed)
            self._enter(READY, time, row.priority, sequence)
            matured = True
        return matured

    def _enter(self, state: int, visible_at: Nanos, priority: int, sequence: int) -> None:
        if state == READY:
            line = self._ready.get(priority)
            if line is None:
                line = self._ready[priority] = Line()
                insort(self._priorities, -priority)
            line.add(visible_at, sequence)
        elif state == LEASED:
            self.leases.add(visible_at, sequence)
        else:
            self.delayed.add(visible_at, sequence)

    def _leave(self, row: Row, sequence: int) -> None:
        """Remove a message from the line of its old state, which is in `row`."""
        if row.state == READY:
            line = self._ready[row.priority]
            line.leave(row.visible_at, sequence, self.rows.is_ready)
            if not line.live:
                self._close(row.priority)
        elif row.state == LEASED:
            self.leases.leave(row.visible_at, sequence, self.rows.is_leased)
        elif row.state == KEPT:
            self.kept -= 1
        elif row.state == DAMAGED:
            self.damaged -= 1
        else:
            self.delayed.leave(row.visible_at, sequence, self.rows.is_delayed)

    def _leave_run(self, priority: int, sequences: list[int]) -> None:
        line = self._ready[priority]
        line.leave_many(sequences, self.rows.is_ready)
        if not line.live:
            self._close(priority)

    def _close(self, priority: int) -> None:
        """Drop the line of a priority if it is empty, but not the last line."""
        if len(self._priorities) > 1:
            del self._ready[priority]
            self._priorities.remove(-priority)

    def line_up(self) -> None:
        """Build the lines from restored rows."""
        self.groups.line_up()
        pieces = [
            (sequences, *(rows[name].copy() for name in _LINED_UP_BY)) for sequences, rows in self.rows.tables()
        ]
        if not pieces:
            return
        sequences, state, priority, visible_at, expires_at, topics = (
            np.concatenate(column) for column in zip(*pieces, strict=True)
        )
        for level in np.unique(priority[state == READY]).tolist():
            chosen = (state == READY) & (priority == level)
            self._ready[level] = line = Line()
            insort(self._priorities, -level)
            line.extend(visible_at[chosen], sequences[chosen])
        for line, chosen in ((self.leases, state == LEASED), (self.delayed, state == DELAYED)):
            line.extend(visible_at[chosen], sequences[chosen])
        self.kept = int(np.count_nonzero(state == KEPT))
        self.damaged = int(np.count_nonzero(state == DAMAGED))
        mortal = expires_at != NEVER_NS
        self.lifetimes.extend(expires_at[mortal], sequences[mortal])
        self.topics = TopicIndex.of(topics, sequences) if topics.any() else None
