"""The engine and a log on disk against a model too simple to be wrong, through crashes and restarts."""

from __future__ import annotations

import copy
import shutil
import tempfile
import threading
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.engine.engine import Engine
from penstock.engine.history import content_digest
from penstock.engine.queue import Queue as EngineQueue
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import (
    Answer,
    Aside,
    Delivery,
    Discarded,
    Done,
    Found,
    Purged,
    QueueList,
    Received,
    Refused,
)
from penstock.model.commands import (
    Cancel,
    Carry,
    Command,
    CreateQueue,
    Criteria,
    Delete,
    DeleteQueue,
    DescribeQueue,
    Extend,
    Fetch,
    Finish,
    ListQueues,
    NewMessage,
    Outcome,
    Publish,
    PublishTopics,
    Purge,
    Receive,
    Redrive,
    Release,
    Reschedule,
    Restore,
    Search,
    SetAside,
    Settle,
    SettleMany,
    Tick,
    UpdateQueue,
)
from penstock.model.events import Event, MessageEvent
from penstock.model.kinds import State
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segments import SegmentLog
from tests.support.effort import LONG, effort
from tests.support.engine_rig import state_of
from tests.support.simple_model import Message, Model, Place, Queue

# Few names and short times, so that everything meets everything, often at the very same moment.
KEEPS: list[Literal["finished", "all"]] = ["finished", "finished", "all"]
PATTERNS: list[tuple[str, ...]] = [(), (), ("t.*",), ("u", "t.a"), ("*",)]
REASONS = ["", "bad card", "bad bank", "timeout"]
OUTCOMES: list[Outcome] = ["success", "success", "invalid", "not_interested", "retry", "failed"]
MADE = QueueSettings(detect_unchanged=True, visibility_ns=10)
names = st.sampled_from(["a", "b", "c", "d"])
consumers = st.sampled_from(["", "me", "you"])
delays = st.sampled_from([0, 0, 0, 1, 5, 20])
deliveries = st.sampled_from([None, None, 1, 2])
reasons = st.sampled_from(REASONS)
picks = st.integers(0, 1 << 16)
bodies = st.sampled_from([b"", b"same", b"other", b"x" * 300])
settings_of_queues = st.builds(
    QueueSettings,
    redrive_policy=st.none() | st.builds(RedrivePolicy, max_receives=st.integers(1, 3), dead_letter_queue=names),
    retention_ns=st.sampled_from([NEVER_NS, NEVER_NS, 1, 30, 200]),
    visibility_ns=st.sampled_from([0, 10, 40]),
    delay_ns=delays,
    deduplication=st.booleans(),
    retries=st.integers(0, 3),
    confirmations=st.sampled_from([1, 1, 2]),
    detect_unchanged=st.booleans(),
    keep=st.sampled_from(KEEPS),
    topics=st.sampled_from(PATTERNS),
    confirm=st.sampled_from([True, True, True, False]),
)
new_messages = st.builds(
    NewMessage,
    body=bodies,
    content_type=st.sampled_from(["", "text/plain"]),
    priority=st.sampled_from([0, 0, 1, 9]),
    sender=st.sampled_from(["", "s"]),
    key=st.sampled_from([b"", b"k"]),
    headers=st.sampled_from([b"", b"h"]),
    object=st.sampled_from(["", "o", "p", "a"]),
    topics=st.sampled_from([(), (), ("t.a",), ("t.b", "u"), ("u",)]),
    delay_ns=st.none() | delays,
    expires_ns=st.sampled_from([None, None, None, NEVER_NS, 3, 50]),
)
SHARED_MEMORY = Path("/dev/shm")


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # In memory where that is possible: thousands of syncs, and a power cut is not what is tried here.
        self.path = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
        self.clock = 1000
        self.places: list[Place] = []  # Every place anybody was ever told of.
        self.model = Model()
        self.committed = copy.deepcopy(self.model)
        self.open()

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.path)

    def open(self) -> None:
        self.directory = DataDirectory(self.path)
        self.directory.open()
        self.log = SegmentLog(self.directory, segment_bytes=2048)
        self.engine = Engine()
        recovered = self.log.recover()
        if recovered.sections is not None:
            self.engine.restore(recovered.sections)
        for event, position in recovered.events:
            self.engine.evolve(event, position)

    def close(self) -> None:
        self.log.close()
        self.directory.close()

    # What the loop does

    def now(self) -> int:
        self.clock = max(self.clock, self.engine.time + 1)
        return self.clock

    def do(self, command: Command) -> tuple[Answer, int]:
        self.settle()
        now = self.now()
        decision = self.engine.decide(command, now=now)
        self.apply(list(decision.events))
        return decision.answer, now

    def settle(self) -> None:
        now = self.now()
        order: list[int] = []
        if self.engine.next_deadline <= now:
            events = list(self.engine.decide(Tick(), now=now).events)
            order = [event.queue for event in events if isinstance(event, MessageEvent)]
            self.apply(events)
            self.engine.advance(now)
        self.model.settle(now, order)

    def apply(self, events: list[Event]) -> None:
        for event in events:
            self.engine.evolve(event, self.log.append(event))

    def commit_log(self) -> None:
        if self.log.collecting:
            ended = threading.Event()
            self.log.commit(self.now(), lambda stage: ended.set() if stage is Stage.SYNC else None)
            assert ended.wait(30)

    # Queues

    @initialize(settings=st.lists(settings_of_queues, min_size=3, max_size=3))
    def begin(self, settings: list[QueueSettings]) -> None:
        """Each queue is the dead letters of the next."""
        self.create("a", QueueSettings())
        for name, dead, each in zip("bcd", "abc", settings, strict=True):
            values = {key: getattr(each, key) for key in QueueSettings.__struct_fields__}
            values["confirm"] |= each.confirmations > 1
            self.create(name, QueueSettings(**values | {"redrive_policy": RedrivePolicy(2, dead)}))

    @rule(name=names, settings=settings_of_queues)
    def create_or_update(self, name: str, settings: QueueSettings) -> None:
        if self.model.queue(name):
            answer, now = self.do(UpdateQueue(name, settings))
            self.described(answer, self.model.update(name, settings), name, now)
        self.create(name, settings)

    def create(self, name: str, settings: QueueSettings) -> None:
        answer, now = self.do(CreateQueue(name, settings))
        self.described(answer, self.model.create(name, settings), name, now)

    @rule(name=names, really=st.sampled_from([False, False, False, True]))
    def delete(self, name: str, really: bool) -> None:
        if really:
            self.settle()
            queue = self.model.queue(name)
            answer, now = self.do(DeleteQueue(name))
            assert answer == (self.model.describe(queue, now) if queue else _no_queue(name))
            self.model.delete(name)

    def described(self, answer: Answer, refusal: Answer | None, name: str, now: int) -> None:
        if refusal is not None:
            assert answer == refusal
            return
        queue = self.model.queue(name)
        assert queue is not None
        assert answer == self.model.describe(queue, now)

    @rule(name=names, offset=st.integers(0, 4), limit=st.none() | st.integers(0, 4))
    def describe_and_list(self, name: str, offset: int, limit: int | None) -> None:
        answer, now = self.do(DescribeQueue(name))
        queue = self.model.queue(name)
        assert answer == (self.model.describe(queue, now) if queue else _no_queue(name))
        answer, now = self.do(ListQueues(offset, limit))
        assert isinstance(answer, QueueList)
        every = [self.model.describe(queue, now) for queue in self.model.queues]
        assert answer.total == len(every)
        assert list(answer.queues) == every[offset : None if limit is None else offset + limit]

    # Messages

    @rule(name=names, messages=st.lists(new_messages, min_size=1, max_size=4))
    def publish(self, name: str, messages: list[NewMessage]) -> None:
        answer, now = self.do(Publish(name, messages))
        expected = self.model.publish(name, messages, now)
        assert answer == expected
        if isinstance(expected, list):
            self.places += [(receipt.queue, receipt.sequence) for receipt in expected]

    @rule(
        name=names,
        count=st.integers(1, 4),
        lease_ns=st.none() | st.sampled_from([0, 7, 60]),
        consumer=consumers,
        confirm=st.sampled_from([True, True, True, False]),
        ahead=st.booleans(),
    )
    def fetch(self, name: str, count: int, lease_ns: int | None, consumer: str, confirm: bool, ahead: bool) -> None:
        command = Fetch(name, count, lease_ns=lease_ns, consumer=consumer, confirm=confirm, ahead=ahead)
        answer, now = self.do(command)
        expected = self.model.fetch(command, now)
        if isinstance(expected, Refused):
            assert answer == expected
            return
        assert isinstance(answer, list | tuple)
        assert [self.seen(each) for each in answer] == [_as_seen(message) for message in expected]

    def seen(self, delivery: Any) -> tuple[object, ...]:
        assert isinstance(delivery, Delivery)
        sizes = delivery.body_bytes, delivery.key_bytes, delivery.headers_bytes
        return (
            (delivery.queue, delivery.sequence),
            self.log.read(delivery.position, sum(sizes)),
            sizes,
            (delivery.content_type, delivery.sender, delivery.priority),
            (delivery.receives, delivery.created, delivery.visible_at),
        )

    @rule(pick=picks, consumer=st.none() | consumers)
    def finish(self, pick: int, consumer: str | None) -> None:
        place = self.any_place(pick)
        answer, _ = self.do(Finish(*place, consumer=consumer))
        assert answer == self.model.finish(place, consumer)

    @rule(pick=picks, consumer=st.none() | consumers, delay_ns=delays)
    def release(self, pick: int, consumer: str | None, delay_ns: int) -> None:
        place = self.any_place(pick)
        answer, now = self.do(Release(*place, consumer=consumer, delay_ns=delay_ns))
        assert answer == self.model.release(place, consumer, delay_ns, now)

    @rule(messages=st.lists(new_messages, min_size=1, max_size=4), alone=st.just("") | names)
    def publish_topics(self, messages: list[NewMessage], alone: str) -> None:
        answer, now = self.do(PublishTopics(messages, MADE, alone))
        expected, places = self.model.publish_topics(messages, MADE, now, alone)
        assert answer == expected
        self.places += places

    @rule(
        pick=picks,
        outcome=st.sampled_from(OUTCOMES),
        consumer=st.none() | consumers,
        delivery=deliveries,
        delay_ns=delays,
        reason=reasons,
        begun=st.booleans(),
    )
    def settle_one(
        self,
        pick: int,
        outcome: Outcome,
        consumer: str | None,
        delivery: int | None,
        delay_ns: int,
        reason: str,
        begun: bool,
    ) -> None:
        place, consumer = self.any_taken(pick, consumer)
        answer, now = self.do(
            Settle(*place, outcome, consumer, delivery, delay_ns, reason=reason.encode(), begun=begun)
        )
        expected = self.model.settle_one(place, outcome, consumer, delivery, delay_ns, now, reason, begun=begun)
        assert answer == expected

    @rule(picked=st.lists(st.tuples(picks, st.sampled_from(OUTCOMES), st.none() | consumers), max_size=4))
    def settle_several(self, picked: list[tuple[int, Outcome, str | None]]) -> None:
        """Together as one after the other, but for what is given back: nobody has it again meanwhile."""
        chosen = [
            (self.any_place(pick), outcome, consumer)
            for pick, outcome, consumer in picked
            if outcome not in ("retry", "failed")
        ]
        answer, now = self.do(SettleMany([Settle(*place, *rest) for place, *rest in chosen]))  # type: ignore[arg-type]
        expected: list[Answer] = []
        done: set[Place] = set()
        for place, outcome, who in chosen:
            each = self.model.settle_one(place, outcome, who, None, 0, now)
            # Of a message from a queue that is gone, only who speaks at the same time knows that it was there.
            expected.append(Discarded() if each == Refused(Reason.NO_MESSAGE) and place in done else each)
            done |= {place} if each == Done() else set()
        assert answer == expected

    @rule(
        pick=picks,
        consumer=st.none() | consumers,
        delivery=deliveries,
        lease_ns=st.sampled_from([0, 5, 60]),
        begun=st.booleans(),
    )
    def extend(self, pick: int, consumer: str | None, delivery: int | None, lease_ns: int, begun: bool) -> None:
        place, consumer = self.any_taken(pick, consumer)
        answer, now = self.do(Extend(*place, lease_ns, consumer, delivery, begun))
        assert answer == self.model.extend(place, lease_ns, consumer, delivery, now, begun=begun)

    @rule(
        name=names,
        consumer=st.sampled_from(["me", "you", "they"]),
        count=st.integers(1, 4),
        lease_ns=st.sampled_from([0, 7, 60]),
    )
    def receive(self, name: str, consumer: str, count: int, lease_ns: int) -> None:
        self.settle()
        queue = self.model.queue(name)
        if queue is None or queue.settings.confirmations <= 1:
            return  # As a fetch.
        answer, now = self.do(Receive(name, consumer, count, 0, lease_ns))
        expected = self.model.receive(name, consumer, count, lease_ns, now)
        assert isinstance(answer, Received)
        assert [(*self.seen(each)[:2], each.receives) for each in answer.deliveries] == [
            (*_as_seen(message)[:2], deliveries) for message, deliveries in expected
        ]

    def any_taken(self, pick: int, consumer: str | None) -> tuple[Place, str | None]:
        """Often what one of several consumers has, and by that one."""
        self.settle()
        there = [message for queue in self.model.queues for message in queue.messages]
        held = [(each.id, name) for each in there for name, slot in each.slots.items() if slot.state == "held"]
        return held[pick // 2 % len(held)] if held and pick % 2 else (self.any_place(pick // 2), consumer)

    def any_place(self, pick: int) -> Place:
        """Mostly of a message that is leased."""
        there = [message for queue in self.model.queues for message in queue.messages]
        leased = [message.id for message in there if message.state == "leased"]
        choices = [leased, leased, [message.id for message in there], self.places][pick % 4] or [(1, 1)]
        return choices[pick // 4 % len(choices)]

    @rule(
        name=names | st.just(""),
        topic=st.sampled_from(["", "t.*", "t.a", "u"]),
        about=st.sampled_from(["", "o"]),
        states=st.sets(st.sampled_from(["ready", "delayed", "leased", "kept", "damaged"])),
        limit=st.integers(1, 5),
        reason=st.sampled_from(["", "", "bad *", "*timeout*"]),
    )
    def search(self, name: str, topic: str, about: str, states: set[str], limit: int, reason: str) -> None:
        self.settle()
        if name and self.model.queue(name) is None:
            return
        criteria = Criteria(queue=name, topic=topic, object=about, states=frozenset(states), reason=reason)
        expected = self.model.search(criteria)
        found: list[tuple[Place, Place]] = []
        after: tuple[int, int] | None = (0, 0)
        while after is not None:
            answer, _ = self.do(Search(criteria, after, limit))
            assert isinstance(answer, Found)
            found += [((each.queue, each.sequence), each.id) for each in answer.messages]
            after = answer.after
        if expected == self.model.search(criteria):  # Else time has passed from page to page.
            assert found == expected

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        place = self.any_delayed(pick)
        answer, _ = self.do(Cancel(*place))
        assert answer == self.model.cancel(place)

    @rule(pick=picks, ns=st.integers(-20, 40))
    def reschedule(self, pick: int, ns: int) -> None:
        place = self.any_delayed(pick)
        visible_at = self.clock + ns
        answer, now = self.do(Reschedule(*place, visible_at))
        assert answer == self.model.reschedule(place, visible_at, now)

    def any_delayed(self, pick: int) -> Place:
        """Mostly of a message that is delayed."""
        there = [message for queue in self.model.queues for message in queue.messages]
        delayed = [message.id for message in there if message.state == "delayed"]
        choices = [delayed, delayed, delayed, self.places][pick % 4] or [(1, 1)]
        return choices[pick // 4 % len(choices)]

    @rule(name=names, to=st.just("") | names, step=st.integers(1, 3))
    def redrive(self, name: str, to: str, step: int) -> None:
        queue = self.model.queue(name)
        sequences = list(range(1, queue.last_sequence + 2, step)) if queue else [1]
        answer, now = self.do(Redrive(name, sequences, to))
        assert answer == self.model.redrive(name, sequences, to, now)

    @rule(name=names, really=st.sampled_from([False, False, True]))
    def purge(self, name: str, really: bool) -> None:
        if really:
            answer, _ = self.do(Purge(name))
            expected = self.model.purge(name, answer.after if isinstance(answer, Purged) else None)
            assert (answer.deleted if isinstance(answer, Purged) else answer) == expected

    # Damage

    @rule(pick=picks, size=st.sampled_from([1, 1, 400]))
    def damage(self, pick: int, size: int) -> None:
        """A part of the log cannot be read any more, from the bytes of some message on."""
        self.settle()
        there = [
            ((queue.number, sequence), row)
            for queue in self.engine.queues.values()
            for sequence in range(1, queue.last_sequence + 1)
            if (row := queue.rows.get(sequence)) and row.body_bytes + row.key_bytes + row.headers_bytes
        ]
        if not there:
            return
        start = there[pick % len(there)][1].position
        extents = [(place, row.position, row.body_bytes + row.key_bytes + row.headers_bytes) for place, row in there]
        hit = [place for place, position, length in extents if position < start + size and start < position + length]
        fresh = [place for place in hit if self.state_of(place) != "damaged"]
        after: Place | None = (0, 0)
        count = 0
        while after is not None:
            decision = self.engine.decide(SetAside([(start, start + size)], after), now=self.now())
            self.apply(list(decision.events))
            assert isinstance(decision.answer, Aside)
            count, after = count + decision.answer.messages, decision.answer.after
        assert count == len(fresh)
        for place in fresh:
            self.model.set_aside(place)

    def state_of(self, place: Place) -> str:
        found = self.model.find(place)
        assert found
        return found[1].state

    @rule(pick=picks)
    def restore(self, pick: int) -> None:
        self.settle()
        there = [(queue.number, message.sequence) for queue in self.model.queues for message in queue.messages]
        damaged = [place for place in there if self.state_of(place) == "damaged"]
        chosen = (damaged if damaged and pick % 4 else there)[pick // 4 % 3 :: 3]
        _, now = self.do(Restore(chosen))
        for place in chosen:
            self.model.restore(place, now)

    @rule(pick=picks)
    def delete_message(self, pick: int) -> None:
        self.settle()
        place = self.any_place(pick)
        answer, _ = self.do(Delete(*place))
        assert answer == self.model.delete_message(place)

    @rule(pick=picks)
    def carry(self, pick: int) -> None:
        """Housekeeping moves some messages to the end of the log; nobody notices."""
        self.settle()
        extents = []
        for queue in self.engine.queues.values():
            for sequence in range(1 + pick % 3, queue.last_sequence + 1, 1 + pick % 4):
                if row := queue.rows.get(sequence):
                    extent = self.log.read(row.position, row.body_bytes + row.key_bytes + row.headers_bytes)
                    extents.append((queue.number, sequence, row.position, extent))
        self.do(Carry(extents))

    @rule(ns=st.integers(1, 70), noticed=st.booleans())
    def pass_time(self, ns: int, noticed: bool) -> None:
        self.clock += ns
        if noticed:
            self.settle()

    # Crashes and restarts

    @rule()
    def commit(self) -> None:
        self.commit_log()
        self.committed = copy.deepcopy(self.model)

    @rule()
    def crash(self) -> None:
        """What was not committed never happened."""
        self.close()
        self.open()
        self.model = copy.deepcopy(self.committed)
        self.settle()
        self.agree()

    @rule()
    def restart(self) -> None:
        self.settle()
        settled_at = self.clock
        self.commit()
        live = self.engine
        self.close()
        self.open()
        # The same, byte for byte, once time has caught up.
        self.engine.advance(settled_at)
        assert state_of(self.engine) == state_of(live)

    @rule()
    @precondition(lambda self: self.engine.time)
    def snapshot(self) -> None:
        self.commit()
        end = self.log.appended
        if self.log.snapshots and self.log.snapshots[0].offset == end.offset:
            return  # Nothing has happened since the last one.
        self.log.write_snapshot(self.engine.sections(), end, self.engine.time)
        self.log.publish_snapshot(end.offset)

    # The comparison

    @invariant()
    def agree(self) -> None:
        assert list(self.engine.numbers) == [queue.name for queue in self.model.queues]
        assert list(self.engine.queues) == [queue.number for queue in self.model.queues]
        moved: dict[Place, Place] = {}
        for queue in self.model.queues:
            self.agree_on(queue)
            for message in queue.messages:
                if message.id != (queue.number, message.sequence):
                    moved[message.id] = (queue.number, message.sequence)
        for about, (body, place) in self.model.versions.items():
            version = self.engine.history.get(*about)
            assert version is not None
            assert (version.digest, version.queue, version.sequence) == (content_digest(body), *place)
        assert self.engine.moved == moved
        assert self.engine.origins == {place: origin for origin, place in moved.items()}
        given = {(queue.number, each.sequence): each.reason for queue in self.model.queues for each in queue.messages}
        assert self.engine.reasons.by_place == {place: reason for place, reason in given.items() if reason}

    def agree_on(self, queue: Queue) -> None:
        mine = self.engine.queues[queue.number]
        assert (mine.name, mine.settings, mine.last_sequence) == (queue.name, queue.settings, queue.last_sequence)
        assert mine.rows.count == len(queue.messages)
        assert (mine.ready, mine.leases.live, mine.delayed.live) == (
            queue.count("ready"),
            queue.count("leased"),
            queue.count("delayed"),
        )
        assert (mine.kept, mine.damaged) == (queue.count("kept"), queue.count("damaged"))
        assert mine.digests == {
            sha256(message.new.body).digest(): message.sequence for message in queue.messages if message.hashed
        }
        for consumer, cursor in queue.cursors.items():
            assert mine.groups.cursor(self.engine.names.known(consumer)) == cursor
        for message in queue.messages:
            self.agree_on_slots(mine, message)
            row = mine.rows.get(message.sequence)
            assert row is not None
            extent = self.log.read(row.position, row.body_bytes + row.key_bytes + row.headers_bytes)
            assert extent == message.new.body + message.new.key + message.new.headers
            assert State(row.state).name.lower() == message.state
            assert (row.visible_at, row.expires_at, row.created) == (
                message.visible_at,
                message.expires_at,
                message.created,
            )
            assert (row.receives, self.engine.names.texts[row.consumer]) == (message.receives, message.consumer)

    def agree_on_slots(self, mine: EngineQueue, message: Message) -> None:
        for consumer in ("", "me", "you", "they"):
            number, expected = self.engine.names.known(consumer), message.slots.get(consumer)
            slot = mine.groups.slot(number, message.sequence) if number or not consumer else None
            assert (slot is None) == (expected is None), (consumer, message)
            if slot and expected:
                assert slot.state == ["", "awaited", "stored", "declined", "held"].index(expected.state)
            if slot and expected and expected.state in ("awaited", "held"):
                assert (slot.size, slot.value) == (expected.deliveries, expected.due_at)


def _as_seen(message: Message) -> tuple[object, ...]:
    new = message.new
    return (
        message.id,
        new.body + new.key + new.headers,
        (len(new.body), len(new.key), len(new.headers)),
        (new.content_type, new.sender, new.priority),
        (message.receives, message.created, message.visible_at),
    )


def _no_queue(name: str) -> Refused:
    return Refused(Reason.NO_QUEUE, name)


EngineMachine.TestCase.settings = effort(100, steps=60)
test_the_engine_and_its_log_behave_like_the_model = pytest.mark.timeout(600)(EngineMachine.TestCase)


@pytest.mark.parametrize("seed", range(3000 if LONG else 20))
def test_a_long_life_goes_as_the_model_says(seed: int) -> None:
    """The same rules in random order, many more of them: what takes a deep past to go wrong."""
    random = Random(seed)
    machine = EngineMachine()
    try:
        machine.begin([random_settings(random) for _ in range(3)])
        for _ in range(800):
            random_step(machine, random)
            if random.random() < 0.2:
                machine.agree()
        machine.restart()
        machine.agree()
    finally:
        machine.teardown()


def random_step(machine: EngineMachine, random: Random) -> None:
    pick = random.randrange(1 << 16)
    name = random.choice("abcd")
    consumer = random.choice([None, None, "", "me", "you"])
    odds = [30, 40, 20, 10, 20, 2, 1, 4, 10, 3, 2, 5, 2, 4, 3, 15, 15, 5, 5, 15, 1, 8, 4, 3]
    match random.choices(range(len(odds)), odds)[0]:
        case 0:
            machine.publish(name, [random_message(random) for _ in range(random.randint(1, 4))])
        case 1:
            lease_ns, confirm = random.choice([None, None, 0, 7, 60]), random.random() < 0.9
            machine.fetch(name, random.randint(1, 4), lease_ns, consumer or "", confirm, random.random() < 0.5)
        case 2:
            machine.finish(pick, consumer)
        case 3:
            machine.release(pick, consumer, random.choice([0, 0, 1, 5, 20]))
        case 4:
            machine.pass_time(random.randint(1, 30), noticed=random.random() < 0.5)
        case 5:
            machine.create_or_update(name, random_settings(random))
        case 6:
            machine.delete(name, really=True)
        case 7:
            machine.carry(pick)
        case 8:
            machine.commit()
        case 9:
            random.choice([machine.crash, machine.restart])()
        case 10:
            machine.snapshot()
        case 12:
            machine.cancel(pick)
        case 13:
            machine.reschedule(pick, random.randint(-20, 40))
        case 14:
            machine.redrive(name, random.choice(["", "", *"abcd"]), random.randint(1, 3))
        case 15:
            messages = [random_message(random) for _ in range(random.randint(1, 4))]
            machine.publish_topics(messages, random.choice(["", "", name]))
        case 16:
            delivery, delay_ns = random.choice([None, None, 1, 2]), random.choice([0, 0, 1, 5, 20])
            machine.settle_one(
                pick,
                random.choice(OUTCOMES),
                consumer,
                delivery,
                delay_ns,
                random.choice(REASONS),
                random.random() < 0.5,
            )
        case 17:
            picked = [(random.randrange(1 << 16), random.choice(OUTCOMES), consumer) for _ in range(4)]
            machine.settle_several(picked)
        case 18:
            machine.extend(
                pick, consumer, random.choice([None, None, 1, 2]), random.choice([0, 5, 60]), random.random() < 0.5
            )
        case 19:
            who = random.choice(["me", "you", "they"])
            machine.receive(name, who, random.randint(1, 4), random.choice([0, 7, 60]))
        case 20:
            machine.purge(name, really=True)
        case 21:
            machine.damage(pick, random.choice([1, 1, 400]))
        case 22:
            machine.restore(pick)
        case 23:
            machine.delete_message(pick)
        case _:
            states = random.sample(["ready", "delayed", "leased", "kept", "damaged"], random.randint(0, 4))
            topic, about = random.choice(["", "t.*", "t.a", "u"]), random.choice(["", "", "o"])
            reason = random.choice(["", "", "bad *", "*timeout*"])
            machine.search(random.choice(["", name]), topic, about, set(states), random.randint(1, 5), reason)


def random_settings(random: Random) -> QueueSettings:
    return QueueSettings(
        redrive_policy=RedrivePolicy(random.randint(1, 3), random.choice("abcd")) if random.random() < 0.5 else None,
        retention_ns=random.choice([NEVER_NS, NEVER_NS, 1, 30, 200]),
        visibility_ns=random.choice([0, 10, 40]),
        delay_ns=random.choice([0, 0, 0, 1, 5, 20]),
        deduplication=random.random() < 0.5,
        retries=random.randint(0, 3),
        confirmations=random.choice([1, 1, 2]),
        detect_unchanged=random.random() < 0.5,
        keep=random.choice(KEEPS),
        topics=random.choice(PATTERNS),
        confirm=random.random() < 0.8,
    )


def random_message(random: Random) -> NewMessage:
    return NewMessage(
        random.choice([b"", b"same", b"other", b"x" * 300, b"%d" % random.randrange(50)]),
        content_type=random.choice(["", "text/plain"]),
        priority=random.choice([0, 0, 1, 9]),
        sender=random.choice(["", "s"]),
        key=random.choice([b"", b"k"]),
        headers=random.choice([b"", b"h"]),
        object=random.choice(["", "o", "p", "a"]),
        topics=random.choice([(), (), ("t.a",), ("t.b", "u"), ("u",)]),
        delay_ns=random.choice([None, None, 0, 1, 5, 20]),
        expires_ns=random.choice([None, None, None, NEVER_NS, 3, 50]),
    )
