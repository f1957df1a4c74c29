"""Messages published to one queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from penstock.engine.decide.queues import create_queue
from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Decision, Receipt, Receipts, refuse
from penstock.model.commands import CreateQueue, NewMessage, Publish, PublishRun
from penstock.model.events import Event, Logged, LoggedRun
from penstock.model.values import Nanos


def publish(engine: EngineState, command: Publish, now: Nanos) -> Decision:
    queue = engine.queue(command.queue)
    if queue is None:
        return _publish_first(engine, command, now)
    return _publish_to(engine, queue, command, now)


def _publish_first(engine: EngineState, command: Publish, now: Nanos) -> Decision:
    """Publish to a queue that does not exist: create it, if the command says so."""
    if command.create is None:
        return refuse(Reason.NO_QUEUE, command.queue)
    created = create_queue(engine, CreateQueue(command.queue, command.create), now)
    if not created.events:
        return created
    queue = Queue(engine.last_queue + 1, command.queue, command.create)
    published = _publish_to(engine, queue, command, now)
    return Decision([*created.events, *published.events], published.answer)


def _publish_to(engine: EngineState, queue: Queue, command: Publish, now: Nanos) -> Decision:
    if queue.settings.deduplication:
        return _publish_once(engine, command, queue, now)
    if len(command.messages) >= RUN_MESSAGES_MIN and alike(command.messages):
        return _publish_run(engine, command, queue, now)
    events: list[Event] = []
    receipts: list[Receipt] = []
    sequence = queue.last_sequence
    for message in command.messages:
        sequence += 1
        events.append(log(engine, message, queue, sequence, b"", now, events))
        receipts.append(Receipt(queue.number, sequence, True))
    return Decision(events, receipts)


def _publish_run(engine: EngineState, command: Publish, queue: Queue, now: Nanos) -> Decision:
    """Many messages of one kind, in one event."""
    events: list[Event] = []
    first = log(engine, command.messages[0], queue, queue.last_sequence + 1, b"", now, events)
    events.append(run_of(first, [message.body for message in command.messages]))
    sequences = range(first.sequence, first.sequence + len(command.messages))
    return Decision(events, [Receipt(queue.number, sequence, True) for sequence in sequences])


def publish_run(engine: EngineState, command: PublishRun, now: Nanos) -> Decision:
    """As `_publish_run`, without a receipt for each message."""
    queue = engine.queue(command.queue)
    if queue is None or queue.settings.deduplication or len(command.bodies) < RUN_MESSAGES_MIN:
        return publish(engine, command.apart(), now)
    events: list[Event] = []
    first = log(engine, command.template, queue, queue.last_sequence + 1, b"", now, events)
    events.append(run_of(first, command.bodies))
    return Decision(events, Receipts(first.queue, first.sequence, len(command.bodies)))


def _publish_once(engine: EngineState, command: Publish, queue: Queue, now: Nanos) -> Decision:
    """Publish only what the queue does not hold yet, nor twice in this very command."""
    events: list[Event] = []
    receipts: list[Receipt] = []
    fresh: dict[bytes, int] = {}
    sequence = queue.last_sequence
    for message in command.messages:
        digest = sha256(message.body).digest()
        twin = queue.digests.get(digest) or fresh.get(digest)
        if twin is not None:
            place = (queue.number, twin)
            receipts.append(Receipt(*engine.origins.get(place, place), False))
        else:
            sequence += 1
            fresh[digest] = sequence
            events.append(log(engine, message, queue, sequence, digest, now, events))
            receipts.append(Receipt(queue.number, sequence, True))
    return Decision(events, receipts)


def log(
    engine: EngineState,
    message: NewMessage,
    queue: Queue,
    sequence: int,
    digest: bytes,
    now: Nanos,
    events: list[Event],
) -> Logged:
    settings = queue.settings
    delay_ns = settings.delay_ns if message.delay_ns is None else message.delay_ns
    expires_ns = settings.retention_ns if message.expires_ns is None else message.expires_ns
    return Logged(  # By position, in the order of the class: with names it takes twice as long.
        now,
        queue.number,
        sequence,
        min(now + delay_ns, NEVER_NS),
        min(now + expires_ns, NEVER_NS),
        message.priority,
        *numbers_of(engine, message, now, events),
        message.lease_ns or 0,
        message.key,
        message.headers,
        digest,
        message.body,
    )


def numbers_of(
    engine: EngineState, message: NewMessage, now: Nanos, events: list[Event]
) -> tuple[int, int, int, int]:
    """The numbers of its content type, sender, object and topics; new names are defined."""
    number = engine.names.number
    return (
        number(message.content_type, now, events) if message.content_type else 0,
        number(message.sender, now, events) if message.sender else 0,
        number(message.object, now, events) if message.object else 0,
        number("\n".join(message.topics), now, events) if message.topics else 0,
    )


def run_of(
    first: Logged,
    bodies: list[bytes],
    keys: Sequence[bytes] = (),
    contents: Sequence[bytes] = (),
    seen: Sequence[bytes | None] = (),
) -> LoggedRun:
    """Messages alike in all but their bodies, and keys, as one event."""
    facts = (first.time, first.queue, first.sequence, first.visible_at, first.expires_at, first.priority)
    names = (first.content_type, first.sender, first.object, first.topics)
    return LoggedRun(*facts, *names, first.lease_ns, bodies, keys, contents, seen)


def alike(messages: Sequence[NewMessage]) -> bool:
    """Do they differ in nothing but their bodies?"""
    return not messages[0].key and next(runs_of(messages)) == (0, len(messages))


def runs_of(messages: Sequence[NewMessage]) -> Iterator[tuple[int, int]]:
    """Where those begin and end that differ in nothing but their bodies and keys; of these all have one, or none has.
    A message with headers is alone."""
    start, before = 0, None
    for at, each in enumerate(messages):
        names = (each.content_type, each.sender, each.object, each.topics)
        kind = (names, each.priority, each.delay_ns, each.expires_ns, each.lease_ns, not each.key)
        if kind != before or each.headers or messages[start].headers:
            if at:
                yield start, at
            start, before = at, kind
    yield start, len(messages)
