"""Messages of other shards: put them into their queues, each once, and list what left for others."""

from __future__ import annotations

from hashlib import sha256
from itertools import groupby
from operator import attrgetter

from msgspec.structs import replace

from penstock.engine.decide.administer import make_queue
from penstock.engine.decide.draft import Draft
from penstock.engine.decide.promises import keep_promise
from penstock.engine.queue import Queue
from penstock.engine.routing import roots
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Discarded, Done, Location, OwedList, Parcel
from penstock.model.courier_commands import Admit, ListOwed, Locate, NoteDecided, NoteTaken
from penstock.model.events import Arrived, CameFrom, CopiedFrom, Queued
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import (
    IS_UNCHANGED,
    OWN_DELAY,
    OWN_LIFETIME,
    Collected,
    Decided,
    Learned,
    LearnedRun,
    Taken,
)
from penstock.model.values import LearnedVersion, Nanos

_DONE = Done()


def admit(draft: Draft, command: Admit) -> Done | Discarded:
    """Log the messages and the cursor together. An answer that came twice, or that was made for other channels, is
    discarded: the courier asks again."""
    state = draft.state
    if state.couriers.cursor(command.shard) != command.at or state.routing.changes != command.channels:
        return Discarded()
    admission = _Admission(draft, command.create, command.ahead)
    for parcel in command.parcels:
        if parcel.wish:
            keep_promise(draft, parcel.wish, parcel.target, parcel.time + command.ahead)
        elif parcel.target:
            admission.move(parcel)
        else:
            admission.copy(parcel)
    for (about, queue, changed), some in groupby(command.versions, _ORIGIN):
        _learn(draft, draft.number(about), queue, changed, list(some))
    draft.events.append(Collected(draft.now, command.shard, *command.to))
    return _DONE


_ORIGIN = attrgetter("object", "queue", "changed")


def _learn(draft: Draft, about: int, queue: int, changed: Nanos, versions: list[LearnedVersion]) -> None:
    if len(versions) >= RUN_MESSAGES_MIN:
        sequences, keys = [each.sequence for each in versions], [each.key for each in versions]
        facts = (queue, sequences, changed, about, keys, [each.digest for each in versions])
        draft.events.append(LearnedRun(draft.now, *facts))
        return
    for each in versions:
        draft.events.append(Learned(draft.now, queue, each.sequence, changed, about, each.key, each.digest))


