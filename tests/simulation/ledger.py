"""What was promised, and what the disk says: the two must never disagree.

The history is read from the disk itself, batch by batch as each is synced, by a few lines that know nothing of the
engine. The promises are the answers that clients got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.engine.engine import Engine
from penstock.engine.slots import STORED
from penstock.limits import NEVER_NS
from penstock.model.answers import Delivery, Drawn, Published, Receipt
from penstock.model.commands import Fetch
from penstock.model.events import (
    Arrived,
    CameFrom,
    Damaged,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    Event,
    Expired,
    Failed,
    Fetched,
    HandedOver,
    HandedToReceiver,
    Invalidated,
    Logged,
    MessageEvent,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    ResultStored,
    Retried,
    Sent,
    SentAsDead,
    Succeeded,
    Unchanged,
)
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import Learned
from penstock.model.values import Nanos
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.decode import events_of
from tests.simulation.asked import Place
from tests.simulation.everywhere import Everywhere, promise

RETRIES_MAX = 2


@dataclass
class Life:
    """A message as the disk tells it."""

    id: Place
    body: bytes
    expires_at: Nanos
    leased_until: Nanos = 0
    receives: int = 0
    kept: bool = False  # No worker will have it again.
    owed: dict[int, tuple[int, Nanos]] = field(default_factory=dict)  # By receiver: deliveries, when due again.
    results: set[int] = field(default_factory=set)
    batch: int = 0  # The position of the batch that holds its body.
    damaged: bool = False  # Set aside.
    sender: str = ""


class Ledger:
    """Of one shard."""

    def __init__(self, everywhere: Everywhere, answers_for: Callable[[str, bytes], bool] | None = None) -> None:
        """`answers_for`: the objects and keys that the shard answers for, if there are several."""
        self.everywhere = everywhere
        self.answers_for = answers_for
        self.asked = everywhere.asked
        self.bodies, self.leases_logged = everywhere.bodies, everywhere.leases_logged
        self.successes, self.finished, self.held = everywhere.successes, everywhere.finished, everywhere.held
        self.queue_names = everywhere.queue_names
        self.settings: dict[int, QueueSettings] = {}
        self.last_sequence: dict[int, int] = {}
        self.alive: dict[Place, Life] = {}  # By where it is now.
        self.acknowledged: set[Place] = set()
        self.names: dict[int, str] = {}
        self.forgotten = 0  # Names.
        self.cursors: dict[tuple[int, int], int] = {}  # By queue and receiver.
        self.deliveries_logged: set[tuple[str, str, int, bytes]] = set()  # Queue, receiver, sequence, body.
        self.results_logged: set[tuple[str, str, int]] = set()
        self.rotten: set[int] = set()  # Batches that were damaged on the disk, by their positions.
        self.once: set[bytes] = set()  # Bodies published with an idempotency key.
        self.newest: dict[tuple[str, bytes], Place] = {}  # The newest version, by object and key.
        self.pushed = 0  # Messages that a pusher settled with another outcome than success.
        self.moved: set[Place] = set()  # Where messages were moved to.
        self.unchanged: dict[Place, Place] = {}  # What messages that were not queued equal.
        self._batches: dict[Place, int] = {}  # The batch that holds the body of a message.
        self._session_places: dict[int, Place] = {}  # Of posts in sessions, by label.
        self._session_deliveries: set[tuple[int, bytes]] = set()  # Sequence and body.
        self._batches_read = 0

    # The history

    def read(self, durable: list[bytes]) -> None:
        promise(len(durable) >= self._batches_read, "a synced batch has vanished")
        for data in durable[self._batches_read :]:
            header = read_header(data)
            assert header is not None
            for event, _ in events_of(header, data[HEADER_BYTES:]):
                self._happened(event, header.base_position)
        self._batches_read = len(durable)

    def is_rotten(self, life: Life) -> bool:
        return bool(life.body) and life.batch in self.rotten

    def _happened(self, event: Event, batch: int) -> None:
        match event:
            case QueueCreated():
                self.settings[event.queue] = event.settings
                self.queue_names[event.queue] = event.name
                self.last_sequence[event.queue] = 0
            case QueueChanged():
                self.settings[event.queue] = event.settings
            case QueueRemoved():
                for place in [place for place in self.alive if place[0] == event.queue]:
                    del self.alive[place]
            case Arrived():
                self._logged(event, batch)
            case CameFrom():
                life = self.alive[event.queue, event.sequence]
                life.id = (event.to_queue, event.to_sequence)
                self.moved.add((event.queue, event.sequence))
                self.everywhere.come(life.id, life.body)
            case Sent():
                if isinstance(event, SentAsDead):
                    self._returned(event)
                    self._used_up(event)
                self.everywhere.leave(self.alive.pop((event.queue, event.sequence)).id)
            case Logged():
                place = self._logged(event, batch)
                self.everywhere.store(event.body)
                if event.body.startswith(b"once "):
                    promise(event.body not in self.once, f"stored twice with one idempotency key: {event.body!r}")
                    self.once.add(event.body)
                self._note_version(event, place)
            case Queued():
                place = self._next_place(event.queue, event.sequence)
                origin = event.to_queue, event.to_sequence
                body, sender = self.bodies[origin], self.names.get(event.sender, "")
                self.bodies[place], self._batches[place] = body, self._batches[origin]
                self.everywhere.enter(self.queue_names[event.queue], body)
                self.alive[place] = Life(place, body, event.expires_at, batch=self._batches[origin], sender=sender)
            case Unchanged():
                place = self._next_place(event.queue, event.sequence)
                equal = event.to_queue, event.to_sequence
                about = self.names[event.object], event.key
                newest = self.newest.get(about)
                is_newest = newest == equal or self.answers_for is not None
                promise(is_newest, f"unchanged, and not as the newest version {newest}: {event}")
                self.unchanged[place] = equal
                self.everywhere.versions.equals[place] = about, equal
            case Learned():
                self.everywhere.versions.learn((self.names[event.object], event.key), (event.queue, event.sequence))
            case Invalidated() | Declined():
                life = self._done_with(event)
                self.pushed += 1
                promise(life.id in self.asked.finish, f"settled, but nobody asked: {event}")
            case Fetched():
                life = self._free(event)
                life.leased_until, life.receives = event.visible_at, life.receives + 1
                self.leases_logged.add((life.id, event.visible_at))
                self.deliveries_logged.add(self._delivery(event, life))
            case HandedOver():
                promise(self.queue_names[event.queue] in self.asked.kick, f"handed over, but nobody asked: {event}")
                life = self._free(event)
                self.leases_logged.add((life.id, NEVER_NS))
                self.everywhere.pop(self.queue_names[event.queue], event.sequence, life.id)
                self.deliveries_logged.add(self._delivery(event, life))
                self._done_with(event)
            case Succeeded():
                life = self._done_with(event)
                by_result = (self.queue_names[life.id[0]], life.id[1]) in self.asked.result
                promise(by_result or life.id in self.asked.finish, f"finished, but nobody asked: {event}")
                self.successes.add(life.id)
            case Retried() | Rescheduled():  # The latter of a dead letter that its last consumer gives back.
                life = self._returned(event)
                life.leased_until = 0
            case Failed():
                self._returned(event)
                self._used_up(event)
                self._done_with(event)
            case DeadLettered():
                if event.fetched:
                    life = self._free(event)
                    self.leases_logged.add((life.id, event.visible_at))
                    self.deliveries_logged.add(self._delivery(event, life))
                    policy = self.settings[event.queue].redrive_policy
                    promise(policy is not None and event.receives >= policy.max_receives, f"moved early: {event}")
                else:
                    life = self._returned(event)
                    self._used_up(event)
                del self.alive[event.queue, event.sequence]
                life.leased_until = event.visible_at if event.fetched else 0
                life.expires_at, life.receives = event.expires_at, 0
                place = self._next_place(event.to_queue, event.to_sequence)
                self.moved.add(place)
                self.alive[place] = life
            case Expired():
                life = self.alive.pop((event.queue, event.sequence))
                promise(event.time >= life.expires_at, f"expired before its time: {event}")
            case Deleted():
                promise(self.queue_names[event.queue] in self.asked.purge, f"deleted, but nobody asked: {event}")
                del self.alive[event.queue, event.sequence]
            case Damaged():
                life = self.alive[event.queue, event.sequence]
                promise(self.is_rotten(life) and not life.damaged, f"set aside, but whole: {event}")
                life.damaged, life.leased_until = True, 0
                life.owed.clear()
            case NameDefined():
                self.names[event.number] = event.text
            case NameForgotten():
                promise(self.names.pop(event.number) == event.text, f"not what it stood for: {event}")
                self.forgotten += 1
            case Delivered() | HandedToReceiver():
                self._received(event)
            case ReceiverMoved():
                place = (event.queue, event.consumer)
                promise(event.sequence > self.cursors.get(place, 0), f"a cursor goes back: {event}")
                self.cursors[place] = event.sequence
            case ResultStored():
                life = self.alive[event.queue, event.sequence]
                promise(event.consumer not in life.results, f"a second result: {event}")
                life.results.add(event.consumer)
                life.owed.pop(event.consumer, None)
                names = self.queue_names[event.queue], self.names[event.consumer]
                self.results_logged.add((*names, event.sequence))
            case _:
                pass

    def _logged(self, event: Logged, batch: int) -> Place:
        place = self._next_place(event.queue, event.sequence)
        self.bodies[place], self._batches[place] = event.body, batch
        self.everywhere.enter(self.queue_names[event.queue], event.body)
        sender = self.names.get(event.sender, "")
        self.alive[place] = Life(place, event.body, event.expires_at, batch=batch, sender=sender)
        return place

    def _note_version(self, event: Logged, place: Place) -> None:
        if event.body.startswith(b"session "):
            self._session_places[int(event.body.split()[1])] = place
        if event.key:
            about = self.names[event.object], event.key
            versions, newest = self.everywhere.versions, self.newest.get(about)
            changed = newest is None or self.bodies[newest] != event.body or self.answers_for is not None
            promise(changed, f"queued, and as the newest version {newest}: {event}")
            self.newest[about] = place
            versions.log(about, place)
            if self.answers_for is None or self.answers_for(*about):
                versions.learn(about, place)

    def _done_with(self, event: HandedOver | Succeeded | Failed | Invalidated | Declined) -> Life:
        life = self.alive[event.queue, event.sequence]
        promise(not life.kept, f"done with twice: {event}")
        if self.settings[event.queue].keep == "all":
            promise(not life.damaged, f"damaged, and done with: {event}")
            life.kept = True
        else:
            del self.alive[event.queue, event.sequence]
        return life

    def _delivery(self, event: MessageEvent, life: Life) -> tuple[str, str, int, bytes]:
        names = self.queue_names[event.queue], self.names.get(event.consumer, "")
        self._session_deliveries.add((life.id[1], life.body))
        return (*names, event.sequence, life.body)

    def _received(self, event: Delivered | HandedToReceiver) -> None:
        """Once in order, and again only when it is due and there is no result."""
        life = self.alive[event.queue, event.sequence]
        place = (event.queue, event.consumer)
        promise(not life.damaged, f"set aside, and delivered: {event}")
        promise(life.expires_at > event.time, f"delivered after its end: {event}")
        if event.receives == 1:
            promise(event.sequence > self.cursors.get(place, 0), f"out of order, or twice: {event}")
            self.cursors[place] = event.sequence
        else:
            deliveries, due_at = life.owed.pop(event.consumer)
            promise(event.receives == deliveries + 1 <= 1 + RETRIES_MAX, f"delivered too often: {event}")
            promise(event.time >= due_at, f"delivered again too early: {event}")
        if isinstance(event, Delivered):
            promise(event.consumer not in life.results, f"a result is awaited that is there: {event}")
            life.owed[event.consumer] = (event.receives, event.visible_at)
        self.deliveries_logged.add(self._delivery(event, life))

    def _next_place(self, queue: int, sequence: int) -> Place:
        promise(sequence == self.last_sequence[queue] + 1, f"a gap in queue {queue} before {sequence}")
        self.last_sequence[queue] = sequence
        return queue, sequence

    def _free(self, event: Fetched | HandedOver | DeadLettered) -> Life:
        life = self.alive[event.queue, event.sequence]
        promise(not life.damaged, f"set aside, and delivered: {event}")
        promise(life.leased_until <= event.time, f"delivered to two consumers at once: {event}")
        promise(life.expires_at > event.time, f"delivered after its end: {event}")
        return life

    def _returned(self, event: Retried | Rescheduled | Failed | DeadLettered | SentAsDead) -> Life:
        life = self.alive[event.queue, event.sequence]
        ended = life.leased_until <= event.time or life.id in self.asked.release
        promise(ended, f"a lease ended before its time: {event}")
        return life

    def _used_up(self, event: Failed | DeadLettered | SentAsDead) -> None:
        settings = self.settings[event.queue]
        most = [settings.retries] if settings.retries else []
        if isinstance(event, SentAsDead) and settings.redrive_policy:  # It leaves when its last lease ends.
            most.append(settings.redrive_policy.max_receives)
        promise(any(each <= event.receives for each in most), f"given up before its retries were used up: {event}")

    # The promises

    def acknowledge(self, receipt: Receipt | Published, body: bytes) -> None:
        place = (receipt.queue, receipt.sequence)
        promise(place in self.bodies, f"acknowledged before it was on the disk: {place}")
        promise(self.bodies[place] == body, f"acknowledged, but something else is on the disk: {place}")
        self.acknowledged.add(place)

    def acknowledge_version(self, published: Published, body: bytes, asked_at: Nanos, now: Nanos) -> None:
        place = (published.queue, published.sequence)
        self.everywhere.versions.tell(place, asked_at, now)
        if published.state == "Q":
            self.acknowledge(published, body)
        else:
            equal = self.unchanged.get(place)
            is_there = equal is not None and self.bodies.get(equal) == body
            promise(is_there, f"answered as unchanged, and not so on the disk: {place}, {equal}")

    def held_in(self, queue: str) -> set[Place]:
        return {place for place in self.alive if self.queue_names[place[0]] == queue}

    def was_logged(self, place: Place) -> bool:
        return place in self.bodies or place in self.moved

    def was_delivered(self, sequence: int, body: bytes) -> bool:
        return (sequence, body) in self._session_deliveries

    def place_of(self, label: int) -> Place | None:
        return self._session_places.get(label)

    def finish(self, place: Place, now: Nanos) -> None:
        promise(place in self.successes, f"its finish was answered before it was on the disk: {place}")
        self.finished.setdefault(place, now)

    def deliver(self, delivery: Delivery, command: Fetch) -> None:
        assert command.lease_ns is not None
        place = (delivery.queue, delivery.sequence)
        promise(self.bodies.get(place) == delivery.body, f"delivered what is not on the disk: {place}")
        if not command.confirm:
            self.everywhere.got.add(place)
        lease = (place, delivery.visible_at if command.confirm else NEVER_NS)
        promise(lease in self.leases_logged, f"delivered before it was on the disk: {place}")
        since, until = delivery.visible_at - command.lease_ns, delivery.visible_at
        promise(since < self.finished.get(place, NEVER_NS), f"finished, and delivered again: {place}")
        held = self.held.setdefault(place, [])
        free = all(until <= start or end <= since for start, end in held) or place in self.asked.release
        promise(free, f"delivered to two consumers at once: {place}")
        held.append((since, until))

    def receive(self, receiver: str, drawn: Drawn) -> None:
        for sequence, body in zip(drawn.sequences, drawn.bodies, strict=True):
            logged = (drawn.queue, receiver, sequence, body) in self.deliveries_logged
            promise(logged, f"delivered before it was on the disk: {drawn.queue} {sequence} to {receiver}")
            if place := self.everywhere.popped_at.get((drawn.queue, sequence)):
                self.everywhere.got.add(place)

    def accept(self, receiver: str, queue: str, sequence: int) -> None:
        """Of a queue that keeps its messages."""
        stored = (queue, receiver, sequence) in self.results_logged
        promise(stored, f"a result was taken and is not on the disk: {queue} {sequence} of {receiver}")

    def check(self, engine: Engine) -> None:
        """When nothing is under way, the broker holds what the disk says, and everything acknowledged is there."""
        held = {
            (queue.number, int(sequence))
            for queue in engine.queues.values()
            for sequences, _ in queue.rows.tables()
            for sequence in sequences
        }
        promise(held == self.alive.keys(), f"the broker and the disk differ: {held ^ self.alive.keys()}")
        promise(self.acknowledged <= self.bodies.keys(), "acknowledged, and lost")
        for (number, sequence), life in self.alive.items():
            row = engine.queues[number].rows.get(sequence)
            sender = engine.names.texts.get(row.sender) if row else None
            promise(
                sender == life.sender, f"message {sequence} of queue {number} is from {sender}, not {life.sender}"
            )
        promise(
            engine.names.texts.items() - {(0, "")} == self.names.items(), "the broker and the disk differ in names"
        )
        for queue in engine.queues.values():
            stored = {
                (sequence, receiver)
                for places, slots in queue.groups.tables()
                for sequence, receiver in places[slots["state"] == STORED].tolist()
            }
            expected = {
                (place[1], receiver)
                for place, life in self.alive.items()
                if place[0] == queue.number
                for receiver in life.results
            }
            promise(stored == expected, f"the broker and the disk differ in results: {stored ^ expected}")
            for (number, receiver), cursor in self.cursors.items():
                if number == queue.number:
                    promise(queue.groups.cursor(receiver) == cursor, f"a cursor is elsewhere: {receiver}")
