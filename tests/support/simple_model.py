"""A message queue too simple to be wrong: plain lists, searched and sorted anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from penstock.errors import Reason
from penstock.limits import NEVER_NS, UNBEGUN_MAX
from penstock.model.answers import (
    Answer,
    Discarded,
    Done,
    LeasedUntil,
    Published,
    QueueDescription,
    Receipt,
    Redriven,
    Refused,
    ScheduledAt,
)
from penstock.model.commands import Criteria, Fetch, NewMessage
from penstock.model.settings import QueueSettings

Place = tuple[int, int]


@dataclass
class Message:
    id: Place  # Where it was published: what its id says for ever.
    sequence: int
    new: NewMessage
    created: int
    expires_at: int
    state: Literal["ready", "delayed", "leased", "kept", "damaged"]
    visible_at: int
    hashed: bool  # Its content is known to the queue.
    receives: int = 0
    consumer: str = ""
    is_held: bool = False  # A dead letter that its last consumer has, named or not.
    ahead: bool = False  # Leased ahead of its use,
    unbegun: bool = False  # and not begun.
    times_unbegun: int = 0  # Leases in a row that have ended like that.
    slots: dict[str, Slot] = field(default_factory=dict)  # By consumer, where several have to confirm.
    reason: str = ""  # Why it is a dead letter.


@dataclass
class Slot:
    state: Literal["awaited", "stored", "declined", "held"]
    deliveries: int = 0
    due_at: int = 0


@dataclass
class Queue:
    number: int
    name: str
    settings: QueueSettings
    last_sequence: int = 0
    messages: list[Message] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)  # By consumer, where several have to confirm.

    def count(self, state: str) -> int:
        return sum(message.state == state for message in self.messages)

    def done_with(self, message: Message, complete: bool = False) -> None:
        """No worker will have it again."""
        message.is_held = False
        if message.state == "damaged":
            self.messages.remove(message)
        elif self.settings.keep == "all" or (self.settings.confirmations > 1 and not complete):
            message.state = "kept"
        else:
            self.messages.remove(message)

    def completes(self, message: Message) -> bool:
        """Does one more confirmation complete it?"""
        needed = self.settings.confirmations
        confirmed = sum(slot.state == "stored" for slot in message.slots.values()) + 1
        return needed > 1 and (confirmed == needed if self.settings.keep == "all" else confirmed >= needed)

    def confirm(self, message: Message) -> None:
        """By a worker."""
        complete = self.settings.confirmations <= 1 or self.completes(message)
        if not complete:
            message.slots[""] = Slot("stored")
        self.done_with(message, complete)

    def is_done_with(self, message: Message) -> bool:
        return message.state == "kept" or (message.state == "damaged" and self.settings.keeps)

    @property
    def detects(self) -> bool:
        return self.settings.detect_unchanged or bool(self.settings.topics)


class Model:
    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self.last_queue = 0
        self.versions: dict[
            tuple[str, bytes], tuple[bytes, Place]
        ] = {}  # The last one: its content, and where it is.

    # Queues

    def queue(self, name: str) -> Queue | None:
        return next((queue for queue in self.queues if queue.name == name), None)

    def create(self, name: str, settings: QueueSettings) -> Answer | None:
        if self.queue(name):
            return Refused(Reason.QUEUE_EXISTS, name)
        if refused := self._check(settings):
            return refused
        self.last_queue += 1
        self.queues.append(Queue(self.last_queue, name, settings))
        return None

    def update(self, name: str, settings: QueueSettings) -> Answer | None:
        queue = self.queue(name)
        if queue is None:
            return Refused(Reason.NO_QUEUE, name)
        if refused := self._check(settings):
            return refused
        spoken = any(message.slots or message.state == "kept" for message in queue.messages)
        if settings.confirmations < queue.settings.confirmations and spoken:
            return Refused(Reason.CONFIRMATIONS_COUNT, name)
        queue.settings = settings
        return None

    def _check(self, settings: QueueSettings) -> Refused | None:
        policy = settings.redrive_policy
        if policy and not self.queue(policy.dead_letter_queue):
            return Refused(Reason.NO_DEAD_LETTER_QUEUE, policy.dead_letter_queue)
        if settings.confirmations > 1 and not settings.confirm:
            return Refused(Reason.NOT_TOGETHER, f"confirm=false and confirmations={settings.confirmations}")
        return None

    def delete(self, name: str) -> Answer | None:
        queue = self.queue(name)
        if queue is None:
            return Refused(Reason.NO_QUEUE, name)
        self.queues.remove(queue)
        for other in self.queues:
            policy = other.settings.redrive_policy
            if policy and policy.dead_letter_queue == name:
                kept = {key: getattr(other.settings, key) for key in QueueSettings.__struct_fields__}
                other.settings = QueueSettings(**kept | {"redrive_policy": None})
        return None

    def describe(self, queue: Queue, now: int) -> QueueDescription:
        return QueueDescription(
            name=queue.name,
            number=queue.number,
            settings=queue.settings,
            messages=len(queue.messages),
            ready=queue.count("ready"),
            leased=queue.count("leased"),
            delayed=queue.count("delayed"),
            oldest_age_ns=now - min(queue.messages, key=lambda message: message.sequence).created
            if queue.messages
            else 0,
            last_sequence=queue.last_sequence,
            kept=queue.count("kept"),
            damaged=queue.count("damaged"),
        )

    # Messages

    def publish(self, name: str, messages: Sequence[NewMessage], now: int) -> Answer:
        queue = self.queue(name)
        if queue is None:
            return Refused(Reason.NO_QUEUE, name)
        receipts = []
        for new in messages:
            twin = self._twin(queue, new.body) if queue.settings.deduplication else None
            if twin:
                receipts.append(Receipt(*twin.id, False))
                continue
            self._add(queue, new, now, hashed=queue.settings.deduplication)
            self._note(new, (queue.number, queue.last_sequence))
            receipts.append(Receipt(queue.number, queue.last_sequence, True))
        return receipts

    def purge(self, name: str, through: int | None) -> int | Refused:
        """How many messages were deleted, up to this sequence."""
        queue = self.queue(name)
        if queue is None:
            return Refused(Reason.NO_QUEUE, name)
        left = [message for message in queue.messages if through is not None and message.sequence > through]
        count, queue.messages = len(queue.messages) - len(left), left
        return count

    def publish_topics(
        self, messages: Sequence[NewMessage], create: QueueSettings, now: int, alone: str = ""
    ) -> tuple[list[Published] | Refused, list[Place]]:
        """The answers, and every place that was filled. `alone`: the queue to publish to, whatever the topics."""
        for name in [alone] if alone else [name for new in messages for name in self._roots(new)]:
            if (there := self.queue(name)) and there.settings.topics:
                return Refused(Reason.IS_CHANNEL, name), []
        if alone and self.queue(alone) is None:
            return Refused(Reason.NO_QUEUE, alone), []
        answers: list[Published] = []
        places = []
        unchanged: list[tuple[int, NewMessage, Queue]] = []  # Numbered at the end, or when one of them changes.

        def number_unchanged() -> None:
            for index, _, queue in unchanged:
                queue.last_sequence += 1
                answers[index] = Published(queue.number, queue.last_sequence, "U")
            unchanged.clear()

        for new in messages:
            named = [self._made(name, create) for name in ([alone] if alone else self._roots(new))]
            wanting = [
                queue
                for queue in self.queues
                if any(fnmatchcase(topic, pattern) for topic in new.topics for pattern in queue.settings.topics)
                and not alone
            ]
            targets = [*named, *(queue for queue in wanting if queue not in named)]
            known = self.versions.get((new.object, new.key)) if new.object and new.key else None
            if known and known[0] == new.body:
                first, targets = targets[0], [queue for queue in targets if not queue.detects]
                if not targets:
                    unchanged.append((len(answers), new, first))
                    answers.append(Published(first.number, 0, "U"))
                    continue
            elif any((new.object, new.key) == (same.object, same.key) for _, same, _ in unchanged):
                number_unchanged()
            twins = [self._twin(queue, new.body) for queue in targets if queue.settings.deduplication]
            if len(twins) == len(targets) and all(twins):
                assert twins[0]
                answers.append(Published(*twins[0].id, "Q"))
                continue
            if twins:
                targets = [
                    queue for queue in targets if not (queue.settings.deduplication and self._twin(queue, new.body))
                ]
            named = targets  # In this order, whichever logs it.
            if twins:
                targets = sorted(targets, key=lambda queue: not queue.settings.deduplication)
            for queue in targets:
                self._add(queue, new, now, hashed=queue.settings.deduplication)
                places.append((queue.number, queue.last_sequence))
            first = targets[0]
            self._note(new, (first.number, first.last_sequence))
            queues = tuple(queue.name for queue in named if not queue.settings.topics)
            channels = tuple(sorted(queue.name for queue in named if queue.settings.topics))
            answers.append(Published(first.number, first.last_sequence, "Q", queues, channels))
        number_unchanged()
        return answers, places

    def _roots(self, new: NewMessage) -> list[str]:
        if not new.topics:
            return [new.object or "default"]
        return list(dict.fromkeys(topic.split(".")[0] for topic in new.topics))

    def _made(self, name: str, settings: QueueSettings) -> Queue:
        if self.queue(name) is None:
            assert self.create(name, settings) is None
        queue = self.queue(name)
        assert queue
        return queue

    def _note(self, new: NewMessage, place: Place) -> None:
        about = (new.object, new.key)
        if new.object and new.key and (about not in self.versions or self.versions[about][0] != new.body):
            self.versions[about] = (new.body, place)

    def _add(self, queue: Queue, new: NewMessage, now: int, *, hashed: bool) -> None:
        queue.last_sequence += 1
        delay = queue.settings.delay_ns if new.delay_ns is None else new.delay_ns
        lifetime = queue.settings.retention_ns if new.expires_ns is None else new.expires_ns
        queue.messages.append(
            Message(
                id=(queue.number, queue.last_sequence),
                sequence=queue.last_sequence,
                new=new,
                created=now,
                expires_at=NEVER_NS if lifetime == NEVER_NS else now + lifetime,
                state="delayed" if delay else "ready",
                visible_at=now + delay,
                hashed=hashed,
            )
        )

    def _twin(self, queue: Queue, body: bytes) -> Message | None:
        return next((each for each in queue.messages if each.hashed and each.new.body == body), None)

    def fetch(self, command: Fetch, now: int) -> Refused | list[Message]:
        """The messages as they are delivered."""
        queue = self.queue(command.queue)
        if queue is None:
            return Refused(Reason.NO_QUEUE, command.queue)
        ready = [each for each in queue.messages if each.state == "ready" and each.expires_at > now]
        ready.sort(key=lambda each: (-each.new.priority, each.visible_at, each.sequence))
        lease_ns = queue.settings.visibility_ns if command.lease_ns is None else command.lease_ns
        delivered = []
        for message in ready[: command.count]:
            visible_at = message.visible_at
            message.receives += 1
            message.visible_at = now + lease_ns
            message.state = "leased"
            message.consumer = command.consumer
            delivered.append(replace(message))
            policy = queue.settings.redrive_policy if queue.settings.confirmations <= 1 else None
            message.ahead = message.unbegun = command.ahead
            message.times_unbegun = message.times_unbegun if command.ahead else 0
            if not (command.confirm and queue.settings.confirm):
                message.visible_at = visible_at
                queue.done_with(message)
            elif policy and message.receives >= policy.max_receives and not command.ahead:
                self._move(queue, message, now, now + lease_ns, command.consumer)
        return delivered

    def find(self, place: Place) -> tuple[Queue, Message] | None:
        for queue in self.queues:
            for message in queue.messages:
                if place in (message.id, (queue.number, message.sequence)):
                    return queue, message
        return None

    def finish(self, place: Place, consumer: str | None) -> Answer:
        found = self.find(place)
        if found is None or found[0].is_done_with(found[1]):
            return Refused(Reason.NO_MESSAGE)
        if not self._has(found[1], consumer):
            return Refused(Reason.LEASE_GONE)
        found[0].confirm(found[1])
        return Done()

    def settle_one(
        self,
        place: Place,
        outcome: str,
        consumer: str | None,
        delivery: int | None,
        delay_ns: int,
        now: int,
        reason: str = "",
        *,
        begun: bool = True,
    ) -> Answer:
        found = self.find(place)
        if found is None:
            home = next((queue for queue in self.queues if queue.number == place[0]), None)
            was_there = home is not None and place[1] <= home.last_sequence
            return Discarded() if was_there else Refused(Reason.NO_MESSAGE)
        queue, message = found
        if consumer and queue.settings.confirmations > 1 and consumer in queue.cursors:
            return self._settle_alone(queue, message, outcome, consumer, delivery, delay_ns, now, reason)
        if queue.is_done_with(message):
            return Discarded()
        if not self._has(message, consumer) or not self._runs(place, message, delivery):
            return Refused(Reason.LEASE_GONE)
        if outcome in ("retry", "failed") and not self._is_held(message):
            return Refused(Reason.LEASE_GONE)
        if outcome == "retry" and message.unbegun and not begun:
            message.receives -= 1
            self._be_ready(message, now, delay_ns)
        elif outcome == "retry":
            self._return(queue, message, now, delay_ns, reason)
        elif outcome == "success":
            queue.confirm(message)
        elif outcome == "failed" and message.state == "delayed":  # A dead letter already.
            self._return(queue, message, now, 0, reason)
        elif outcome == "failed" and queue.settings.redrive_policy:
            self._move(queue, message, now, now)
            message.reason = reason
        elif outcome == "failed":
            queue.done_with(message, complete=True)
        else:
            queue.done_with(message, queue.settings.confirmations <= 1)
        return Done()

    def _settle_alone(
        self,
        queue: Queue,
        message: Message,
        outcome: str,
        consumer: str,
        delivery: int | None,
        delay_ns: int,
        now: int,
        reason: str,
    ) -> Answer:
        slot = message.slots.get(consumer)
        if slot and slot.state in ("stored", "declined"):
            return Discarded()
        if slot is None or slot.state != "held" or delivery not in (None, slot.deliveries):
            return Refused(Reason.LEASE_GONE)
        if message.expires_at <= now:
            return Refused(Reason.LEASE_GONE)
        if outcome == "success":
            complete = queue.completes(message)
            message.slots[consumer] = Slot("stored")
            if complete:
                queue.done_with(message, complete)
        elif outcome == "retry":
            self._return_alone(queue, message, consumer, now, delay_ns, reason)
        else:
            message.slots[consumer] = Slot("declined")
        return Done()

    def extend(
        self,
        place: Place,
        lease_ns: int,
        consumer: str | None,
        delivery: int | None,
        now: int,
        *,
        begun: bool = False,
    ) -> Answer:
        found = self.find(place)
        if found is None:
            return Refused(Reason.NO_MESSAGE)
        message = found[1]
        slot = message.slots.get(consumer) if consumer else None
        if slot and slot.state == "held" and delivery in (None, slot.deliveries):
            slot.due_at = now + lease_ns
            return LeasedUntil(slot.due_at)
        if not self._runs(place, message, delivery):
            return Refused(Reason.LEASE_GONE)
        if not self._is_held(message) or not self._has(message, consumer):
            return Refused(Reason.LEASE_GONE)
        message.visible_at = now + lease_ns
        if begun:
            message.unbegun, message.times_unbegun = False, 0
        return LeasedUntil(message.visible_at)

    def receive(self, name: str, consumer: str, count: int, lease_ns: int, now: int) -> list[tuple[Message, int]]:
        """Of a queue that asks for several confirmations: each with how often it was delivered to this consumer."""
        queue = self.queue(name)
        assert queue
        cursor = queue.cursors.get(consumer, 0)
        chosen: list[tuple[Message, int]] = []
        for message in sorted(queue.messages, key=lambda each: each.sequence):
            if message.sequence > cursor and message.expires_at > now and message.state != "damaged":
                if message.state == "delayed" and not message.receives and message.visible_at > now:
                    break
                chosen.append((message, 1))
        if not chosen:
            due = [
                message
                for message in queue.messages
                if consumer in message.slots
                and message.slots[consumer].state == "awaited"
                and message.slots[consumer].due_at <= now
                and message.expires_at > now
            ]
            chosen = [
                (message, message.slots[consumer].deliveries + 1)
                for message in sorted(due, key=lambda each: each.sequence)
            ]
        chosen = chosen[:count]
        for message, deliveries in chosen:
            queue.cursors[consumer] = max(queue.cursors.get(consumer, 0), message.sequence)
            message.slots[consumer] = Slot("held", deliveries, now + lease_ns)
        return chosen

    def release(self, place: Place, consumer: str | None, delay_ns: int, now: int) -> Answer:
        found = self.find(place)
        if found is None or found[1].state == "kept":
            return Refused(Reason.NO_MESSAGE)
        if not self._is_held(found[1]) or not self._has(found[1], consumer):
            return Refused(Reason.LEASE_GONE)
        self._return(*found, now, delay_ns)
        return Done()

    def _has(self, message: Message, consumer: str | None) -> bool:
        if consumer is None:
            return True
        has = self._is_held(message) or (message.state == "damaged" and message.consumer != "")
        return has and message.consumer == consumer

    def _runs(self, place: Place, message: Message, delivery: int | None) -> bool:
        """Is it by this delivery that a worker has the message, if one is named?"""
        if delivery is None:
            return True
        if message.state in ("leased", "damaged"):
            return message.receives == delivery
        home = next((queue for queue in self.queues if queue.number == place[0]), None)
        policy = home.settings.redrive_policy if home else None
        return self._is_held(message) and policy is not None and delivery >= policy.max_receives

    def _is_held(self, message: Message) -> bool:
        """Also as a dead letter."""
        return message.state == "leased" or message.is_held

    # Damage

    def set_aside(self, place: Place) -> None:
        found = self.find(place)
        assert found
        message = found[1]
        if message.state == "kept":
            message.visible_at = NEVER_NS
        message.state, message.hashed, message.is_held = "damaged", False, False
        message.slots = {name: slot for name, slot in message.slots.items() if slot.state not in ("awaited", "held")}

    def restore(self, place: Place, now: int) -> None:
        found = self.find(place)
        if found is None or found[1].state != "damaged":
            return
        message = found[1]
        if message.visible_at == NEVER_NS:
            message.state = "kept"
        else:
            message.state = "delayed" if message.visible_at > now else "ready"
            message.visible_at, message.consumer = max(message.visible_at, now), ""

    # What operators do

    def delete_message(self, place: Place) -> Answer:
        found = self.find(place)
        if found is None:
            return Refused(Reason.NO_MESSAGE)
        if self._is_held(found[1]):
            return Refused(Reason.LEASED)
        found[0].messages.remove(found[1])
        return Done()

    def cancel(self, place: Place) -> Answer:
        found = self._delayed(place)
        if isinstance(found, Refused):
            return found
        found[0].messages.remove(found[1])
        return Done()

    def reschedule(self, place: Place, visible_at: int, now: int) -> Answer:
        found = self._delayed(place)
        if isinstance(found, Refused):
            return found
        found[1].visible_at = max(visible_at, now)
        found[1].state = "delayed" if visible_at > now else "ready"
        return ScheduledAt(found[1].visible_at)

    def _delayed(self, place: Place) -> tuple[Queue, Message] | Refused:
        found = self.find(place)
        if found is None:
            return Refused(Reason.NO_MESSAGE)
        return Refused(Reason.NOT_DELAYED) if found[1].state != "delayed" or found[1].is_held else found

    def redrive(self, name: str, sequences: Sequence[int], to: str, now: int) -> Answer:
        queue, target = self.queue(name), self.queue(to)
        if queue is None or (to and target is None):
            return Refused(Reason.NO_QUEUE, to if queue else name)
        moved = 0
        for sequence in sequences:
            message = next((each for each in queue.messages if each.sequence == sequence), None)
            if message is None or message.state not in ("ready", "delayed"):
                continue
            if message.is_held:
                continue  # Its last consumer still has it.
            there = target or next((each for each in self.queues if each.number == message.id[0]), None)
            if there is None or there is queue:
                continue
            self._take_to(queue, message, there, now, max(now, message.visible_at))
            moved += 1
        return Redriven(moved, len(sequences) - moved)

    def search(self, criteria: Criteria) -> list[tuple[Place, Place]]:
        """Where what is meant is, and the place in its id."""
        wanted = criteria.topic
        return [
            ((queue.number, message.sequence), message.id)
            for queue in self.queues
            for message in queue.messages
            if criteria.queue in ("", queue.name)
            and (not criteria.states or message.state in criteria.states)
            and criteria.object in ("", message.new.object)
            and (not criteria.reason or (message.reason and fnmatchcase(message.reason, criteria.reason)))
            and (not wanted or any(fnmatchcase(topic, wanted) for topic in message.new.topics))
        ]

    # Time

    def settle(self, now: int, first: Sequence[int]) -> None:
        """Which of several queues goes first is the engine's choice: these."""
        for queue in sorted(
            self.queues, key=lambda queue: list(first).index(queue.number) if queue.number in first else 1000
        ):
            queue.messages = [each for each in queue.messages if each.expires_at > now]
            leases = [each for each in queue.messages if each.state == "leased" and each.visible_at <= now]
            for message in sorted(leases, key=lambda each: (each.visible_at, each.sequence)):
                self._end_lease(queue, message, now)
            held = [
                (slot.due_at, each.sequence, consumer, each)
                for each in queue.messages
                for consumer, slot in each.slots.items()
                if slot.state == "held" and slot.due_at <= now
            ]
            for _, _, consumer, message in sorted(held, key=lambda each: each[:3]):
                if message in queue.messages and consumer in message.slots:  # Else it has failed with another.
                    self._return_alone(queue, message, consumer, now, 0)
        for queue in self.queues:
            for message in queue.messages:
                if message.state == "delayed" and message.visible_at <= now:
                    message.state, message.consumer, message.is_held = "ready", "", False

    def _end_lease(self, queue: Queue, message: Message, now: int) -> None:
        if not message.unbegun:
            self._return(queue, message, now, 0)
        elif message.times_unbegun < UNBEGUN_MAX:
            times = message.times_unbegun + 1
            message.receives -= 1
            self._be_ready(message, now, 0)
            message.times_unbegun = times
        elif queue.settings.redrive_policy:
            self._move(queue, message, now, now)
            message.reason = "never begun"
        else:
            self._return(queue, message, now, 0, "never begun")

    def _be_ready(self, message: Message, now: int, delay_ns: int) -> None:
        message.state = "delayed" if delay_ns else "ready"
        message.visible_at, message.consumer, message.is_held = now + delay_ns, "", False
        message.ahead, message.unbegun, message.times_unbegun = False, False, 0

    def _return(self, queue: Queue, message: Message, now: int, delay_ns: int, reason: str = "") -> None:
        if message.state == "delayed" and reason:  # It became a dead letter when it was delivered.
            message.reason = reason
        if not self._fails(queue, message, message.receives, now, reason):
            self._be_ready(message, now, delay_ns)

    def _return_alone(
        self, queue: Queue, message: Message, consumer: str, now: int, delay_ns: int, reason: str = ""
    ) -> None:
        """Of one of several consumers."""
        slot = message.slots[consumer]
        if self._fails(queue, message, slot.deliveries, now, reason):
            if message.slots:  # Else it has begun anew in another queue.
                message.slots[consumer] = Slot("declined")
        else:
            message.slots[consumer] = Slot("awaited", slot.deliveries, now + delay_ns)

    def _fails(self, queue: Queue, message: Message, deliveries: int, now: int, reason: str) -> bool:
        """Was this the last delivery? Then the message goes, for all who are to confirm it."""
        policy = queue.settings.redrive_policy
        limits = [queue.settings.retries]
        if policy and (queue.settings.confirmations > 1 or message.ahead):
            limits.append(policy.max_receives)
        if not any(limit and deliveries >= limit for limit in limits):
            return False
        if policy:
            self._move(queue, message, now, now)
            message.reason = reason
        else:
            queue.done_with(message, complete=True)
        return True

    def _move(self, queue: Queue, message: Message, now: int, visible_at: int, consumer: str | None = None) -> None:
        """`consumer`: who holds it until it becomes visible, if somebody does."""
        assert queue.settings.redrive_policy
        target = self.queue(queue.settings.redrive_policy.dead_letter_queue)
        assert target
        self._take_to(queue, message, target, now, visible_at, consumer)

    def _take_to(
        self, queue: Queue, message: Message, target: Queue, now: int, visible_at: int, consumer: str | None = None
    ) -> None:
        queue.messages.remove(message)
        target.last_sequence += 1
        known = message.hashed and target.settings.deduplication
        message.hashed = known and self._twin(target, message.new.body) is None
        message.sequence = target.last_sequence
        message.receives, message.consumer, message.slots = 0, consumer or "", {}
        message.reason = ""
        message.ahead, message.unbegun, message.times_unbegun = False, False, 0
        message.visible_at = visible_at
        message.state = "delayed" if visible_at > now else "ready"
        message.is_held = consumer is not None and visible_at > now
        lifetime = target.settings.retention_ns
        message.expires_at = NEVER_NS if lifetime == NEVER_NS else now + lifetime
        target.messages.append(message)