class _Admission:
    def __init__(self, draft: Draft, create: QueueSettings, ahead: Nanos) -> None:
        self._draft = draft
        self._create = create
        self._ahead = ahead  # Of the clock that times of parcels are by.
        self._fresh: set[tuple[int, bytes]] = set()  # New contents of queues that deduplicate.

    def move(self, parcel: Parcel) -> None:
        """A message that was moved keeps its id. Its target is created if it was removed, so that nothing is lost."""
        queue = self._queue(parcel.target)
        expires_at = _later(self._draft.now, queue.settings.retention_ns)
        arrived = self._arrive(parcel, queue, self._here(parcel.visible_at), expires_at)
        texts = (parcel.origin.encode(), parcel.reason.encode())
        self._draft.events.append(CameFrom(*_facts_of(arrived), *parcel.place, *texts))

    def copy(self, parcel: Parcel) -> None:
        """A copy for all queues here that want it: logged in the first, and in the others by reference."""
        digest = sha256(parcel.body).digest()
        original: Arrived | None = None
        for queue in self._wanting(parcel, digest):
            times = self._times(parcel, queue.settings)
            if original is None:
                original = self._arrive(parcel, queue, *times)
                self._draft.events.append(CopiedFrom(*_facts_of(original), *parcel.place))
            else:
                self._refer(original, queue, *times)
            self._fresh.add((queue.number, digest))

    def _wanting(self, parcel: Parcel, digest: bytes) -> list[Queue]:
        """Those that deduplicate come first, so that the message is logged with its digest."""
        state, topics = self._draft.state, tuple(parcel.topics.split("\n"))
        named = [self._queue(name) for name in roots(topics, "") if not state.is_elsewhere(name)]
        wanting = [queue for queue in named if not queue.settings.topics]  # Nothing is published to a channel itself.
        if parcel.options & IS_UNCHANGED:
            wanting = [queue for queue in wanting if not queue.settings.detect_unchanged]
        else:
            wanting += [state.queues[number] for number in state.routing.channels(topics)]
        wanting = [queue for queue in wanting if not self._has(queue, digest)]
        return sorted(wanting, key=lambda queue: not queue.settings.deduplication)

    def _has(self, queue: Queue, digest: bytes) -> bool:
        is_known = digest in queue.digests or (queue.number, digest) in self._fresh
        return queue.settings.deduplication and is_known

    def _queue(self, name: str) -> Queue:
        return self._draft.queue(name) or make_queue(self._draft, name, replace(self._create, redrive_policy=None))

    def _times(self, parcel: Parcel, settings: QueueSettings) -> tuple[Nanos, Nanos]:
        now, options = self._draft.now, parcel.options
        visible_at = self._here(parcel.visible_at) if options & OWN_DELAY else _later(now, settings.delay_ns)
        expires_at = self._here(parcel.expires_at) if options & OWN_LIFETIME else _later(now, settings.retention_ns)
        return visible_at, expires_at

    def _here(self, time: Nanos) -> Nanos:
        """A time of the other shard by the clock of this one, so that delays and lifetimes last as long."""
        return time if time == NEVER_NS else _later(time, self._ahead)

    def _arrive(self, parcel: Parcel, queue: Queue, visible_at: Nanos, expires_at: Nanos) -> Arrived:
        draft = self._draft
        numbers = [draft.number(text) if text else 0 for text in _texts(parcel)]
        arrived = Arrived(
            time=draft.now,
            queue=queue.number,
            sequence=draft.take(queue),
            visible_at=max(visible_at, draft.now),
            expires_at=expires_at,
            priority=parcel.priority,
            content_type=numbers[0],
            sender=numbers[1],
            object=numbers[2],
            topics=numbers[3],
            lease_ns=parcel.lease_ns,
            key=parcel.key,
            headers=parcel.headers,
            digest=sha256(parcel.body).digest() if queue.settings.deduplication else b"",
            body=parcel.body,
            created=parcel.created,
        )
        draft.events.append(arrived)
        return arrived

    def _refer(self, original: Arrived, queue: Queue, visible_at: Nanos, expires_at: Nanos) -> None:
        draft = self._draft
        place = (queue.number, draft.take(queue))
        times = (original.created, max(visible_at, draft.now), expires_at)
        names = (original.content_type, original.sender, original.object, original.topics)
        referred = (original.queue, original.sequence)
        draft.events.append(Queued(draft.now, *place, *times, original.priority, *names, *referred))


def _facts_of(arrived: Arrived) -> tuple[Nanos, int, int, Nanos, int, int]:
    """Of an event about it: nobody has received it yet."""
    return arrived.time, arrived.queue, arrived.sequence, arrived.created, 0, 0


def _texts(parcel: Parcel) -> tuple[str, str, str, str]:
    return parcel.content_type, parcel.sender, parcel.object, parcel.topics


def _later(now: Nanos, delay_ns: Nanos) -> Nanos:
    return min(now + delay_ns, NEVER_NS)


def list_owed(draft: Draft, command: ListOwed) -> OwedList:
    outbox = draft.state.couriers.outboxes.get(command.shard)
    return OwedList(outbox.after(command.after, command.limit) if outbox else [])


def note_taken(draft: Draft, command: NoteTaken) -> Done:
    outbox = draft.state.couriers.outboxes.get(command.shard)
    if outbox and next(iter(outbox.messages), command.serial + 1) <= command.serial:
        draft.events.append(Taken(draft.now, command.shard, command.serial))
    return _DONE


def note_decided(draft: Draft, command: NoteDecided) -> Done:
    draft.events.append(Decided(draft.now, command.forgotten, command.origin, command.outcomes))
    return _DONE


def locate(draft: Draft, command: Locate) -> Location:
    state = draft.state
    here = state.find(command.queue, command.sequence) is not None
    is_due = not here and state.couriers.cursor(command.source).serial < command.serial
    return Location(here, state.couriers.away.get(command.queue, {}), is_due)
