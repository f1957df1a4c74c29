"""Replays a log of which some events are lost, and notes what that means for each queue.

Before an event is applied, what it presupposes is made true: a queue that was created in a gap gets a made-up name,
sequences that are missing are noted as lost, and a message whose state does not allow the event is brought into one
that does. A message that may be finished is kept: it is delivered twice rather than lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from penstock.cli.log.losses import QueueLosses, Range, ranges
from penstock.engine.engine import Engine
from penstock.engine.queue import Queue
from penstock.model.events import (
    Deleted,
    Event,
    Fetched,
    Logged,
    MessageEvent,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueueRemoved,
    Retried,
    Unchanged,
)
from penstock.model.kinds import ENDS, MOVES
from penstock.model.lifecycle import ALLOWED, DELAYED, LEASED, READY
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Place, Position

_UNFIT = (AssertionError, LookupError)  # What `evolve` raises if something that an event presupposes is missing.
_NAME_FIELDS = ("content_type", "sender", "object", "topics", "consumer")


class Mender:
    """Applies events to an engine, with gaps between them."""

    def __init__(self, engine: Engine, texts: dict[int, str]) -> None:
        """`texts`: names by number, from all events that can be read."""
        self.engine = engine
        self._texts = texts
        self._aliases: dict[int, int] = {}  # Numbers of names that are known under another number.
        self._lost: defaultdict[int, set[int]] = defaultdict(set)  # Sequences by queue.
        self._pending: dict[int, int] = {}  # By queue: events lost since its last arrival.
        self._before: dict[int, int] = {}  # By queue: its last sequence at the last gap.
        self._notes: defaultdict[int, list[str]] = defaultdict(list)
        self._names_lost = 0
        self._unfit: defaultdict[str, int] = defaultdict(int)  # Events that could not be applied, by kind.
        self._events_lost = 0
        self._is_mending = False  # As long as nothing is missing, events are applied as they are.

    # ── Gaps ────────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, events: int) -> None:
        """So many events are missing here."""
        self._events_lost += events
        self._is_mending = True
        for number, queue in self.engine.queues.items():
            self._pending[number] = self._pending.get(number, 0) + events
            self._before[number] = queue.last_sequence

    def _enter(self, queue: Queue, sequence: int) -> None:
        """The next message that enters the queue has this sequence."""
        self._pending.pop(queue.number, None)
        self._skip_to(queue, sequence)

    def _skip_to(self, queue: Queue, sequence: int) -> None:
        """Those before this sequence that are missing are lost."""
        if sequence > queue.last_sequence + 1:
            self._lost[queue.number].update(range(queue.last_sequence + 1, sequence))
            queue.last_sequence = sequence - 1

    def _lose_message(self, queue: Queue, sequence: int) -> None:
        """A message that took a sequence is lost."""
        self._skip_to(queue, sequence)
        queue.last_sequence = max(queue.last_sequence, sequence)
        self._lost[queue.number].add(sequence)

    # ── Events ──────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, event: Event, position: Position) -> None:
        if not self._is_mending:
            try:
                self.engine.evolve(event, position)
                return
            except _UNFIT:
                self._is_mending = True
        event = self._renamed(event)
        try:
            if self._prepare(event):
                self.engine.evolve(event, position)
        except _UNFIT:
            self._unfit[event.kind.name.lower().replace("_", " ")] += 1

    def _prepare(self, event: Event) -> bool:
        """Make true what an event presupposes. Whether it can be applied then."""
        match event:
            case NameDefined():
                return self._name_defined(event)
            case NameForgotten():
                return False  # A message that should be gone may use it. The broker forgets it when none does.
            case QueueCreated():
                return self._queue_created(event)
            case QueueChanged() | QueueRemoved():
                return self._queue(event.queue, event.time) is not None
            case Logged() | Queued() | Unchanged():
                return self._arrival(event)
            case MessageEvent():
                return self._message(event)
            case _:
                return True

    def _name_defined(self, event: NameDefined) -> bool:
        names = self.engine.names
        known = names.known(event.text)
        names.last = max(names.last, event.number)
        if known and known != event.number:
            self._aliases[event.number] = known
        return not known and event.number not in names.texts

    def _queue_created(self, event: QueueCreated) -> bool:
        number = self.engine.numbers.get(event.name)
        if number is not None:
            self.engine.evolve(QueueRemoved(event.time, number), 0)  # A new one exists: this one was removed.
        if not self._is_mine(event.queue):
            return False
        while self._next_queue < event.queue:
            self._invent_queue(event.time, self._next_queue)
        return event.queue > self.engine.last_queue

    def _arrival(self, event: Logged | Queued | Unchanged) -> bool:
        queue = self._queue(event.queue, event.time)
        if queue is None or event.sequence <= queue.last_sequence:
            return False
        if isinstance(event, Queued) and not self._has(event.to_queue, event.to_sequence):
            self._enter(queue, event.sequence)
            self._lose_message(queue, event.sequence)  # The bytes were those of a message that is lost.
            return False
        self._enter(queue, event.sequence)
        return True

    def _message(self, event: MessageEvent) -> bool:
        queue = self._queue(event.queue, event.time)
        if queue is None or (event.kind.row.whose == "receivers" and not event.consumer):
            return False
        target = self._target(event)
        if not queue.rows.is_there(event.sequence):
            self._miss(queue, event, target)
            return False
        if target:
            home, sequence = target
            if sequence <= home.last_sequence:
                return False
            self._enter(home, sequence)
        return self._fits(queue, event)

    def _target(self, event: MessageEvent) -> tuple[Queue, int] | None:
        """Where an event moves a message."""
        if event.kind not in MOVES:
            return None
        home = self._queue(event.to_queue, event.time)  # type: ignore[attr-defined]
        return (home, event.to_sequence) if home else None  # type: ignore[attr-defined]

    def _miss(self, queue: Queue, event: MessageEvent, target: tuple[Queue, int] | None) -> None:
        """An event about a message that is not there: it arrived in a gap, or it is gone for another reason."""
        if event.sequence > queue.last_sequence:
            self._lose_message(queue, event.sequence)
        if event.sequence in self._lost[queue.number] and (target or event.kind in ENDS):
            self._lost[queue.number].discard(event.sequence)
            if target:
                self._enter(*target)
                self._lose_message(*target)

    def _fits(self, queue: Queue, event: MessageEvent) -> bool:
        """Bring a message into a state that allows the event. Whether that is possible."""
        row = queue.rows.get(event.sequence)
        assert row is not None
        if (row.state, event.kind) in ALLOWED:
            return True
        facts = (event.time, event.queue, event.sequence, row.created, row.receives, row.consumer)
        if row.state == LEASED and (READY, event.kind) in ALLOWED:
            self.engine.evolve(Retried(*facts, visible_at=event.time), 0)
            return True
        if row.state in (READY, DELAYED) and (LEASED, event.kind) in ALLOWED:
            self.engine.evolve(Fetched(*facts, visible_at=event.time), 0)
            return True
        return False

    # ── What events refer to ────────────────────────────────────────────────────────────────────────────────

    def _has(self, number: int, sequence: int) -> bool:
        queue = self.engine.queues.get(number)
        return queue is not None and queue.rows.is_there(sequence)

    def _queue(self, number: int, time: Nanos) -> Queue | None:
        """A queue. One that was created in a gap is invented; None for one that was removed, or is in another shard:
        the log of a store that was moved to several shards has the past of all."""
        while self._is_mine(number) and number > self.engine.last_queue:
            self._invent_queue(time, self._next_queue)
        return self.engine.queues.get(number)

    def _is_mine(self, number: int) -> bool:
        return (number - self._next_queue) % self.engine.queue_step == 0

    @property
    def _next_queue(self) -> int:
        return self.engine.last_queue + self.engine.queue_step

    def _invent_queue(self, time: Nanos, number: int) -> None:
        name = f"salvaged-{number}"
        while name in self.engine.numbers:
            name += "-"
        self.engine.evolve(QueueCreated(time, number, name, QueueSettings()), 0)
        self._notes[number].append("Its name and its settings are lost.")
        self._before[number] = 0
        self._pending[number] = self._events_lost

    def _renamed(self, event: Event) -> Event:
        """The event with the numbers of names that are known. One whose text is lost becomes no name."""
        changes = {}
        for field in _NAME_FIELDS:
            number = getattr(event, field, 0)
            if number and (known := self._name(number, event.time)) != number:
                changes[field] = known
        return msgspec.structs.replace(event, **changes) if changes else event

    def _name(self, number: int, time: Nanos) -> int:
        number = self._aliases.get(number, number)
        if number in self.engine.names.texts:
            return number
        text = self._texts.get(number)
        if text is None:
            self._names_lost += 1
            return 0
        if self._name_defined(NameDefined(time, number, text)):
            self.engine.evolve(NameDefined(time, number, text), 0)
        return self._aliases.get(number, number)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def drop(self, places: Iterable[Place]) -> None:
        """Remove messages whose bytes are lost."""
        for number, sequence in places:
            queue = self.engine.queues[number]
            row = queue.rows.get(sequence)
            assert row is not None
            facts = (self.engine.time, number, sequence, row.created, row.receives, row.consumer)
            self.engine.evolve(Deleted(*facts), 0)
            self._lost[number].add(sequence)

    def finish(self, *, ends_open: bool) -> list[QueueLosses]:
        """Report what is lost in each queue. Sequences that may have been given out are not given out again."""
        found = []
        for number, queue in self.engine.queues.items():
            unknown = self._unknown(queue, ends_open=ends_open)
            found.append(
                QueueLosses(
                    number=number,
                    name=queue.name,
                    messages=queue.rows.count,
                    lost=ranges(self._lost[number]),
                    unknown=unknown,
                    may_return=queue.rows.count if ends_open else self._may_return(queue),
                    notes=self._notes[number],
                )
            )
        return found

    def _unknown(self, queue: Queue, *, ends_open: bool) -> list[Range]:
        first, count = queue.last_sequence + 1, self._pending.get(queue.number, 0)
        queue.last_sequence += count
        if ends_open:
            return [(first, None)]
        return [(first, first + count - 1)] if count else []

    def _may_return(self, queue: Queue) -> int:
        before = self._before.get(queue.number, 0)
        return sum(int((sequences <= before).sum()) for sequences, _ in queue.rows.tables())

    def notes(self) -> list[str]:
        notes = [f"{count:,} events ({kind}) refer to something that is lost." for kind, count in self._unfit.items()]
        if self._names_lost:
            notes.append(
                f"{self._names_lost:,} content types, senders, objects, topics or consumers of messages are lost."
            )
        return notes
