"""The state of the engine: queues, names, routes, staged batches, schedules, and the next deadline.

Decisions (`decide/`) read it and events (`evolve/`) change it; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import UTC, tzinfo
from heapq import heappop, heappush

from penstock.engine.answered import AnsweredRequests
from penstock.engine.couriers import Couriers
from penstock.engine.history import History, MemoryHistory
from penstock.engine.names import Names
from penstock.engine.outcomes import Outcomes
from penstock.engine.queue import Queue
from penstock.engine.reasons import Reasons
from penstock.engine.routing import Routing
from penstock.engine.rows import Row
from penstock.engine.schedules import Schedules
from penstock.engine.staging import Staging
from penstock.engine.tokens import Tokens
from penstock.engine.topics import TopicNames
from penstock.limits import NAMES_DEFAULT, NEVER_NS, TICK_EVENTS_MAX
from penstock.model.access import OWN_QUEUES
from penstock.model.events import MessageEvent
from penstock.model.lifecycle import ALLOWED
from penstock.model.values import Nanos, Place

Zones = Callable[[str], tzinfo | None]  # Time zones by their names.


def only_utc(name: str) -> tzinfo | None:
    return UTC if name == "UTC" else None


class EngineState:
    def __init__(
        self,
        history: History | None = None,
        names_max: int = NAMES_DEFAULT,
        zones: Zones = only_utc,
        *,
        shard: int = 0,
        shards: int = 1,
        home: Callable[[str], int] | None = None,
    ) -> None:
        """Shard `shard` of `shards`, from 0. The numbers of their queues are interleaved, so that each is unique.
        `home`: the shard of a queue, by its name; absent: this one has all."""
        self.time: Nanos = 0  # The time of the last event.
        self.history = history or MemoryHistory()
        self.names = Names(names_max)
        self.topics = TopicNames(self.names)
        self.queues: dict[int, Queue] = {}
        self.numbers: dict[str, int] = {}  # Queue name to number, oldest queue first.
        self.shard = shard
        self.queue_step = shards
        self._home = home or (lambda _: shard)
        self.last_queue = shard + 1 - shards  # The number of the last queue that was created.
        self.routing = Routing()
        self.damaged_in: set[int] = set()  # Queues in which a message was ever set aside.
        self.moved: dict[Place, Place] = {}  # Where a moved message is now, by the place in its id.
        self.origins: dict[Place, Place] = {}  # The reverse.
        self.reasons = Reasons()
        self.staging = Staging()
        self.answered = AnsweredRequests()
        self.schedules = Schedules()
        self.tokens = Tokens()
        self.couriers = Couriers()
        self.outcomes = Outcomes()
        # For decisions; events say what came of them.
        self.zones = zones
        self.channels_elsewhere: Container[str] = ()  # The names of those in other shards that are known here.
        # When `decide(Tick())` and `advance` next have something to do. It may be early, but never late. Schedules
        # know themselves when they are due: they go by another clock.
        self.next_deadline: Nanos = NEVER_NS
        self._deadlines: list[tuple[Nanos, int]] = []  # A heap; a queue's newest entry is its `armed`.

    # ── Views ─────────────────────────────────────────────────────────────────────────────────────────────

    def has_had(self, place: Place) -> bool:
        """Whether there is or was a message at this place, in a queue that exists. One of another shard may come."""
        queue = self.queues.get(place[0])
        return place[1] <= queue.last_sequence if queue else self.is_number_elsewhere(place[0])

    @property
    def queue_numbers(self) -> range:
        """The numbers of all queues that there ever were."""
        return range((self.last_queue - 1) % self.queue_step + 1, self.last_queue + 1, self.queue_step)

    def queue(self, name: str) -> Queue | None:
        number = self.numbers.get(name)
        return None if number is None else self.queues[number]

    def home(self, name: str) -> int:
        """The shard of a queue. Each shard has the broker's own."""
        return self.shard if name in OWN_QUEUES else self._home(name)

    def is_elsewhere(self, name: str) -> bool:
        return self.queue_step > 1 and self.home(name) != self.shard

    def is_number_elsewhere(self, number: int) -> bool:
        """Whether another shard gives its queues such numbers."""
        return (number - self.last_queue) % self.queue_step != 0

    def name_of(self, number: int) -> str:
        """The name of a queue, here or in another shard; empty if it is not known."""
        queue = self.queues.get(number)
        return queue.name if queue else self.couriers.origins.get(number, "")

    def numbers_of(self, name: str) -> frozenset[int]:
        """The number of a queue here, or all that queues with this name had in another shard, as far as known."""
        if name in self.numbers:
            return frozenset((self.numbers[name],))
        return frozenset(number for number, known in self.couriers.origins.items() if known == name)

    def is_channel(self, name: str) -> bool:
        """Whether it is the name of a channel, here or in another shard."""
        queue = self.queue(name)
        return bool(queue.settings.topics) if queue else name in self.channels_elsewhere

    @property
    def damaged(self) -> int:
        """How many messages are set aside because their bytes cannot be read."""
        return sum([self.queues[number].damaged for number in self.damaged_in if number in self.queues])

    def find(self, queue: int, sequence: int) -> tuple[Queue, int, Row] | None:
        """A message by the place in its id, even if it was moved."""
        if self.moved:
            queue, sequence = self.moved.get((queue, sequence), (queue, sequence))
        home = self.queues.get(queue)
        if home is None:
            return None
        row = home.rows.get(sequence)
        return None if row is None else (home, sequence, row)

    def due(self, now: Nanos) -> list[Queue]:
        """The queues whose deadline has come. Reads the heap and changes nothing."""
        due: dict[int, Queue] = {}
        pending = [0]
        while pending:
            index = pending.pop()
            if index < len(self._deadlines) and self._deadlines[index][0] <= now:
                time, number = self._deadlines[index]
                queue = self.queues.get(number)
                if queue and queue.armed == time:
                    due[number] = queue
                pending += [2 * index + 2, 2 * index + 1]
        return list(due.values())

    # ── Changes that several events share ─────────────────────────────────────────────────────────────────

    def message(self, event: MessageEvent) -> tuple[Queue, Row]:
        """The queue and the row that an event is about to change. The lifecycle must allow the event."""
        queue = self.queues[event.queue]
        row = queue.rows.get(event.sequence)
        assert row is not None, f"{event} is about a message that does not exist"
        assert (row.state, event.kind) in ALLOWED, f"{event} is not allowed in state {row.state}"
        return queue, row

    def remove(self, queue: Queue, sequence: int, row: Row) -> Place:
        """Remove a message, and return the place in its id."""
        queue.remove(sequence, row)
        origin = self.origins.pop((queue.number, sequence), None) if self.origins else None
        if origin is None:
            return queue.number, sequence
        del self.moved[origin]
        self.reasons.forget((queue.number, sequence))
        return origin

    def index_topics(self, queue: Queue, topics: int, first: int, count: int = 1) -> None:
        """Index messages with consecutive sequences by their topics."""
        self.topics.note(topics)
        queue.index_topics(topics, first, count)

    def arm(self, queue: Queue, time: Nanos) -> None:
        """Check the deadlines of a queue at this time or earlier."""
        if time < queue.armed:
            queue.armed = time
            heappush(self._deadlines, (time, queue.number))
            self.next_deadline = self._deadlines[0][0]

    def advance(self, now: Nanos) -> list[int]:
        """Make delayed messages ready whose time has come, which needs no event. Returns the queues that got some."""
        woken = []
        deadlines = self._deadlines
        due = []
        while deadlines and deadlines[0][0] <= now:
            due.append(heappop(deadlines))
        for time, number in due:
            queue = self.queues.get(number)
            if queue is None or queue.armed != time:
                continue  # The queue was removed, or has a newer entry.
            if queue.mature(now, TICK_EVENTS_MAX):
                woken.append(number)
            queue.armed = NEVER_NS
            self.arm(queue, queue.next_deadline())
        self.next_deadline = deadlines[0][0] if deadlines else NEVER_NS
        return woken
