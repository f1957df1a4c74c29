"""The engine: `decide` reads the state and changes nothing; `evolve` changes it and asks nothing.

Live traffic and recovery use the same `evolve`, so what is replayed is what was. Time is handed in, and every
decision is later than the last event: two things never happen at the same moment to one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, TypeGuard

import msgspec
import numpy as np

from penstock.engine.decide.administration import (
    create_queue,
    delete_queue,
    describe_object,
    describe_queue,
    list_queues,
    update_queue,
)
from penstock.engine.decide.claims import finish_claimed, read_claimed
from penstock.engine.decide.damage import delete, restore, set_aside
from penstock.engine.decide.leasing import fetch, finish, finish_many, release
from penstock.engine.decide.moving import cancel, redrive, reschedule
from penstock.engine.decide.publishing import Publishing, alike, run_of
from penstock.engine.decide.pull import Pulling, receive, result_of
from penstock.engine.decide.purging import purge
from penstock.engine.decide.search import candidates, list_held, look_up, scheduled, search
from penstock.engine.decide.settling import extend, settle, settle_many
from penstock.engine.groups import WORKERS
from penstock.engine.history import History, MemoryHistory, content_digest, note, note_run
from penstock.engine.names import Names, NamesFullError, StoredNames, forget_names
from penstock.engine.queue import Queue, Section
from penstock.engine.routing import Routing
from penstock.engine.rows import ROW_DTYPE, Row
from penstock.engine.staging import Staging
from penstock.engine.topics import TopicNames
from penstock.errors import Reason
from penstock.limits import (
    NAMES_DEFAULT,
    NEVER_NS,
    RUN_MESSAGES_MIN,
    TICK_EVENTS_MAX,
)
from penstock.model.answers import Decision, Done, Receipt, Receipts, Refused, refuse
from penstock.model.commands import (
    AdmitRows,
    AwaitResult,
    Cancel,
    Carry,
    Command,
    CommitBatch,
    CreateQueue,
    Delete,
    DeleteQueue,
    DescribeObject,
    DescribeQueue,
    DescribeStaged,
    DropStaged,
    Extend,
    Fetch,
    Finish,
    FinishClaimed,
    FinishMany,
    ForgetNames,
    ListCandidates,
    ListHeld,
    ListQueues,
    ListScheduled,
    LookUp,
    NewMessage,
    Publish,
    PublishRun,
    PublishTopics,
    Pull,
    Purge,
    ReadClaimed,
    Receive,
    Redrive,
    Release,
    Reschedule,
    Restore,
    Search,
    SetAside,
    Settle,
    SettleMany,
    StageRows,
    Tick,
    UpdateQueue,
)
from penstock.model.events import (
    Admitted,
    BatchCommitted,
    Carried,
    Completed,
    Damaged,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    DeliveredRun,
    Event,
    Exasperated,
    Expired,
    Extended,
    FailedForAll,
    Fetched,
    FetchedRun,
    GivenBack,
    HandedToReceiver,
    HandedToReceiverRun,
    Invalidated,
    Kicked,
    KickedRun,
    Logged,
    LoggedRun,
    MessageEvent,
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueuedRun,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    Restored,
    ResultCarried,
    ResultStored,
    Retried,
    Staged,
    Succeeded,
    SucceededRun,
    Unchanged,
    UnchangedRun,
    Unstaged,
)
from penstock.model.lifecycle import ALLOWED, DAMAGED, DELAYED, LEASED, READY
from penstock.model.values import KeyedRun, Nanos, Place, Position

_DONE = Done()


class Engine:
    def __init__(self, history: History | None = None, names_max: int = NAMES_DEFAULT) -> None:
        self.time: Nanos = 0  # Of the last event.
        self.history = history or MemoryHistory()
        self.names = Names(names_max)
        self.topics = TopicNames(self.names)
        self.queues: dict[int, Queue] = {}
        self.numbers: dict[str, int] = {}  # Queue name to number, oldest queue first.
        self.last_queue = 0
        self.routing = Routing()
        self._damaged_in: set[int] = set()  # Queues in which a message was set aside at some time.
        self.moved: dict[Place, Place] = {}  # Where a dead-lettered message is now, by the place in its id.
        self.origins: dict[Place, Place] = {}  # The reverse.
        self.staging = Staging()
        # When `decide(Tick())` and `advance` have something to do next. May be early, never late.
        self.next_deadline: Nanos = NEVER_NS
        self._deadlines: list[tuple[Nanos, int]] = []  # A heap; a queue's newest entry is its `armed`.
        self._decide: dict[type[Command], Callable[[Any, Nanos], Decision]] = {
            Publish: self._publish,
            PublishRun: self._publish_alike,
            PublishTopics: lambda command, now: Publishing(self, command, now).decide(),
            Pull: lambda command, now: Pulling(self, command, now).decide(),
            Receive: partial(receive, self),
            Settle: partial(settle, self),
            SettleMany: partial(settle_many, self),
            Extend: partial(extend, self),
            AwaitResult: partial(result_of, self),
            Fetch: partial(fetch, self),
            Finish: partial(finish, self),
            FinishMany: partial(finish_many, self),
            Release: partial(release, self),
            Tick: self._tick,
            ForgetNames: partial(forget_names, self),
            Carry: self._carry,
            SetAside: partial(set_aside, self),
            Restore: partial(restore, self),
            Delete: partial(delete, self),
            Search: lambda command, _: search(self, command),
            Cancel: partial(cancel, self),
            Reschedule: partial(reschedule, self),
            Redrive: partial(redrive, self),
            Purge: partial(purge, self),
            ListCandidates: lambda command, _: candidates(self, command),
            ListHeld: lambda command, _: list_held(self, command),
            LookUp: lambda command, _: look_up(self, command),
            ListScheduled: lambda command, _: scheduled(self, command),
            CreateQueue: partial(create_queue, self),
            UpdateQueue: partial(update_queue, self),
            DeleteQueue: partial(delete_queue, self),
            DescribeQueue: partial(describe_queue, self),
            ListQueues: partial(list_queues, self),
            DescribeObject: partial(describe_object, self),
            StageRows: lambda command, now: self.staging.stage(command, now, self.numbers, self.is_channel),
            CommitBatch: self.staging.commit,
            AdmitRows: self._admit,
            DropStaged: self.staging.drop,
            ReadClaimed: partial(read_claimed, self),
            FinishClaimed: partial(finish_claimed, self),
            DescribeStaged: lambda command, _: self.staging.describe(command),
        }
        self._evolve: dict[type[Event], Callable[[Any, Position], None]] = {
            Logged: self._logged,
            LoggedRun: self._logged_run,
            Queued: self._queued,
            QueuedRun: self._queued_run,
            Unchanged: self._unchanged,
            UnchangedRun: self._unchanged_run,
            Fetched: self._fetched,
            FetchedRun: self._fetched_run,
            KickedRun: self._kicked_run,
            SucceededRun: self._succeeded_run,
            Kicked: self._done_with,
            Succeeded: self._done_with,
            Retried: self._retried,
            Exasperated: self._done_with,
            Invalidated: self._settled,
            Declined: self._settled,
            Completed: self._completed,
            Extended: self._extended,
            Rescheduled: self._rescheduled,
            DeadLettered: self._dead_lettered,
            Moved: self._moved_by_hand,
            Damaged: self._damaged,
            Restored: self._restored,
            Expired: self._ended,
            Deleted: self._ended,
            Carried: self._carried,
            Delivered: self._delivered,
            DeliveredRun: self._delivered_run,
            HandedToReceiver: self._handed_to_receiver,
            HandedToReceiverRun: self._handed_to_receiver_run,
            GivenBack: self._given_back,
            FailedForAll: self._failed_for_all,
            ResultStored: self._result_stored,
            ResultCarried: self._result_carried,
            ReceiverMoved: self._receiver_moved,
            NameDefined: self._name_defined,
            NameForgotten: self._name_forgotten,
            QueueCreated: self._queue_created,
            QueueChanged: self._queue_changed,
            QueueRemoved: self._queue_removed,
            Staged: self.staging.staged,
            BatchCommitted: self.staging.batch_committed,
            Admitted: self.staging.admitted,
            Unstaged: self.staging.unstaged,
        }

    # ── The four calls ────────────────────────────────────────────────────────────────────────────────────

    def decide(self, command: Command, now: Nanos) -> Decision:
        assert now > self.time, "time does not stand still"
        try:
            return self._decide[type(command)](command, now)
        except NamesFullError as error:
            return Decision((), error.refused)

    def evolve(self, event: Event, position: Position) -> None:
        """Apply an event. `position` is where the log put its extent."""
        self.time = event.time
        self._evolve[type(event)](event, position)

    def advance(self, now: Nanos) -> list[int]:
        """Let delayed messages become ready, which time alone brings about; the queues that got some."""
        woken = []
        deadlines = self._deadlines
        due = []
        while deadlines and deadlines[0][0] <= now:
            due.append(heappop(deadlines))
        for time, number in due:
            queue = self.queues.get(number)
            if queue is None or queue.armed != time:
                continue  # The queue is gone, or was looked at in the meantime.
            if queue.mature(now, TICK_EVENTS_MAX):
                woken.append(number)
            queue.armed = NEVER_NS
            self._arm(queue, queue.next_deadline())
        self.next_deadline = deadlines[0][0] if deadlines else NEVER_NS
        return woken

    # ── Views ─────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue | None:
        number = self.numbers.get(name)
        return None if number is None else self.queues[number]

    def is_channel(self, name: str) -> bool:
        queue = self.queue(name)
        return queue is not None and bool(queue.settings.topics)

    @property
    def damaged(self) -> int:
        """How many messages are set aside because their bytes cannot be read."""
        return sum([self.queues[number].damaged for number in self._damaged_in if number in self.queues])

    def find(self, queue: int, sequence: int) -> tuple[Queue, int, Row] | None:
        """A message by the place in its id, wherever it has moved."""
        if self.moved:
            queue, sequence = self.moved.get((queue, sequence), (queue, sequence))
        home = self.queues.get(queue)
        row = home.rows.get(sequence) if home else None
        return (home, sequence, row) if home and row else None

    # ── Decide: messages ──────────────────────────────────────────────────────────────────────────────────

    def _publish(self, command: Publish, now: Nanos) -> Decision:
        queue = self.queue(command.queue)
        if queue is None:
            return self._publish_first(command, now)
        return self._publish_to(queue, command, now)

    def _publish_first(self, command: Publish, now: Nanos) -> Decision:
        """Publish to a queue that is not there: make it, if that was asked for."""
        if command.create is None:
            return refuse(Reason.NO_QUEUE, command.queue)
        created = create_queue(self, CreateQueue(command.queue, command.create), now)
        if not created.events:
            return created
        queue = Queue(self.last_queue + 1, command.queue, command.create)
        published = self._publish_to(queue, command, now)
        return Decision([*created.events, *published.events], published.answer)

    def _publish_to(self, queue: Queue, command: Publish, now: Nanos) -> Decision:
        if queue.settings.deduplication:
            return self._publish_once(command, queue, now)
        if len(command.messages) >= RUN_MESSAGES_MIN and alike(command.messages):
            return self._publish_run(command, queue, now)
        events: list[Event] = []
        receipts: list[Receipt] = []
        sequence = queue.last_sequence
        for message in command.messages:
            sequence += 1
            events.append(self.log(message, queue, sequence, b"", now, events))
            receipts.append(Receipt(queue.number, sequence, True))
        return Decision(events, receipts)

    def _publish_run(self, command: Publish, queue: Queue, now: Nanos) -> Decision:
        """Many messages of one kind, in one event."""
        events: list[Event] = []
        first = self.log(command.messages[0], queue, queue.last_sequence + 1, b"", now, events)
        events.append(run_of(first, [message.body for message in command.messages]))
        sequences = range(first.sequence, first.sequence + len(command.messages))
        return Decision(events, [Receipt(queue.number, sequence, True) for sequence in sequences])

    def _publish_alike(self, command: PublishRun, now: Nanos) -> Decision:
        """As `_publish_run`, without a receipt for each."""
        queue = self.queue(command.queue)
        if queue is None or queue.settings.deduplication or len(command.bodies) < RUN_MESSAGES_MIN:
            return self._publish(command.apart(), now)
        events: list[Event] = []
        first = self.log(command.template, queue, queue.last_sequence + 1, b"", now, events)
        events.append(run_of(first, command.bodies))
        return Decision(events, Receipts(first.queue, first.sequence, len(command.bodies)))

    def _publish_once(self, command: Publish, queue: Queue, now: Nanos) -> Decision:
        """Publish only what is not in the queue yet, nor twice in this very command."""
        events: list[Event] = []
        receipts: list[Receipt] = []
        fresh: dict[bytes, int] = {}
        sequence = queue.last_sequence
        for message in command.messages:
            digest = sha256(message.body).digest()
            twin = queue.digests.get(digest) or fresh.get(digest)
            if twin is not None:
                place = (queue.number, twin)
                receipts.append(Receipt(*self.origins.get(place, place), False))
            else:
                sequence += 1
                fresh[digest] = sequence
                events.append(self.log(message, queue, sequence, digest, now, events))
                receipts.append(Receipt(queue.number, sequence, True))
        return Decision(events, receipts)

    def log(
        self, message: NewMessage, queue: Queue, sequence: int, digest: bytes, now: Nanos, events: list[Event]
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
            *self.numbers_of(message, now, events),
            message.lease_ns or 0,
            message.key,
            message.headers,
            digest,
            message.body,
        )

    def numbers_of(self, message: NewMessage, now: Nanos, events: list[Event]) -> tuple[int, int, int, int]:
        """What its content type, sender, object and topics are known by; those that are new are defined."""
        number = self.names.number
        return (
            number(message.content_type, now, events) if message.content_type else 0,
            number(message.sender, now, events) if message.sender else 0,
            number(message.object, now, events) if message.object else 0,
            number("\n".join(message.topics), now, events) if message.topics else 0,
        )

    def _tick(self, _: Tick, now: Nanos) -> Decision:
        events: list[Event] = []
        taken: dict[int, int] = {}  # Sequences given out in dead-letter queues by this very decision.
        for queue in self._due(now):
            for sequence, row in queue.overdue_lifetimes(TICK_EVENTS_MAX - len(events), now):
                events.append(_about(Expired, queue, sequence, row, now))
            for sequence, row in queue.overdue_leases(TICK_EVENTS_MAX - len(events), now):
                if row.expires_at > now:  # Else it expires, now or with the next tick.
                    events.append(self.returned(queue, sequence, row, now, 0, taken))
            self._end_leases_alone(queue, now, events, taken)
            if len(events) >= TICK_EVENTS_MAX:
                break
        return Decision(events, _DONE)

    def _end_leases_alone(self, queue: Queue, now: Nanos, events: list[Event], taken: dict[int, int]) -> None:
        """Those of consumers that are to confirm the same messages, which may fail with any of them."""
        overdue = queue.groups.overdue(TICK_EVENTS_MAX - len(events), now)
        failed = {each.sequence for each in events if _takes_away(each, queue)} if overdue else set()
        for sequence, consumer, slot in overdue:
            row = queue.rows.get(sequence)
            if row is None or row.expires_at <= now or sequence in failed:
                continue
            lease = row._replace(state=LEASED, receives=slot.size, consumer=consumer)
            event = self.returned(queue, sequence, lease, now, 0, taken, GivenBack)
            events.append(event)
            if _takes_away(event, queue):
                failed.add(sequence)

    def _due(self, now: Nanos) -> list[Queue]:
        """The queues whose deadline has come, read from the heap without taking them out."""
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

    def returned(
        self,
        queue: Queue,
        sequence: int,
        row: Row,
        now: Nanos,
        delay_ns: Nanos,
        taken: dict[int, int],
        kind: type[Retried] = Retried,
    ) -> Event:
        """A lease ends without a confirmation: what becomes of the message? `kind`: if it is delivered again."""
        if row.state == DELAYED:  # A dead letter, of which it was told before that it has failed.
            return Rescheduled(*_facts(queue, sequence, row, now), visible_at=min(now + delay_ns, NEVER_NS))
        settings = queue.settings
        if settings.deliveries and row.receives >= settings.deliveries:
            if settings.redrive_policy:
                return self.dead_letter(queue, sequence, row, now, taken, held_until=None)
            if kind is Retried and settings.confirmations <= 1:
                return _about(Exasperated, queue, sequence, row, now)
            consumer = queue.worker(sequence, row) if kind is Retried else row.consumer
            return _about(FailedForAll, queue, sequence, row._replace(consumer=consumer), now)
        return kind(*_facts(queue, sequence, row, now), visible_at=min(now + delay_ns, NEVER_NS))

    def dead_letter(
        self, queue: Queue, sequence: int, row: Row, now: Nanos, taken: dict[int, int], held_until: Nanos | None
    ) -> DeadLettered:
        """Move a message, in one event. `held_until`: its last consumer has it until then."""
        policy = queue.settings.redrive_policy
        assert policy is not None
        target = self.queue(policy.dead_letter_queue)
        assert target is not None, "a dead-letter queue that goes takes the policies that name it with it"
        to_sequence = taken.get(target.number, target.last_sequence) + 1
        taken[target.number] = to_sequence
        retention_ns = target.settings.retention_ns
        return DeadLettered(
            *(now, queue.number, sequence, row.created, row.receives, row.consumer),
            fetched=held_until is not None,
            visible_at=now if held_until is None else held_until,
            expires_at=min(now + retention_ns, NEVER_NS),
            to_queue=target.number,
            to_sequence=to_sequence,
        )

    def _carry(self, command: Carry, now: Nanos) -> Decision:
        """Those that are still where they were read from. What shares an extent goes on sharing it."""
        events: list[Event] = []
        carried: dict[tuple[Position, int], Place] = {}
        for number, sequence, position, extent in command.messages:
            queue = self.queues.get(number)
            row = queue.rows.get(sequence) if queue else None
            if row is None or row.position != position:
                continue
            facts = (now, number, sequence, row.created, row.receives, row.consumer)
            sibling = carried.setdefault((position, len(extent)), (number, sequence))
            shares = sibling != (number, sequence)
            events.append(Carried(*facts, b"", *sibling) if shares else Carried(*facts, extent))
        for number, sequence, receiver, position, result in command.results:
            queue = self.queues.get(number)
            row = queue.rows.get(sequence) if queue else None
            if queue and row and queue.groups.holds(receiver, sequence, position):
                events.append(ResultCarried(now, number, sequence, row.created, 0, receiver, result))
        return Decision(events, _DONE)

    def _admit(self, command: AdmitRows, now: Nanos) -> Decision:
        """Publish, and note it, in one decision. Rows for a queue that was removed meanwhile have gone with it; what
        is refused for another reason waits until it is not."""
        if not self.staging.stands_at(command.query, command.batch, command.at):
            return refuse(Reason.NOT_STAGED)
        published = self._decide[type(command.publish)](command.publish, now)
        if isinstance(published.answer, Refused) and published.answer.reason is not Reason.NO_QUEUE:
            return published
        admitted = Admitted(now, command.query, command.batch, *command.to)
        return Decision([*published.events, admitted], published.answer)

    # ── Evolve: messages ──────────────────────────────────────────────────────────────────────────────────

    def _logged(self, event: Logged, position: Position) -> None:
        queue = self.queues[event.queue]
        sequence, visible_at, expires_at, priority = (
            event.sequence,
            event.visible_at,
            event.expires_at,
            event.priority,
        )
        assert sequence == queue.last_sequence + 1, "sequences have no gaps"
        state = READY if visible_at <= event.time else DELAYED
        key = event.key
        row = (visible_at, 0, 0, state, len(key), priority, position, event.time, expires_at)
        sizes = (len(event.body), len(event.headers))
        names = (event.content_type, event.sender, event.lease_ns, event.object, event.topics)
        queue.rows.add(sequence, row + sizes + names)
        queue.enter(sequence, state, visible_at, priority, expires_at)
        if event.digest:
            queue.remember(event.digest, sequence)
        if key and event.object:
            about, digest = self.names.texts[event.object], content_digest(event.body)
            note(self.history, about, key, digest, event.queue, sequence, event.time, position)
        if event.topics:
            self._index_topics(queue, event.topics, sequence)
        deadline = expires_at if state == READY else min(visible_at, expires_at)
        if deadline < queue.armed:
            self._arm(queue, deadline)

    def _logged_run(self, event: LoggedRun, position: Position) -> None:
        queue = self.queues[event.queue]
        first, visible_at, expires_at = event.sequence, event.visible_at, event.expires_at
        assert first == queue.last_sequence + 1, "sequences have no gaps"
        state = READY if visible_at <= event.time else DELAYED
        sizes = np.fromiter(map(len, event.bodies), dtype=np.int64, count=len(event.bodies))
        key_sizes = np.fromiter(map(len, event.keys), dtype=np.int64) if event.keys else np.int64(0)
        ends = position + np.cumsum(sizes + key_sizes)
        rows = np.zeros(len(sizes), dtype=ROW_DTYPE)
        rows["key_bytes"] = key_sizes
        rows["visible_at"] = visible_at
        rows["state"] = state
        rows["priority"] = event.priority
        rows["position"] = ends - sizes - key_sizes
        rows["created"] = event.time
        rows["expires_at"] = expires_at
        rows["body_bytes"] = sizes
        rows["content_type"] = event.content_type
        rows["sender"] = event.sender
        rows["lease_ns"] = event.lease_ns
        rows["object"] = event.object
        rows["topics"] = event.topics
        queue.rows.add_run(first, rows)
        queue.enter_run(first, len(sizes), state, visible_at, event.priority, expires_at)
        if event.topics:
            self._index_topics(queue, event.topics, first, len(sizes))
        if event.contents:
            about, places = self.names.texts[event.object], rows["position"].tolist()
            facts = (event.queue, first, event.time, places, event.seen)
            note_run(self.history, KeyedRun(about, event.keys, event.contents, *facts))
        self._arm(queue, expires_at if state == READY else min(visible_at, expires_at))

    def _index_topics(self, queue: Queue, topics: int, first: int, count: int = 1) -> None:
        """Let messages with following sequences be found by their topics."""
        self.topics.note(topics)
        queue.index_topics(topics, first, count)

    def _queued(self, event: Queued, _: Position) -> None:
        facts = (event.visible_at, event.expires_at, event.priority)
        names = (event.content_type, event.sender, event.object, event.topics)
        original = (event.to_queue, event.to_sequence)
        self._refer(event.time, event.queue, event.sequence, event.created, *facts, *names, *original)

    def _queued_run(self, event: QueuedRun, _: Position) -> None:
        queues = event.queues
        if len(queues) < RUN_MESSAGES_MIN * len(set(queues)):
            self._refer_each(event, slice(None))
            return
        start = 0
        while start < len(queues):
            stop = start + queues.count(queues[start])  # Those of one queue stand together.
            self._refer_run(event, slice(start, stop))
            start = stop

    def _refer(
        self,
        time: Nanos,
        number: int,
        sequence: int,
        created: Nanos,
        visible_at: Nanos,
        expires_at: Nanos,
        priority: int,
        content_type: int,
        sender: int,
        about: int,
        topics: int,
        to_queue: int,
        to_sequence: int,
    ) -> None:
        """A message that is there already enters one more queue."""
        queue, original = self.queues[number], self.queues[to_queue]
        row = original.rows.get(to_sequence)
        assert row is not None, f"message {to_sequence} of queue {to_queue} is referred to and not there"
        assert sequence == queue.last_sequence + 1, "sequences have no gaps"
        state = READY if visible_at <= time else DELAYED
        facts = (visible_at, 0, 0, state, row.key_bytes, priority, row.position, created, expires_at)
        sizes = (row.body_bytes, row.headers_bytes)
        queue.rows.add(sequence, facts + sizes + (content_type, sender, row.lease_ns, about, topics))
        queue.enter(sequence, state, visible_at, priority, expires_at)
        if queue.settings.deduplication:
            digest = original.digest_of(to_sequence)
            if digest and digest not in queue.digests:
                queue.remember(digest, sequence)
        if topics:
            self._index_topics(queue, topics, sequence)
        deadline = expires_at if state == READY else min(visible_at, expires_at)
        if deadline < queue.armed:
            self._arm(queue, deadline)

    def _refer_each(self, event: QueuedRun, chosen: slice) -> None:
        columns = [getattr(event, name)[chosen] for name in event.__struct_fields__[1:]]
        for facts in zip(*columns, strict=True):
            self._refer(event.time, *facts)

    def _refer_run(self, event: QueuedRun, chosen: slice) -> None:
        """As `_refer`, for those of one queue, if they are alike enough."""
        queue = self.queues[event.queues[chosen.start]]
        first, visible_at = event.sequences[chosen.start], event.visible_at[chosen.start]
        expires_at, priority = event.expires_at[chosen.start], event.priorities[chosen.start]
        to_queue = event.to_queues[chosen.start]
        rows = self.queues[to_queue].rows.many(event.to_sequences[chosen])
        alike = all(
            column[chosen].count(column[chosen.start]) == chosen.stop - chosen.start
            for column in (event.visible_at, event.expires_at, event.priorities, event.topics, event.to_queues)
        )
        if rows is None or not alike or queue.settings.deduplication:
            self._refer_each(event, chosen)
            return
        assert first == queue.last_sequence + 1, "sequences have no gaps"
        state = READY if visible_at <= event.time else DELAYED
        facts = {"visible_at": visible_at, "expires_at": expires_at, "priority": priority, "state": state}
        names = {"content_type": event.content_types, "sender": event.senders, "object": event.objects}
        columns = {"created": event.created, "topics": event.topics} | names
        for name, value in {"receives": 0, "consumer": 0, **facts}.items():
            rows[name] = value
        for name, column in columns.items():
            rows[name] = column[chosen]
        queue.rows.add_run(first, rows)
        queue.enter_run(first, len(rows), state, visible_at, priority, expires_at)
        if topics := event.topics[chosen.start]:
            self._index_topics(queue, topics, first, len(rows))
        self._arm(queue, expires_at if state == READY else min(visible_at, expires_at))

    def _unchanged_run(self, event: UnchangedRun, _: Position) -> None:
        queue = self.queues[event.queue]
        assert event.sequence == queue.last_sequence + 1, "sequences have no gaps"
        queue.last_sequence += len(event.keys)

    def _unchanged(self, event: Unchanged, _: Position) -> None:
        queue = self.queues[event.queue]
        assert event.sequence == queue.last_sequence + 1, "sequences have no gaps"
        queue.last_sequence = event.sequence

    def _fetched(self, event: Fetched, _: Position) -> None:
        queue, row = self._message(event)
        queue.lease(event.sequence, row, event.visible_at, event.receives, event.consumer)
        if event.visible_at < queue.armed:
            self._arm(queue, event.visible_at)

    def _fetched_run(self, event: FetchedRun, _: Position) -> None:
        queue = self.queues[event.queue]
        queue.lease_run(event.sequences[0], event.visible_at, event.receives, event.consumers[0])
        self._arm(queue, event.visible_at)

    def _kicked_run(self, event: KickedRun, _: Position) -> None:
        self.queues[event.queue].kick_run(event.sequences[0], len(event.sequences))

    def _succeeded_run(self, event: SucceededRun, _: Position) -> None:
        self.queues[event.queue].finish_many(event.sequences)

    def _retried(self, event: Retried, _: Position) -> None:
        queue, row = self._message(event)
        state = READY if event.visible_at <= event.time else DELAYED
        queue.change(event.sequence, row, state, event.visible_at, event.receives, 0)
        if state == DELAYED:
            self._arm(queue, event.visible_at)

    def _done_with(self, event: MessageEvent, position: Position) -> None:
        """No worker will see it again; receivers may."""
        queue, row = self._message(event)
        settings = queue.settings
        complete = settings.confirmations <= 1 or (type(event) is Succeeded and event.complete)
        if row.state == DAMAGED or (settings.keep == "finished" and complete):
            self._remove(queue, event.sequence, row)
            return
        queue.keep(event.sequence, row, event.receives, event.consumer)
        if type(event) is Succeeded and not event.complete:
            queue.groups.store(WORKERS, event.sequence, position, len(event.result))

    def _settled(self, event: Invalidated | Declined, _: Position) -> None:
        """The consumer is done with it: alone, if it is one of several that are to confirm, else for all workers."""
        queue, row = self._message(event)
        if queue.groups.owes(event.consumer, event.sequence):
            queue.groups.decline(event.consumer, event.sequence)
        elif queue.settings.keeps and row.state != DAMAGED:
            queue.keep(event.sequence, row, row.receives, row.consumer)
        else:
            self._remove(queue, event.sequence, row)

    def _completed(self, event: Completed, _: Position) -> None:
        queue, row = self._message(event)
        if queue.settings.keep == "all":
            queue.keep(event.sequence, row, row.receives, row.consumer)
        else:
            self._remove(queue, event.sequence, row)

    def _extended(self, event: Extended, _: Position) -> None:
        queue, row = self._message(event)
        if queue.groups.owes(event.consumer, event.sequence):
            self._extended_alone(queue, event)
        else:
            assert row.state in (LEASED, DELAYED), "only who has a message has it for longer"
            queue.change(event.sequence, row, row.state, event.visible_at, row.receives, row.consumer)
            self._arm(queue, event.visible_at)

    def _extended_alone(self, queue: Queue, event: Extended) -> None:
        facts = (event.consumer, event.sequence, event.receives, event.visible_at)
        if queue.groups.has(event.consumer, event.sequence):
            queue.groups.lend(*facts)
            self._arm(queue, event.visible_at)
        else:
            queue.groups.deliver(*facts)

    def _rescheduled(self, event: Rescheduled, _: Position) -> None:
        queue, row = self._message(event)
        state = READY if event.visible_at <= event.time else DELAYED
        queue.change(event.sequence, row, state, event.visible_at, row.receives, 0)
        self._arm(queue, event.visible_at if state == DELAYED else NEVER_NS)

    def _damaged(self, event: Damaged, _: Position) -> None:
        queue, row = self._message(event)
        self._damaged_in.add(queue.number)
        queue.set_aside(event.sequence, row, event.consumer)  # Replay may not know yet that nobody has it any more.

    def _restored(self, event: Restored, _: Position) -> None:
        queue, row = self._message(event)
        if event.visible_at == NEVER_NS:
            queue.keep(event.sequence, row, row.receives, row.consumer)
            return
        state = READY if event.visible_at <= event.time else DELAYED
        queue.change(event.sequence, row, state, event.visible_at, row.receives, 0)
        self._arm(queue, event.visible_at if state == DELAYED else NEVER_NS)

    def _ended(self, event: MessageEvent, _: Position) -> None:
        queue, row = self._message(event)
        self._remove(queue, event.sequence, row)

    def _dead_lettered(self, event: DeadLettered, _: Position) -> None:
        # A delivery that is part of the move leaves the message with its consumer until it shows again.
        self._move(event, event.consumer if event.fetched else 0)

    def _moved_by_hand(self, event: Moved, _: Position) -> None:
        self._move(event, 0)

    def _move(self, event: DeadLettered | Moved, consumer: int) -> None:
        """From one queue to another, where it begins anew; its id goes on working."""
        queue, row = self._message(event)
        if self.names.are_swept:
            self.names.keep(row.names)  # The sweep may have been where it goes, and not yet where it was.
        digest = queue.digest_of(event.sequence)
        origin = self._remove(queue, event.sequence, row)
        target = self.queues[event.to_queue]
        assert event.to_sequence == target.last_sequence + 1, "sequences have no gaps"
        state = READY if event.visible_at <= event.time else DELAYED
        moved = row._replace(
            visible_at=event.visible_at,
            receives=0,
            consumer=consumer,
            state=state,
            expires_at=event.expires_at,
        )
        target.rows.add(event.to_sequence, moved)
        target.enter(event.to_sequence, state, event.visible_at, row.priority, event.expires_at)
        if digest and target.settings.deduplication and digest not in target.digests:
            target.remember(digest, event.to_sequence)
        if row.topics:
            target.index_topics(row.topics, event.to_sequence)
        self.moved[origin] = (event.to_queue, event.to_sequence)
        self.origins[event.to_queue, event.to_sequence] = origin
        self._arm(target, event.expires_at if state == READY else min(event.visible_at, event.expires_at))

    def _carried(self, event: Carried, position: Position) -> None:
        queue = self.queues[event.queue]
        if event.to_queue:
            sibling = self.queues[event.to_queue].rows.get(event.to_sequence)
            assert sibling is not None, f"{event} refers to a message that is not there"
            position = sibling.position
        queue.rows.move(event.sequence, position)

    def _delivered(self, event: Delivered, _: Position) -> None:
        queue, _row = self._message(event)
        facts = (event.consumer, event.sequence, event.receives, event.visible_at)
        if event.leased:
            queue.groups.lend(*facts)
            self._arm(queue, event.visible_at)
        else:
            queue.groups.deliver(*facts)

    def _delivered_run(self, event: DeliveredRun, _: Position) -> None:
        queue, time = self.queues[event.queue], event.visible_at
        run = (event.consumers[0], event.sequences[0], len(event.sequences))
        queue.groups.deliver_run(*run, time, lend=event.leased)
        if event.leased:
            self._arm(queue, time)

    def _handed_to_receiver(self, event: HandedToReceiver, _: Position) -> None:
        queue, _row = self._message(event)
        queue.groups.move(event.consumer, event.sequence)

    def _handed_to_receiver_run(self, event: HandedToReceiverRun, _: Position) -> None:
        self.queues[event.queue].groups.move(event.consumers[0], event.sequences[-1])

    def _given_back(self, event: GivenBack, _: Position) -> None:
        queue, _row = self._message(event)
        queue.groups.give_back(event.consumer, event.sequence, event.receives, event.visible_at)

    def _failed_for_all(self, event: FailedForAll, _: Position) -> None:
        """Nobody gets it again; where everything is kept, only those who have not had it or are not done with it."""
        queue, row = self._message(event)
        if queue.settings.keep == "finished":
            self._remove(queue, event.sequence, row)
            return
        if queue.groups.has(event.consumer, event.sequence):
            queue.groups.decline(event.consumer, event.sequence)
        queue.keep(event.sequence, row, row.receives, row.consumer)

    def _result_stored(self, event: ResultStored, position: Position) -> None:
        queue, _row = self._message(event)
        queue.groups.store(event.consumer, event.sequence, position, len(event.result))

    def _result_carried(self, event: ResultCarried, position: Position) -> None:
        self.queues[event.queue].groups.store(event.consumer, event.sequence, position, len(event.result))

    def _receiver_moved(self, event: ReceiverMoved, _: Position) -> None:
        self.queues[event.queue].groups.move(event.consumer, event.sequence)

    def _message(self, event: MessageEvent) -> tuple[Queue, Row]:
        queue = self.queues[event.queue]
        row = queue.rows.get(event.sequence)
        assert row is not None, f"{event} is about a message that is not there"
        assert (row.state, event.kind) in ALLOWED, f"{event} cannot happen in state {row.state}"
        return queue, row

    def _remove(self, queue: Queue, sequence: int, row: Row) -> Place:
        """Take a message out; the place in its id."""
        queue.remove(sequence, row)
        origin = self.origins.pop((queue.number, sequence), None) if self.origins else None
        if origin is None:
            return queue.number, sequence
        del self.moved[origin]
        return origin

    def _arm(self, queue: Queue, time: Nanos) -> None:
        if time < queue.armed:
            queue.armed = time
            heappush(self._deadlines, (time, queue.number))
            self.next_deadline = self._deadlines[0][0]

    # ── Evolve: queues and names ──────────────────────────────────────────────────────────────────────────

    def _name_defined(self, event: NameDefined, _: Position) -> None:
        self.names.define(event.number, event.text)

    def _name_forgotten(self, event: NameForgotten, _: Position) -> None:
        self.names.forget(event.number)
        self.topics.forget(event.number)

    def _queue_created(self, event: QueueCreated, _: Position) -> None:
        assert event.queue == self.last_queue + 1, "queues are numbered without gaps"
        self.last_queue = event.queue
        self.queues[event.queue] = Queue(event.queue, event.name, event.settings)
        self.numbers[event.name] = event.queue
        self.routing.assign(event.queue, event.settings.topics)

    def _queue_changed(self, event: QueueChanged, _: Position) -> None:
        self.queues[event.queue].settings = event.settings
        self.routing.assign(event.queue, event.settings.topics)

    def _queue_removed(self, event: QueueRemoved, _: Position) -> None:
        queue = self.queues.pop(event.queue)
        del self.numbers[queue.name]
        self.routing.remove(event.queue)
        for place in [place for place in self.origins if place[0] == event.queue]:
            del self.moved[self.origins.pop(place)]

    # ── Snapshots ─────────────────────────────────────────────────────────────────────────────────────────

    def sections(self) -> Iterator[Section]:
        """The whole state, in pieces: what `restore` takes."""
        names = self.names.stored()
        head = _Head(self.time, self.last_queue, names.names, names.numbers, names.last_name)
        yield "engine", msgspec.json.encode(head), ()
        for queue in self.queues.values():
            yield from queue.sections()
        yield from self.history.sections()
        moved = np.array([(*origin, *place) for origin, place in self.moved.items()], dtype=np.int64)
        yield "moved", b"", (moved,)
        yield from self.staging.sections()

    def restore(self, sections: Iterable[Section]) -> None:
        """Take the state of a snapshot. The engine must be new."""
        assert not self.last_queue
        queue: Queue | None = None
        for kind, facts, columns in sections:
            if kind == "engine":
                head = msgspec.json.decode(facts, type=_Head)
                self.time, self.last_queue = head.time, head.last_queue
                self.names.restore(StoredNames(head.names, head.numbers, head.last_name))
            elif kind == "staging":
                self.staging.restore(facts)
            elif kind == "queue":
                queue = Queue.from_section(facts)
                self.queues[queue.number] = queue
                self.numbers[queue.name] = queue.number
                self.routing.assign(queue.number, queue.settings.topics)
            elif kind == "history":
                self.history.restore(facts)
            elif kind == "moved":
                for a, b, c, d in columns[0].view(np.int64).reshape(-1, 4).tolist():
                    self.moved[a, b] = (c, d)
                    self.origins[c, d] = (a, b)
            else:
                assert queue is not None
                queue.restore(kind, columns)
        for queue in self.queues.values():
            queue.line_up()
            if queue.damaged:
                self._damaged_in.add(queue.number)
            self.topics.note_all(queue.topics.numbers if queue.topics else ())
            self._arm(queue, queue.next_deadline())


class _Head(msgspec.Struct, omit_defaults=True):
    time: Nanos
    last_queue: int
    names: list[str]  # This and what follows are `StoredNames`.
    numbers: list[int] = []
    last_name: int = 0


def _about(kind: type[MessageEvent], queue: Queue, sequence: int, row: Row, now: Nanos) -> MessageEvent:
    return kind(*_facts(queue, sequence, row, now))


def _takes_away(event: Event, queue: Queue) -> TypeGuard[MessageEvent]:
    """Is there nothing left of a message of this queue?"""
    if isinstance(event, Exasperated):
        return event.queue == queue.number and queue.settings.keep == "finished"
    return isinstance(event, DeadLettered) and event.queue == queue.number


def _facts(queue: Queue, sequence: int, row: Row, now: Nanos) -> tuple[Nanos, int, int, Nanos, int, int]:
    return now, queue.number, sequence, row.created, row.receives, row.consumer
