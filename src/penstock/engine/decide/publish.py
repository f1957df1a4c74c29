"""Publish messages to one queue."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from penstock.engine.decide.administer import make_queue
from penstock.engine.decide.draft import Draft
from penstock.engine.history import content_digest
from penstock.engine.queue import Queue
from penstock.engine.runs import alike
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Receipt, Receipts, Refused
from penstock.model.commands import NewMessage, Publish, PublishRun
from penstock.model.events import Logged, LoggedRun
from penstock.model.shard_events import Versioned


def publish(draft: Draft, command: Publish) -> list[Receipt] | Refused:
    answer = _published(draft, command)
    if draft.state.queue_step > 1 and not isinstance(answer, Refused):
        _note_versions(draft, command, answer)
    return answer


def _note_versions(draft: Draft, command: Publish, receipts: Sequence[Receipt]) -> None:
    """In one of several shards: those that answer for the keys of new versions learn of them."""
    digests: dict[tuple[str, bytes], bytes] = {}  # Of those in this command.
    for message, receipt in zip(command.messages, receipts, strict=True):
        about, key = message.object, message.key
        if not (about and key and receipt.fresh):
            continue
        known, digest = draft.state.history.get(about, key), content_digest(message.body)
        if digest != digests.get((about, key), known.digest if known else None):
            draft.events.append(Versioned(draft.now, receipt.queue, receipt.sequence, 1))
        digests[about, key] = digest


def _published(draft: Draft, command: Publish) -> list[Receipt] | Refused:
    """Publish all messages of the command, or none. No other step of the decision adds to the queue, so its sequences
    continue from the last one."""
    queue = draft.queue(command.queue)
    if queue is None:
        if command.create is None:
            return Refused(Reason.NO_QUEUE, command.queue)
        queue = make_queue(draft, command.queue, command.create)
    if queue.settings.deduplication:
        return _publish_once(draft, command, queue)
    messages, events, number, sequence = command.messages, draft.events, queue.number, queue.last_sequence
    if len(messages) >= RUN_MESSAGES_MIN and alike(messages):
        _log_run(draft, messages[0], queue, [message.body for message in messages])
        return [Receipt(number, each, True) for each in range(sequence + 1, sequence + 1 + len(messages))]
    receipts: list[Receipt] = []
    for message in messages:
        sequence += 1
        events.append(log(draft, message, queue, sequence, b""))
        receipts.append(Receipt(number, sequence, True))
    return receipts


def publish_run(draft: Draft, command: PublishRun) -> Receipts | list[Receipt] | Refused:
    """Like `publish`, but without an object for each message and receipt."""
    queue = draft.queue(command.queue)
    if queue is None or queue.settings.deduplication or len(command.bodies) < RUN_MESSAGES_MIN:
        return publish(draft, command.apart())
    _log_run(draft, command.template, queue, command.bodies)
    return Receipts(queue.number, queue.last_sequence + 1, len(command.bodies))


def _log_run(draft: Draft, template: NewMessage, queue: Queue, bodies: list[bytes]) -> None:
    """Log messages that differ only in their bodies, in one event."""
    first = log(draft, template, queue, queue.last_sequence + 1, b"")
    draft.events.append(run_of(first, bodies))


def _publish_once(draft: Draft, command: Publish, queue: Queue) -> list[Receipt]:
    """Publish only content that the queue does not hold yet, and each content once."""
    receipts: list[Receipt] = []
    fresh: dict[bytes, int] = {}
    sequence = queue.last_sequence
    for message in command.messages:
        digest = sha256(message.body).digest()
        twin = queue.digests.get(digest) or fresh.get(digest)
        if twin is not None:
            place = (queue.number, twin)
            receipts.append(Receipt(*draft.state.origins.get(place, place), False))
        else:
            sequence += 1
            fresh[digest] = sequence
            draft.events.append(log(draft, message, queue, sequence, digest))
            receipts.append(Receipt(queue.number, sequence, True))
    return receipts


def log(draft: Draft, message: NewMessage, queue: Queue, sequence: int, digest: bytes) -> Logged:
    settings, now = queue.settings, draft.now
    visible_at = now + (settings.delay_ns if message.delay_ns is None else message.delay_ns)
    expires_at = now + (settings.retention_ns if message.expires_ns is None else message.expires_ns)
    return Logged(  # Arguments by position: keyword arguments take twice as long.
        now,
        queue.number,
        sequence,
        visible_at if visible_at < NEVER_NS else NEVER_NS,  # Faster than `min`, and done for every message.
        expires_at if expires_at < NEVER_NS else NEVER_NS,
        message.priority,
        *numbers_of(draft, message),
        message.lease_ns or 0,
        message.key,
        message.headers,
        digest,
        message.body,
    )


def numbers_of(draft: Draft, message: NewMessage) -> tuple[int, int, int, int]:
    """The numbers of a message's content type, sender, object and topics. New names are defined."""
    number = draft.number
    return (
        number(message.content_type) if message.content_type else 0,
        number(message.sender) if message.sender else 0,
        number(message.object) if message.object else 0,
        number("\n".join(message.topics)) if message.topics else 0,
    )


def run_of(
    first: Logged,
    bodies: list[bytes],
    keys: Sequence[bytes] = (),
    contents: Sequence[bytes] = (),
    seen: Sequence[bytes | None] = (),
) -> LoggedRun:
    """One event for messages that differ only in their bodies and keys."""
    facts = (first.time, first.queue, first.sequence, first.visible_at, first.expires_at, first.priority)
    names = (first.content_type, first.sender, first.object, first.topics)
    return LoggedRun(*facts, *names, first.lease_ns, bodies, keys, contents, seen)
