"""Receivers against a model too simple to be wrong, through restarts; and what they promise, one claim a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.engine import Engine
from penstock.engine.slots import AWAITED, STORED
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Pulled, Receipts, Refused, StoredResult
from penstock.model.commands import (
    FROM_NEWEST,
    FROM_NEXT,
    AwaitResult,
    Carry,
    CreateQueue,
    Draw,
    Finish,
    NewMessage,
    PublishRun,
    Pull,
    Release,
)
from penstock.model.settings import QueueSettings
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
