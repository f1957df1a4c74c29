"""Receivers against a model too simple to be wrong, through restarts; and what they promise, one claim a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.decide import pull as pull_module
from penstock.engine.engine import Engine
from penstock.engine.slots import AWAITED, STORED
from penstock.errors import Reason
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Answer, Pulled, Receipts, Refused, StoredResult, WrongResult
from penstock.model.commands import (
    FROM_NEWEST,
    FROM_NEXT,
    AwaitResult,
    Carry,
    CreateQueue,
    Draw,
    Finish,
    NewMessage,
    Publish,
    PublishRun,
    Pull,
    Release,
    UpdateQueue,
)
from penstock.model.events import (
    Delivered,
    DeliveredRun,
    Event,
    HandedToReceiver,
    HandedToReceiverRun,
    ReceiverMoved,
    ResultStored,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from penstock.storage.memory import MemoryLog
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of

KEEPS = QueueSettings(keep="all")
QUEUES = ("a", "b")

# ── The model ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Message:
    body: bytes
    visible_at: int
    expires_at: int
    touched: bool = False  # By a worker: it has had it, or has finished it.


@dataclass
class Receiver:
    cursor: int = 0
    owed: dict[int, tuple[int, int]] = field(default_factory=dict)  # When it is due again, deliveries so far.
    results: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Model:
    messages: dict[str, dict[int, Message]] = field(default_factory=lambda: {name: {} for name in QUEUES})
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    receivers: dict[tuple[str, str], Receiver] = field(default_factory=dict)

    def receiver(self, queue: str, name: str) -> Receiver:
        return self.receivers.setdefault((queue, name), Receiver())

    def expire(self, now: int) -> None:
        for queue, messages in self.messages.items():
            for sequence in [each for each, message in messages.items() if message.expires_at <= now]:
                self.remove(queue, sequence)

    def remove(self, queue: str, sequence: int) -> None:
        del self.messages[queue][sequence]
        for (name, _), receiver in self.receivers.items():
            if name == queue:
                receiver.owed.pop(sequence, None)
                receiver.results.pop(sequence, None)

    def store(self, name: str, results: list[tuple[str, int, bytes]]) -> list[tuple[str, int]]:
        """Those that are wrong."""
        wrong = []
        for queue, sequence, result in results:
            if sequence not in self.messages[queue]:
                wrong.append((queue, sequence))
                continue
            receiver = self.receiver(queue, name)
            receiver.results.setdefault(sequence, result)
            receiver.owed.pop(sequence, None)
        return wrong

    def draw(self, name: str, draw: Draw, now: int) -> list[int]:
        known = self.receivers.get((draw.queue, name), Receiver())
        there = self.messages[draw.queue]
        hidden = [each for each, message in there.items() if message.visible_at > now and not message.touched]
        if draw.start == FROM_NEXT:
            return []
        if draw.start == FROM_NEWEST:
            fresh = [each for each in sorted(there) if each > known.cursor and each not in hidden][-1:]
        else:
            beginning = max(known.cursor, draw.start - 1)
            fresh = [
                each for each in sorted(there) if each > beginning and each < min(hidden_behind(hidden, beginning))
            ]
            fresh = fresh[: draw.most]
        if fresh:
            receiver = self.receiver(draw.queue, name)
            receiver.cursor = fresh[-1]
            for sequence in fresh:
                if draw.retries and sequence not in receiver.results:
                    receiver.owed[sequence] = (now + draw.fail_ns, 1)
            return fresh
        return self.draw_again(known, draw, now) if draw.start >= 0 and draw.retries else []

    def draw_again(self, receiver: Receiver, draw: Draw, now: int) -> list[int]:
        chosen = sorted(sequence for sequence, (time, _) in receiver.owed.items() if time <= now)[: draw.most]
        for sequence in chosen:
            deliveries = receiver.owed.pop(sequence)[1] + 1
            if deliveries <= draw.retries:
                receiver.owed[sequence] = (now + draw.fail_ns, deliveries)
        return chosen


def hidden_behind(hidden: list[int], cursor: int) -> list[int]:
    return [each for each in hidden if each > cursor] or [1 << 60]


queues = st.sampled_from(QUEUES)
names = st.sampled_from(["r", "s"])
picks = st.integers(0, 1 << 16)
draws = st.builds(
    Draw,
    queue=queues,
    start=st.sampled_from([0, 0, 0, 0, FROM_NEWEST, FROM_NEXT, 1, 2, 5, 30]),
    most=st.sampled_from([1, 2, 20]),
    retries=st.sampled_from([0, 1, 2]),
    fail_ns=st.sampled_from([1, 10, 40]),
)


class ReceiversMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.model = Model()

    @initialize(retentions=st.tuples(st.sampled_from([NEVER_NS, 100]), st.sampled_from([NEVER_NS, 100])))
    def begin(self, retentions: tuple[int, int]) -> None:
        for name, retention_ns in zip(QUEUES, retentions, strict=True):
            self.rig.do(CreateQueue(name, QueueSettings(keep="all", retention_ns=retention_ns, visibility_ns=15)))

    def settle(self) -> None:
        while self.rig.engine.next_deadline <= self.rig.now():
            self.rig.settle()
        self.rig.clock = self.rig.now()
        self.model.expire(self.rig.clock)

    def number(self, queue: str) -> int:
        return self.rig.engine.numbers[queue]

    # Messages, and workers

    @rule(
        queue=queues,
        count=st.sampled_from([1, 2, RUN_MESSAGES_MIN, 40]),
        delay_ns=st.sampled_from([None, None, None, 20]),
        expires_ns=st.sampled_from([None, None, 25]),
    )
    def publish(self, queue: str, count: int, delay_ns: int | None, expires_ns: int | None) -> None:
        self.settle()
        now = self.rig.now()
        settings = self.rig.engine.queues[self.number(queue)].settings
        lifetime = settings.retention_ns if expires_ns is None else expires_ns
        bodies = [b"%b %d" % (queue.encode(), self.model.last[queue] + 1 + index) for index in range(count)]
        answer = self.rig.do(PublishRun(queue, NewMessage(b"", delay_ns=delay_ns, expires_ns=expires_ns), bodies))
        if count >= RUN_MESSAGES_MIN:
            assert answer == Receipts(self.number(queue), self.model.last[queue] + 1, count)
        for body in bodies:
            self.model.last[queue] += 1
            message = Message(body, now + (delay_ns or 0), min(now + lifetime, NEVER_NS))
            self.model.messages[queue][self.model.last[queue]] = message

    @rule(queue=queues, count=st.sampled_from([1, 3, 20]), confirm=st.booleans())
    def work(self, queue: str, count: int, confirm: bool) -> None:
        """Workers fetch, or are handed messages: no receiver notices."""
        self.settle()
        for delivery in self.rig.fetch(queue, count, confirm=confirm):
            self.model.messages[queue][delivery.sequence].touched = True

    @rule(queue=queues, pick=picks, give_back=st.booleans())
    def finish(self, queue: str, pick: int, give_back: bool) -> None:
        """Anyone may finish by id: also a message that is delayed, which is then no longer waited for."""
        self.settle()
        there = sorted(self.model.messages[queue])
        if there:
            sequence = there[pick % len(there)]
            if give_back:
                self.rig.do(Release(self.number(queue), sequence, delay_ns=30))
            else:
                self.rig.do(Finish(self.number(queue), sequence))
                self.model.messages[queue][sequence].touched = True

    # Receivers

    @rule(
        name=names,
        wanted=st.lists(draws, min_size=1, max_size=2, unique_by=lambda draw: draw.queue),
        answers=st.lists(st.tuples(queues, picks, st.sampled_from([b"", b"yes", b"no"])), max_size=3),
    )
    def pull(self, name: str, wanted: list[Draw], answers: list[tuple[str, int, bytes]]) -> None:
        self.settle()
        results = [(queue, self.sequence(queue, pick, name), result) for queue, pick, result in answers]
        results = list({(queue, sequence): (queue, sequence, result) for queue, sequence, result in results}.values())
        now = self.rig.now()
        answer = self.rig.do(Pull(name, wanted, results))
        assert isinstance(answer, Pulled)
        wrong = self.model.store(name, results)
        assert [(each.queue, each.sequence) for each in answer.wrong] == wrong
        expected = {} if wrong else {draw.queue: self.model.draw(name, draw, now) for draw in wanted}
        assert {drawn.queue: drawn.sequences for drawn in answer.drawn} == {
            queue: sequences for queue, sequences in expected.items() if sequences
        }
        for drawn in answer.drawn:
            bodies = [self.rig.log.read(*place) for place in zip(drawn.positions, drawn.body_bytes, strict=True)]
            assert bodies == [self.model.messages[drawn.queue][each].body for each in drawn.sequences]
        if not answer:
            assert answer.last == {draw.queue: self.model.last[draw.queue] for draw in wanted}
        if not answer and not results:
            assert answer.due_at == self.next_due(name, wanted)

    def sequence(self, queue: str, pick: int, name: str) -> int:
        """Mostly of a message that the receiver owes something for."""
        receiver = self.model.receivers.get((queue, name), Receiver())
        choices = [sorted(receiver.owed), sorted(self.model.messages[queue]), range(1, self.model.last[queue] + 3)]
        chosen = choices[pick % 5] if pick % 5 < 3 and choices[pick % 5] else choices[0] or choices[1] or choices[2]
        return chosen[pick // 5 % len(chosen)]

    def next_due(self, name: str, wanted: list[Draw]) -> int:
        """As far as the engine knows it, which is before the pull: nothing that is due was taken by it."""
        owed = [
            time
            for draw in wanted
            if draw.retries and draw.start >= 0
            for time, _ in self.model.receivers.get((draw.queue, name), Receiver()).owed.values()
        ]
        return min(owed, default=NEVER_NS)

    @rule(queue=queues, pick=picks, name=st.sampled_from(["", "r", "s", "unknown"]))
    def ask_for_a_result(self, queue: str, pick: int, name: str) -> None:
        self.settle()
        sequence = self.sequence(queue, pick, "r")
        answer = self.rig.do(AwaitResult(queue, sequence, name))
        if sequence not in self.model.messages[queue]:
            assert answer == Refused(Reason.NO_MESSAGE)
            return
        stored = {
            each: receiver.results[sequence]
            for (of, each), receiver in self.model.receivers.items()
            if of == queue and sequence in receiver.results and name in ("", each)
        }
        if isinstance(answer, StoredResult):
            assert self.rig.log.read(answer.position, answer.size) == stored[answer.receiver]
        else:
            assert not stored
            assert not answer

    # Housekeeping, time and restarts

    @rule(pick=picks)
    def carry(self, pick: int) -> None:
        self.settle()
        results = []
        for queue in self.rig.engine.queues.values():
            for pairs, _ in queue.groups.tables():
                for sequence, receiver in pairs.tolist()[pick % 3 :: 1 + pick % 2]:
                    if stored := queue.groups.result(sequence, receiver):
                        data = self.rig.log.read(stored.position, stored.size)
                        results.append((queue.number, sequence, receiver, stored.position, data))
        self.rig.do(Carry([], results))

    @rule(ns=st.integers(1, 45))
    def pass_time(self, ns: int) -> None:
        self.rig.clock = self.rig.now() + ns

    @rule(how=st.sampled_from(["replay", "snapshot", "snapshot and replay"]))
    def restart(self, how: str) -> None:
        self.settle()
        live = self.rig.engine
        if how == "replay":
            self.rig.engine = self.rig.replayed()
        elif how == "snapshot":
            self.rig.engine = self.rig.restored()
        else:
            self.rig.engine = self.from_the_last_snapshot()
        assert state_of(self.rig.engine) == state_of(live)

    @rule()
    def take_snapshot(self) -> None:
        self.rig.replayed()  # Commits.
        self.rig.take_snapshot()

    def from_the_last_snapshot(self) -> Engine:
        self.rig.replayed()
        log = MemoryLog(self.rig.log.durable)
        log.snapshot = self.rig.log.snapshot
        recovered = log.recover()
        engine = Engine()
        if recovered.sections is not None:
            engine.restore(recovered.sections)
        for event, position in recovered.events:
            engine.evolve(event, position)
        engine.advance(self.rig.clock)
        return engine

    # The comparison

    @invariant()
    def agree(self) -> None:
        self.settle()
        for name in QUEUES if self.rig.engine.queues else ():
            groups = self.rig.engine.queues[self.number(name)].groups
            texts = self.rig.engine.names.texts
            slots: dict[tuple[str, int], tuple[int, ...]] = {}
            for pairs, table in groups.tables():
                for (sequence, receiver), (state, _, size, value) in zip(pairs.tolist(), table.tolist(), strict=True):
                    slots[texts[receiver], sequence] = (state, size, value if state == AWAITED else 0)
            expected: dict[tuple[str, int], tuple[int, ...]] = {}
            known = {each: receiver for (queue, each), receiver in self.model.receivers.items() if queue == name}
            for each, receiver in known.items():
                for sequence, (time, deliveries) in receiver.owed.items():
                    expected[each, sequence] = (AWAITED, deliveries, time)
                for sequence, result in receiver.results.items():
                    expected[each, sequence] = (STORED, len(result), 0)
            assert slots == expected
            assert len(groups) == len(known)
            for each, receiver in known.items():
                assert groups.cursor(self.rig.engine.names.known(each)) == receiver.cursor

    @invariant()
    def workers_see_what_is_left_for_them(self) -> None:
        for name in QUEUES if self.rig.engine.queues else ():
            seen = self.rig.describe(name)
            assert (
                seen.messages == seen.ready + seen.leased + seen.delayed + seen.kept == len(self.model.messages[name])
            )


ReceiversMachine.TestCase.settings = effort(120, steps=50)
test_receivers_behave_like_the_model = ReceiversMachine.TestCase


# ── One claim a test ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.do(CreateQueue("q", KEEPS))
    return made


def pulled(rig: Rig, receiver: str = "r", queue: str = "q", **options: Any) -> list[int]:
    answer = pull(rig, receiver, queue, **options)
    return [sequence for drawn in answer.drawn for sequence in drawn.sequences]


def pull(rig: Rig, receiver: str = "r", queue: str = "q", **options: Any) -> Pulled:
    options = {"most": 100} | options
    answer = rig.do(Pull(receiver, [Draw(queue, **options)]))
    assert isinstance(answer, Pulled), answer
    return answer


def send_result(rig: Rig, sequence: int, result: bytes = b"done", receiver: str = "r", queue: str = "q") -> Answer:
    return rig.do(Pull(receiver, results=[(queue, sequence, result)]))


def test_each_receiver_has_every_message_once_and_in_order(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig, "one", most=2) == [1, 2]
    assert pulled(rig, "other") == [1, 2, 3]
    assert pulled(rig, "one") == [3]
    assert pulled(rig, "one") == pulled(rig, "other") == []


def test_priority_does_not_change_the_order_for_receivers(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"low"), NewMessage(b"high", priority=9))
    assert pulled(rig) == [1, 2]
    assert rig.bodies("q") == [b"high", b"low"]


def test_workers_and_receivers_do_not_notice_each_other(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    [first] = rig.fetch("q")
    rig.finish(first)
    [handed_over] = rig.fetch("q", confirm=False)
    assert (handed_over.sequence, rig.describe("q").kept) == (2, 2)
    assert pulled(rig) == [1, 2, 3]
    assert rig.bodies("q") == [b"3"]


def test_what_workers_are_done_with_cannot_be_finished_or_released_again(rig: Rig) -> None:
    rig.publish("q", b"1")
    [delivery] = rig.fetch("q")
    rig.finish(delivery)
    assert rig.finish(delivery) == rig.release(delivery) == Refused(Reason.NO_MESSAGE)
    seen = rig.describe("q")
    assert (seen.messages, seen.ready, seen.leased, seen.kept) == (1, 0, 0, 1)


def test_a_dropped_message_stays_for_receivers(rig: Rig) -> None:
    rig.do(UpdateQueue("q", QueueSettings(keep="all", retries=1, visibility_ns=SECOND_NS)))
    rig.publish("q", b"1")
    rig.fetch("q")
    rig.wait(2)
    assert rig.describe("q").kept == 1
    assert pulled(rig) == [1]


def test_kept_messages_expire_and_a_snapshot_knows_them(rig: Rig) -> None:
    rig.do(UpdateQueue("q", QueueSettings(keep="all", retention_ns=10 * SECOND_NS)))
    rig.publish("q", b"1", b"2")
    rig.finish(rig.fetch("q")[0])
    for engine in (rig.replayed(), rig.restored()):
        assert (engine.queues[1].kept, engine.queues[1].ready) == (1, 1)
        assert state_of(engine) == state_of(rig.engine)
    rig.wait(11)
    assert rig.describe("q").messages == rig.describe("q").kept == 0


def test_a_receiver_stops_before_a_message_that_is_not_visible_yet(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1"), NewMessage(b"2", delay_ns=10 * SECOND_NS), NewMessage(b"3"))
    assert pulled(rig) == [1]
    assert pulled(rig) == []
    rig.wait(10)
    assert pulled(rig) == [2, 3]


def test_a_message_that_a_worker_gave_back_with_a_delay_stops_no_receiver(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    rig.release(rig.fetch("q")[0], delay_ns=100 * SECOND_NS)
    assert pulled(rig) == [1, 2]


def test_what_has_gone_is_passed_over(rig: Rig) -> None:
    rig.publish("q", b"1", NewMessage(b"2", expires_ns=SECOND_NS), b"3")
    rig.wait(2)
    assert pulled(rig) == [1, 3]


def test_a_receiver_that_comes_late_finds_the_first_living_message(rig: Rig) -> None:
    rig.do(PublishRun("q", NewMessage(b"", expires_ns=SECOND_NS), [b"x"] * 5000))
    rig.publish("q", b"survivor")
    rig.do(PublishRun("q", NewMessage(b"", expires_ns=SECOND_NS), [b"x"] * 5000))
    rig.publish("q", b"newest")
    rig.wait(2)
    assert rig.describe("q").messages == 2
    assert pulled(rig, most=10) == [5001, 10002]
    assert pulled(rig, "other", start=5002, most=10) == [10002]


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (3, [3, 4]), (FROM_NEWEST, [4])]
)
def test_where_a_new_receiver_starts(rig: Rig, start: int, expected: list[int]) -> None:
    rig.publish("q", b"1", b"2", b"3", b"4")
    assert pulled(rig, start=start) == expected
    rig.publish("q", b"5")
    assert pulled(rig) == [5]


@pytest.mark.parametrize("start", [FROM_NEXT, 5, 100])
def test_a_pull_that_brings_no_message_leaves_the_cursor_where_it_was(rig: Rig, start: int) -> None:
    rig.publish("q", b"1", b"2", b"3", b"4")
    before = len(rig.events)
    assert pulled(rig, start=start) == []
    assert len(rig.events) == before
    assert pulled(rig, most=2) == [1, 2]
    assert pulled(rig, start=start) == []
    assert pulled(rig) == [3, 4]


def test_a_cursor_never_goes_back(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig) == [1, 2, 3]
    for start in (0, 1, 2, FROM_NEWEST):
        assert pulled(rig, start=start) == []


def test_a_start_ahead_of_the_queue_gets_that_very_message_once_it_is_there(rig: Rig) -> None:
    assert pulled(rig, start=3) == []
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig, start=3) == [3]


def test_a_cursor_that_an_older_version_moved_ahead_stays_there(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    pulled(rig, most=1)
    receiver = rig.engine.names.known("r")
    rig.engine.evolve(ReceiverMoved(rig.engine.time, 1, 2, receiver), 0)
    assert pulled(rig) == [3]


def test_the_newest_message_is_the_newest_that_is_visible(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3", delay_ns=SECOND_NS))
    assert pulled(rig, start=FROM_NEWEST) == [2]
    rig.wait(1)
    assert pulled(rig, start=FROM_NEWEST) == [3]


def test_a_receiver_that_gets_nothing_leaves_no_trace(rig: Rig) -> None:
    before = len(rig.events)
    assert pulled(rig, "nobody") == []
    assert len(rig.events) == before
    assert not rig.engine.queues[1].groups


def test_what_has_no_result_is_delivered_again_when_there_is_nothing_new(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    options: dict[str, Any] = {"retries": 2, "fail_ns": 10 * SECOND_NS}
    assert pulled(rig, **options) == [1, 2]
    send_result(rig, 2)
    rig.wait(10)
    rig.publish("q", b"3")
    assert pulled(rig, **options) == [3]
    assert pulled(rig, **options) == [1]
    assert pulled(rig, **options) == []
    rig.wait(10)
    assert pulled(rig, **options) == [1, 3]
    rig.wait(10)
    assert pulled(rig, **options) == [3]
    rig.wait(10)
    assert pulled(rig, **options) == []
    assert not list(rig.engine.queues[1].groups.tables())[1:]


def test_what_is_due_again_leaves_by_id_whatever_fell_due_first(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * 600)
    assert pulled(rig, most=600, retries=5, fail_ns=SECOND_NS) == list(range(1, 601))
    rig.wait(1)
    assert pulled(rig, most=400, retries=5, fail_ns=SECOND_NS) == list(range(1, 401))
    rig.wait(1)
    for first in range(1, 601, 100):
        assert pulled(rig, most=100, retries=5, fail_ns=100 * SECOND_NS) == list(range(first, first + 100))
    assert pulled(rig, retries=5, fail_ns=SECOND_NS) == []


def test_without_retries_nothing_is_remembered(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    assert pulled(rig, retries=0) == [1, 2]
    assert all(isinstance(event, HandedToReceiver) for event in rig.events[-2:])
    assert not list(rig.engine.queues[1].groups.tables())
    rig.wait(1000)
    assert pulled(rig, retries=2, fail_ns=1) == []


def test_a_pull_that_wants_no_retries_gets_none(rig: Rig) -> None:
    rig.publish("q", b"1")
    assert pulled(rig, retries=1, fail_ns=SECOND_NS) == [1]
    rig.wait(2)
    assert pulled(rig, retries=0) == []
    assert pulled(rig, retries=1, fail_ns=SECOND_NS) == [1]


def test_a_pull_says_when_something_is_due_again(rig: Rig) -> None:
    rig.publish("q", b"1")
    assert pull(rig, retries=1, fail_ns=SECOND_NS).drawn
    delivered_at = rig.engine.time
    empty = pull(rig, retries=1, fail_ns=SECOND_NS)
    assert (empty.due_at, empty.last) == (delivered_at + SECOND_NS, {"q": 1})
    assert not empty


def test_the_first_result_counts(rig: Rig) -> None:
    rig.publish("q", b"1")
    pulled(rig)
    assert send_result(rig, 1, b"first") == send_result(rig, 1, b"second") == Pulled()
    answer = rig.do(AwaitResult("q", 1, "r"))
    assert isinstance(answer, StoredResult)
    assert rig.log.read(answer.position, answer.size) == b"first"
    assert sum(isinstance(event, ResultStored) for event in rig.events) == 1


def test_a_wrong_result_keeps_no_other_from_being_stored_but_nothing_is_delivered(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    assert pulled(rig, most=1) == [1]
    answer = rig.do(Pull("r", [Draw("q")], [("q", 7, b"x"), ("q", 1, b"good"), ("none", 1, b"x")]))
    assert isinstance(answer, Pulled)
    assert answer.wrong == [
        WrongResult("q", 7, Refused(Reason.NO_MESSAGE)),
        WrongResult("none", 1, Refused(Reason.NO_QUEUE)),
    ]
    assert not answer.drawn
    assert isinstance(rig.do(AwaitResult("q", 1)), StoredResult)
    assert pulled(rig) == [2]


def test_a_result_goes_with_its_message(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1", expires_ns=SECOND_NS))
    pulled(rig, retries=1, fail_ns=1)
    send_result(rig, 1)
    rig.wait(2)
    assert rig.do(AwaitResult("q", 1)) == Refused(Reason.NO_MESSAGE)
    assert not list(rig.engine.queues[1].groups.tables())
    assert send_result(rig, 1) == Pulled(wrong=[WrongResult("q", 1, Refused(Reason.NO_MESSAGE))])


def test_a_result_may_come_before_the_message_was_delivered_which_it_is_all_the_same(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * 20)
    send_result(rig, 3)
    assert pulled(rig, retries=1, fail_ns=1) == list(range(1, 21))
    rig.wait(1)
    assert pulled(rig, retries=1, fail_ns=1) == [each for each in range(1, 21) if each != 3]


def test_an_answer_is_bounded_in_bytes_but_one_message_always_fits(rig: Rig) -> None:
    large = b"x" * (FETCH_BYTES_MAX // 3)
    rig.publish("q", *[large] * 5)
    assert [pulled(rig), pulled(rig)] == [[1, 2, 3], [4, 5]]
    rig.do(CreateQueue("other", KEEPS))
    rig.publish("other", *[large] * 4)
    answer = rig.do(Pull("s", [Draw("q", most=9), Draw("other", most=9)]))
    assert isinstance(answer, Pulled)
    assert [(drawn.queue, drawn.sequences) for drawn in answer.drawn] == [("q", [1, 2, 3])]


def test_no_small_message_overtakes_a_large_one_that_finds_no_room(rig: Rig) -> None:
    large = NewMessage(b"x" * (FETCH_BYTES_MAX // 3))
    rig.publish("q", *[large] * 5, NewMessage(b"gone", expires_ns=SECOND_NS), b"", b"")
    rig.wait(2)
    assert [pulled(rig), pulled(rig)] == [[1, 2, 3], [4, 5, 7, 8]]


def test_a_start_counts_for_nothing_where_there_is_no_room_left(rig: Rig) -> None:
    rig.do(CreateQueue("other", KEEPS))
    rig.publish("q", b"x" * FETCH_BYTES_MAX)
    rig.publish("other", b"1", b"2", b"3")
    answer = rig.do(Pull("r", [Draw("q"), Draw("other", start=3, most=9)]))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["q"]
    assert pulled(rig, queue="other") == [1, 2, 3]


def test_a_queue_has_a_bounded_number_of_receivers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "RECEIVERS_MAX", 2)
    rig.publish("q", b"1", b"2")
    assert pulled(rig, "one", most=1) == pulled(rig, "two", most=1) == [1]
    assert rig.do(Pull("three", [Draw("q")])) == Refused(Reason.TOO_MANY_RECEIVERS, "2: q")
    refused = WrongResult("q", 1, Refused(Reason.TOO_MANY_RECEIVERS))
    assert send_result(rig, 1, receiver="three") == Pulled(wrong=[refused])
    assert pulled(rig, "one") == [2]


def test_a_deleted_queue_takes_its_receivers_along(rig: Rig) -> None:
    rig.publish("q", b"1")
    pulled(rig)
    rig.do(UpdateQueue("q", QueueSettings(keep="finished")))
    rig.finish(rig.fetch("q")[0])
    assert rig.describe("q").messages == 0
    assert not list(rig.engine.queues[1].groups.tables())


def test_a_carried_result_is_read_from_its_new_place(rig: Rig) -> None:
    rig.publish("q", b"1")
    send_result(rig, 1, b"kept")
    stored = rig.engine.queues[1].groups.result(1)
    assert stored is not None
    rig.do(Carry([], [(1, 1, stored.receiver, stored.position, b"kept"), (1, 1, stored.receiver, 999, b"gone")]))
    moved = rig.engine.queues[1].groups.result(1)
    assert moved is not None
    assert moved.position > stored.position
    assert rig.log.read(moved.position, moved.size) == b"kept"
    assert state_of(rig.replayed()) == state_of(rig.restored()) == state_of(rig.engine)


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def one_by_one(event: Event) -> list[Event]:
    if isinstance(event, DeliveredRun):
        facts = zip(event.sequence, event.created, event.receives, event.consumer, strict=True)
        return [Delivered(event.time, event.queue, *each, event.visible_at) for each in facts]
    if isinstance(event, HandedToReceiverRun):
        facts = zip(event.sequence, event.created, event.receives, event.consumer, strict=True)
        return [HandedToReceiver(event.time, event.queue, *each) for each in facts]
    return [event]


@effort(60)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100), st.integers(0, 1)), min_size=1, max_size=5))
def test_a_run_leaves_the_state_and_the_bytes_of_its_messages(steps: list[tuple[int, int, int]]) -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    now = 1
    commands = [CreateQueue("q", KEEPS)]
    for count, most, retries in steps:
        commands.append(Publish("q", [NewMessage(b"x")] * count))  # type: ignore[arg-type]
        commands.append(Pull("r", [Draw("q", most=most, retries=retries, fail_ns=30)]))  # type: ignore[arg-type]
    for command in commands:
        now += 10
        for event in together.decide(command, now).events:
            together.evolve(event, batch.add(event))
            for single in one_by_one(event):
                apart.evolve(single, other.add(single))
    assert (batch.count, batch.seal(now)) == (other.count, other.seal(now))
    assert state_of(together) == state_of(apart)
    later = Pull("r", [Draw("q", most=1000, retries=2, fail_ns=30)])
    assert together.decide(later, now + 100).answer == apart.decide(later, now + 100).answer


def test_a_run_is_read_back_as_its_messages(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * RUN_MESSAGES_MIN)
    decision = rig.engine.decide(Pull("r", [Draw("q", most=99, retries=1, fail_ns=5)]), rig.now())
    _, run = decision.events
    assert isinstance(run, DeliveredRun)
    batch = Batch(0, 0)
    batch.add(run)
    data = batch.seal(1)
    header = read_header(data)
    assert header is not None
    assert [event for event, _ in events_of(header, data[HEADER_BYTES:])] == one_by_one(run)


# ── Queues with workers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def working(rig: Rig) -> Rig:
    rig.do(CreateQueue("work", QueueSettings()))
    return rig


def test_in_a_queue_whose_messages_leave_a_pull_is_a_fetch(working: Rig) -> None:
    working.publish("work", b"1", b"2")
    options: dict[str, Any] = {"queue": "work", "retries": 2, "fail_ns": 10 * SECOND_NS}
    assert pulled(working, "one", most=1, **options) == [1]
    assert pulled(working, "other", **options) == [2]
    assert pulled(working, "one", **options) == []
    working.wait(10)
    assert pulled(working, "other", **options) == [1, 2]


def test_there_a_result_finishes_the_message(working: Rig) -> None:
    working.publish("work", b"1", b"2")
    pulled(working, queue="work", retries=1, fail_ns=SECOND_NS)
    assert send_result(working, 1, queue="work") == Pulled()
    assert working.describe("work").messages == 1
    refused = Refused(Reason.LEASE_GONE)
    assert send_result(working, 2, queue="work", receiver="s") == Pulled(wrong=[WrongResult("work", 2, refused)])
    assert working.do(AwaitResult("work", 2)) == Refused(Reason.NO_RESULTS, "work")


def test_there_a_pull_without_retries_takes_the_message_for_good(working: Rig) -> None:
    working.publish("work", b"1")
    assert pulled(working, queue="work") == [1]
    assert working.describe("work").messages == 0


@pytest.mark.parametrize("start", [FROM_NEWEST, FROM_NEXT, 1, 7])
def test_there_no_start_can_be_given(working: Rig, start: int) -> None:
    working.publish("q", b"1")
    answer = working.do(Pull("r", [Draw("q"), Draw("work", start=start)], [("q", 1, b"not stored")]))
    assert answer == Refused(Reason.NO_CURSOR, "work")
    assert not working.do(AwaitResult("q", 1))


def test_a_pull_of_several_queues_takes_from_all_that_have_something(working: Rig) -> None:
    working.do(CreateQueue("more", QueueSettings()))
    for queue in ("q", "work", "more"):
        working.publish(queue, b"x")
    answer = working.do(Pull("new", [Draw(queue, retries=1, fail_ns=9) for queue in ("work", "none", "q", "more")]))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["work", "q", "more"]
    assert state_of(working.replayed()) == state_of(working.engine)


def test_dead_letters_of_two_queues_do_not_take_the_same_place(rig: Rig) -> None:
    rig.create("dead")
    for name in ("w1", "w2"):
        rig.create(name, redrive_policy=RedrivePolicy(1, "dead"))
        rig.publish(name, b"x")
    wanted = [Draw(name, retries=1, fail_ns=SECOND_NS) for name in ("w1", "w2")]
    answer = rig.do(Pull("r", wanted))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["w1", "w2"]
    rig.wait(2)
    assert pulled(rig, queue="dead", retries=1, fail_ns=SECOND_NS) == [1, 2]
    assert send_result(rig, 2, queue="dead") == Pulled()
    assert rig.describe("dead").messages == 1
