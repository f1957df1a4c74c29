"""A decision in progress: the events so far, and what they change for the rest of the decision.

The state stays as it is until the events are logged and applied. A decision of several steps must still see what its
own earlier steps have done: which names it has defined, which queues it has created, which sequences it has assigned
and which messages it is done with. A draft keeps just these four, and only once it needs them, so that a decision of
one step (most publishes, fetches and finishes) does not pay for them.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.limits import CLOCK_SLOWNESS, NEVER_NS
from penstock.model.answers import Refused
from penstock.model.events import Event, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Place


class RefusedError(Exception):
    """The whole command is refused. `Engine.decide` drops the draft and answers with `refused`."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused


class _Overlay:
    """The changes of a draft's events that later steps may ask for."""

    __slots__ = ("characters", "last_name", "last_sequences", "names", "queues")

    def __init__(self, last_name: int) -> None:
        self.names: dict[str, int] = {}
        self.last_name = last_name
        self.characters = 0  # Total length of the names.
        self.queues: dict[str, Queue] = {}
        self.last_sequences: dict[int, int] = {}  # By queue.


class Draft(Struct, gc=False):
    """The argument of every function in `decide/`, which reads `state`, adds to `events` and returns the answer.

    `now`: the time of its events, which leases, delays and lifetimes go by. `wall`: what the clock of the machine
    shows, which schedules and the ends of tokens go by. They differ while the first converges to the second.
    `done_with`: the messages that the decision has ended, or must not touch again. None in a decision that touches no
    message twice."""

    state: EngineState
    now: Nanos
    wall: Nanos
    events: list[Event] = []
    done_with: set[Place] | None = None
    _own: _Overlay | None = None

    @property
    def _overlay(self) -> _Overlay:
        if self._own is None:
            self._own = _Overlay(self.state.names.last)
        return self._own

    def time_at(self, wall: Nanos) -> Nanos:
        """The time that events will have when the clock of the machine shows this: they converge until then."""
        ahead = self.now - self.wall
        left = abs(ahead) - max(0, wall - self.wall) // CLOCK_SLOWNESS
        return wall if left <= 0 else min(wall + (left if ahead > 0 else -left), NEVER_NS)

    def number(self, text: str) -> int:
        """The number of a name; a new name is defined by an event. Raises `RefusedError` if there is no room."""
        number = self.state.names.numbers.get(text)
        if number is None:
            number = self.state.names.known(text) or self._define(text)
        return number

    def _define(self, text: str) -> int:
        own, names = self._overlay, self.state.names
        number = own.names.get(text)
        if number is None:
            if refused := names.refusal(text, len(own.names), own.characters):
                raise RefusedError(refused)
            own.last_name = own.names[text] = number = names.next_number(own.last_name)
            own.characters += len(text)
            self.events.append(NameDefined(self.now, number, text))
        return number

    def queue(self, name: str) -> Queue | None:
        """A queue that exists, or that this draft has created."""
        number = self.state.numbers.get(name)
        if number is not None:
            return self.state.queues[number]
        return self._own.queues.get(name) if self._own else None

    def add_queue(self, name: str, settings: QueueSettings) -> Queue:
        number = self.next_queue
        self.events.append(QueueCreated(self.now, number, name, settings))
        queue = self._overlay.queues[name] = Queue(number, name, settings)
        return queue

    @property
    def next_queue(self) -> int:
        """The number of the next queue that is created."""
        return self.state.last_queue + (self.queues_created + 1) * self.state.queue_step

    @property
    def queues_created(self) -> int:
        return len(self._own.queues) if self._own else 0

    def take(self, queue: Queue, count: int = 1) -> int:
        """Assign the next `count` sequences of a queue. Returns the first."""
        last_sequences = self._overlay.last_sequences
        last = last_sequences.get(queue.number, queue.last_sequence)
        last_sequences[queue.number] = last + count
        return last + 1

    def end(self, queue: Queue, sequence: int) -> None:
        """Record for later steps that the decision is done with a message."""
        if self.done_with is not None:
            self.done_with.add((queue.number, sequence))

    def find(self, queue: int, sequence: int) -> tuple[Queue, int, Row] | None:
        """Like `EngineState.find`, but None if this draft is done with the message."""
        found = self.state.find(queue, sequence)
        return None if found and self.done_with and (found[0].number, found[1]) in self.done_with else found


Facts = tuple[Nanos, int, int, Nanos, int, int]


def facts_of(queue: Queue, sequence: int, row: Row, now: Nanos) -> Facts:
    return now, queue.number, sequence, row.created, row.receives, row.consumer
