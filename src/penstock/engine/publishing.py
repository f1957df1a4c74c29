"""One publish to topics, decided: each message is logged in its first queue, and enters the others by reference.

Messages that follow each other and go to the same places are decided together, so that a message for a hundred
channels is one event for all of them, and a hundred such messages are not many more. So are those that have not
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.history import content_digest
from penstock.engine.queue import Queue
from penstock.engine.routing import roots
from penstock.errors import Reason
from penstock.limits import NEVER_NS, PUBLISH_DELIVERIES_MAX, QUEUE_NUMBER_MAX, QUEUES_MAX, RUN_MESSAGES_MIN
from penstock.model import (
    CreateQueue,
    Decision,
    Event,
    Logged,
    LoggedRun,
    Nanos,
    NewMessage,
    Published,
    PublishTopics,
    QueueCreated,
    QueuedRun,
    QueueSettings,
    Refused,
    Unchanged,
    UnchangedRun,
)

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


Place = tuple[int, int]  # Queue number and sequence.
_Pending = tuple[int, NewMessage, bytes]  # Its index in the command, and the digest of its content if it has a key.
_Unchanged = tuple[int, NewMessage, Place]  # Its index in the command, and what it equals.
_UNDECIDED = Published(0, 0, "Q")


class _Targets:
    """Where messages go. The first queue logs them."""

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues
        self.others = queues[1:]
        self.numbers = [queue.number for queue in self.others]
        self.deduplicates = any(queue.settings.deduplication for queue in queues)
        times = {(queue.settings.delay_ns, queue.settings.retention_ns) for queue in self.others}
        self.times = times.pop() if len(times) == 1 else None  # Delay and retention, where all have the same.
        self.queue_names = tuple([queue.name for queue in queues if not queue.settings.topics])
        self.channel_names = tuple([queue.name for queue in queues if queue.settings.topics])

    @cached_property
    def not_detecting(self) -> _Targets:
        """Those that want also what has not changed."""
        return _Targets([queue for queue in self.queues if not _detects(queue.settings)])

    def not_having(self, digest: bytes, fresh: set[tuple[int, bytes]]) -> _Targets:
        """Those that do not have this content yet, if that matters to them; these first, so that a message is logged
        with its digest in one that remembers it. `fresh`: what this publish has added."""
        wanting = [
            queue
            for queue in self.queues
            if not queue.settings.deduplication
            or (digest not in queue.digests and (queue.number, digest) not in fresh)
        ]
        return _Targets(sorted(wanting, key=lambda queue: not queue.settings.deduplication))


def _detects(settings: QueueSettings) -> bool:
    return settings.detect_unchanged or bool(settings.topics)


class _RefusedError(Exception):
    def __init__(self, refused: Refused) -> None:
        self.refused = refused


class Publishing:
    def __init__(self, engine: Engine, command: PublishTopics, now: Nanos) -> None:
        self._engine = engine
        self._command = command
        self._now = now
        self._events: list[Event] = []
        self._answers = [_UNDECIDED] * len(command.messages)
        self._made: dict[str, Queue] = {}  # Queues, by this very publish.
        self._taken: dict[int, int] = {}  # Its last sequences, by queue.
        self._said: dict[tuple[str, bytes], tuple[bytes, int]] = {}  # Its versions: digest, and index of the message.
        self._new_keys = 0  # Of the Object History.
        self._fresh: set[tuple[int, bytes]] = set()  # Its contents, by queues that have each once.
        self._targets: dict[tuple[tuple[str, ...], str], _Targets] = {}
        self._together: list[_Pending] = []  # Not decided yet, and where they go.
        self._to: _Targets | None = None
        # Those are numbered after the others, as late as they can be: so both are runs.
        self._unchanged: dict[int, list[_Unchanged]] = {}  # By queue.
        self._unchanged_about: set[tuple[str, bytes]] = set()
        self._deliveries = 0

    def decide(self) -> Decision:
        try:
            for index, message in enumerate(self._command.messages):
                self._publish(index, message)
            self._publish_all()
            if self._said and (reason := self._engine.history.refusal(self._new_keys)):
                return Decision((), Refused(reason))
        except _RefusedError as error:
            return Decision((), error.refused)
        return Decision(self._events, self._answers)

    def _publish(self, index: int, message: NewMessage) -> None:
        targets = self._targets_of(message)
        content, is_version = b"", False
        if message.key and message.object:
            content = content_digest(message.body)
            place = self._place_of(message, content)
            is_version = place is None
            if place:
                queue, targets = targets.queues[0], targets.not_detecting
                if not targets.queues:
                    self._unchanged.setdefault(queue.number, []).append((index, message, place))
                    self._unchanged_about.add((message.object, message.key))
                    return
            elif (message.object, message.key) in self._unchanged_about:
                self._publish_all()  # The log tells the versions of a key in their order.
        is_logged = True
        if targets.deduplicates:
            is_logged = self._publish_once(index, message, content, targets)
        else:
            if targets is not self._to:
                self._publish_together()
                self._to = targets
            self._together.append((index, message, content))
        if is_version and is_logged:
            # Its place is known when it is decided: before the next message that asks for it.
            self._said[message.object, message.key] = content, index

    def _publish_all(self) -> None:
        self._publish_together()
        for number, unchanged in self._unchanged.items():
            self._answer_unchanged(number, unchanged)
        self._unchanged.clear()
        self._unchanged_about.clear()

    # ── Where to ────────────────────────────────────────────────────────────────────────────────────────────

    def _targets_of(self, message: NewMessage) -> _Targets:
        key = (message.topics, "" if message.topics else message.object)
        targets = self._targets.get(key)
        if targets is None:
            named = [self._queue(name) for name in roots(message.topics, message.object)]
            wanting = [self._engine.queues[number] for number in self._engine.routing.channels(message.topics)]
            queues = {queue.number: queue for queue in [*named, *wanting]}
            targets = self._targets[key] = _Targets(list(queues.values()))
        self._deliveries += len(targets.queues)
        if self._deliveries > PUBLISH_DELIVERIES_MAX:
            raise _RefusedError(Refused(Reason.TOO_MANY_DELIVERIES, f"{PUBLISH_DELIVERIES_MAX} at most"))
        return targets

    def _queue(self, name: str) -> Queue:
        """A queue that is there, or that is made for this."""
        queue = self._engine.queue(name) or self._made.get(name)
        return queue or self._make(name)

    def _make(self, name: str) -> Queue:
        decision = self._engine.decide(CreateQueue(name, self._command.create), self._now)
        if isinstance(decision.answer, Refused):
            raise _RefusedError(decision.answer)
        (created,) = decision.events
        assert isinstance(created, QueueCreated)
        number = created.queue + len(self._made)
        if number > QUEUE_NUMBER_MAX or len(self._engine.queues) + len(self._made) >= QUEUES_MAX:
            raise _RefusedError(Refused(Reason.TOO_MANY_QUEUES))
        self._events.append(msgspec.structs.replace(created, queue=number))
        queue = self._made[name] = Queue(number, name, self._command.create)
        return queue

    # ── What is known already ───────────────────────────────────────────────────────────────────────────────

    def _place_of(self, message: NewMessage, digest: bytes) -> Place | None:
        """Where the last version of its object and key is, if it has this very content."""
        said = self._said.get((message.object, message.key))
        if said:
            if said[0] != digest:
                return None
            if self._answers[said[1]] is _UNDECIDED:
                self._publish_together()
            answer = self._answers[said[1]]
            return answer.queue, answer.sequence
        known = self._engine.history.get(message.object, message.key)
        if known and known.digest == digest:
            return known.queue, known.sequence
        self._new_keys += known is None
        return None

    def _answer_unchanged(self, number: int, pending: list[_Unchanged]) -> None:
        first = self._take(number, len(pending))
        messages = [message for _, message, _ in pending]
        places = [place for _, _, place in pending]
        if len(pending) >= RUN_MESSAGES_MIN and alike(messages, keyed=True):
            columns = ([queue for queue, _ in places], [sequence for _, sequence in places])
            keys = [message.key for message in messages]
            facts = (self._now, number, first, messages[0].priority, *self._numbers(messages[0]))
            self._events.append(UnchangedRun(*facts, *columns, keys))
        else:
            for sequence, (message, place) in enumerate(zip(messages, places, strict=True), start=first):
                facts = (self._now, number, sequence, message.priority, *self._numbers(message))
                self._events.append(Unchanged(*facts, *place, message.key))
        for sequence, (index, _, _) in enumerate(pending, start=first):
            self._answers[index] = Published(number, sequence, "U")

    def _numbers(self, message: NewMessage) -> tuple[int, int, int, int]:
        return self._engine.numbers_of(message, self._now, self._events)

    def _publish_once(self, index: int, message: NewMessage, content: bytes, targets: _Targets) -> bool:
        """To where it is not yet, of those that have each content once. False if there is no such place."""
        self._publish_together()
        digest = sha256(message.body).digest()
        wanting = targets.not_having(digest, self._fresh)
        if wanting.queues:
            self._fresh.update([(queue.number, digest) for queue in wanting.queues])
            remembers = wanting.queues[0].settings.deduplication
            self._publish_to(wanting, [(index, message, content)], digest if remembers else b"")
            return True
        queue = targets.queues[0]
        twin = queue.digests.get(digest)
        place = (queue.number, twin) if twin else self._twin(digest)
        self._answers[index] = Published(*self._engine.origins.get(place, place), "Q")
        return False

    def _twin(self, digest: bytes) -> tuple[int, int]:
        """A message that this very publish has added to a queue that has each content once."""
        events = [event for event in self._events if isinstance(event, Logged) and event.digest == digest]
        return events[-1].queue, events[-1].sequence

    # ── Messages that go to the same places ─────────────────────────────────────────────────────────────────

    def _publish_together(self) -> None:
        if self._together and self._to:
            pending, self._together = self._together, []
            self._publish_to(self._to, pending, b"")

    def _publish_to(self, targets: _Targets, pending: list[_Pending], digest: bytes) -> None:
        queue, count = targets.queues[0], len(pending)
        first = self._take(queue.number, count)
        messages = [message for _, message, _ in pending]
        if count >= RUN_MESSAGES_MIN and alike(messages, keyed=True):
            logged = [self._log(messages[0], queue, first)]
            contents = [content for _, _, content in pending]
            keys = [message.key for message in messages]
            bodies = [message.body for message in messages]
            self._events.append(run_of(logged[0], bodies, keys, contents) if any(keys) else run_of(logged[0], bodies))
            logged *= count
        else:
            logged = [self._log(message, queue, first + at, digest) for at, message in enumerate(messages)]
            self._events += logged
        if targets.others:
            self._events.append(self._queued(targets, messages, logged, first))
        names = (targets.queue_names, targets.channel_names)
        for sequence, (index, _, _) in enumerate(pending, start=first):
            self._answers[index] = Published(queue.number, sequence, "Q", *names)

    def _log(self, message: NewMessage, queue: Queue, sequence: int, digest: bytes = b"") -> Logged:
        return self._engine.log(message, queue, sequence, digest, self._now, self._events)

    def _queued(self, targets: _Targets, messages: list[NewMessage], logged: list[Logged], first: int) -> QueuedRun:
        """The same messages in the other queues, queue by queue."""
        count, places = len(messages), len(targets.others)
        sequences: list[int] = []
        for queue in targets.others:
            start = self._take(queue.number, count)
            sequences += range(start, start + count)
        visible_at, expires_at = self._times(targets, messages)
        return QueuedRun(
            self._now,
            targets.numbers if count == 1 else [number for number in targets.numbers for _ in range(count)],
            sequences,
            [self._now] * (count * places),
            visible_at,
            expires_at,
            [message.priority for message in messages] * places,
            [each.content_type for each in logged] * places,
            [each.sender for each in logged] * places,
            [each.object for each in logged] * places,
            [each.topics for each in logged] * places,
            [targets.queues[0].number] * (count * places),
            list(range(first, first + count)) * places,
        )

    def _times(self, targets: _Targets, messages: list[NewMessage]) -> tuple[list[Nanos], list[Nanos]]:
        """When they become visible and when they expire, queue by queue."""
        now = self._now
        own = any(message.delay_ns is not None or message.expires_ns is not None for message in messages)
        if targets.times and not own:
            size = len(messages) * len(targets.others)
            delay_ns, retention_ns = targets.times
            return [min(now + delay_ns, NEVER_NS)] * size, [min(now + retention_ns, NEVER_NS)] * size
        visible_at, expires_at = [], []
        for queue in targets.others:
            for message in messages:
                delay_ns = queue.settings.delay_ns if message.delay_ns is None else message.delay_ns
                expires_ns = queue.settings.retention_ns if message.expires_ns is None else message.expires_ns
                visible_at.append(min(now + delay_ns, NEVER_NS))
                expires_at.append(min(now + expires_ns, NEVER_NS))
        return visible_at, expires_at

    def _take(self, number: int, count: int) -> int:
        """The first of so many sequences of a queue."""
        last = self._taken.get(number)
        if last is None:
            queue = self._engine.queues.get(number)
            last = queue.last_sequence if queue else 0  # Or it is made by this very publish.
        self._taken[number] = last + count
        return last + 1


def run_of(
    first: Logged, bodies: list[bytes], keys: Sequence[bytes] = (), contents: Sequence[bytes] = ()
) -> LoggedRun:
    """Messages alike in all but their bodies, and keys, as one event."""
    facts = (first.time, first.queue, first.sequence, first.visible_at, first.expires_at, first.priority)
    names = (first.content_type, first.sender, first.object, first.topics)
    return LoggedRun(*facts, *names, first.lease_ns, bodies, keys, contents)


def alike(messages: Sequence[NewMessage], *, keyed: bool = False) -> bool:
    """Do they differ in nothing but their bodies, or, if `keyed`, in nothing but these and their keys?"""
    first = messages[0]
    content_type, priority, sender = first.content_type, first.priority, first.sender
    delay_ns, expires_ns, lease_ns, topics, about = (
        first.delay_ns,
        first.expires_ns,
        first.lease_ns,
        first.topics,
        first.object,
    )
    for message in messages:
        if (
            message.content_type != content_type
            or message.headers
            or (message.key and not keyed)
            or message.priority != priority
            or message.sender != sender
            or message.delay_ns != delay_ns
            or message.expires_ns != expires_ns
            or message.lease_ns != lease_ns
            or message.topics != topics
            or message.object != about
        ):
            return False
    return True
