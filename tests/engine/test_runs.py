"""Messages logged, fetched and finished together are the same, in memory and on disk, as one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Delivery, Done, Refused
from penstock.model.commands import CreateQueue, Fetch, Finish, FinishMany, NewMessage, Publish, PublishTopics
from penstock.model.events import (
    Event,
    FetchedRun,
    HandedOverRun,
    Logged,
    LoggedRun,
    MessageRun,
    QueuedRun,
    SucceededRun,
    Unchanged,
    UnchangedRun,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of
from tests.support.samples import queued_apart

BODIES = st.lists(st.binary(max_size=40), min_size=RUN_MESSAGES_MIN, max_size=90)
SETTINGS = st.builds(
    QueueSettings,
    delay_ns=st.sampled_from([0, 5_000]),
    retention_ns=st.sampled_from([NEVER_NS, 1_000_000]),
)


def one_by_one(run: LoggedRun) -> list[Logged]:
    names = (run.priority, run.content_type, run.sender, run.object, run.topics, run.lease_ns)
    keys = run.keys or [b""] * len(run.bodies)
    return [
        Logged(run.time, run.queue, run.sequence + index, run.visible_at, run.expires_at, *names, key, b"", b"", body)
        for index, (body, key) in enumerate(zip(run.bodies, keys, strict=True))
    ]


def unchanged_one_by_one(run: UnchangedRun) -> list[Unchanged]:
    names = (run.priority, run.content_type, run.sender, run.object, run.topics)
    return [
        Unchanged(run.time, run.queue, run.sequence + index, *names, to_queue, to_sequence, key)
        for index, (to_queue, to_sequence, key) in enumerate(
            zip(run.to_queue, run.to_sequence, run.keys, strict=True)
        )
    ]


def apart_of(event: Event) -> list[Event]:
    if isinstance(event, LoggedRun):
        return [*one_by_one(event)]
    if isinstance(event, QueuedRun):
        return [*queued_apart(event)]
    return [*unchanged_one_by_one(event)] if isinstance(event, UnchangedRun) else [event]


@effort(150)
@given(SETTINGS, st.lists(st.tuples(BODIES, st.integers(0, 3)), min_size=1, max_size=4))
def test_a_run_leaves_the_state_and_the_bytes_of_its_messages(
    settings: QueueSettings, publishes: list[tuple[list[bytes], int]]
) -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    now = 1
    commands = [CreateQueue("work", settings)] + [
        Publish("work", [NewMessage(body, "text/plain", priority, sender="me") for body in bodies])
        for bodies, priority in publishes
    ]
    for command in commands:
        now += 10
        for event in together.decide(command, now).events:
            together.evolve(event, batch.add(event))
            for single in one_by_one(event) if isinstance(event, LoggedRun) else [event]:
                apart.evolve(single, other.add(single))
    assert batch.count == other.count
    assert batch.seal(now) == other.seal(now)
    assert state_of(together) == state_of(apart)
    assert together.next_deadline == apart.next_deadline
    later = now + 10_000
    for engine in (together, apart):
        engine.advance(later)
    assert together.decide(Fetch("work", 1000), later) == apart.decide(Fetch("work", 1000), later)


CHANNELS = st.lists(
    st.builds(
        QueueSettings,
        delay_ns=st.sampled_from([0, 0, 5_000]),
        retention_ns=st.sampled_from([NEVER_NS, NEVER_NS, 1_000_000]),
        deduplication=st.sampled_from([False, False, False, True]),
        topics=st.sampled_from([("work.*",), ("work.a", "*")]),
    ),
    min_size=1,
    max_size=4,
)


@effort(150)
@given(CHANNELS, st.lists(st.tuples(BODIES | st.just([b"alone"]), st.integers(0, 1)), min_size=1, max_size=4))
def test_messages_for_many_channels_leave_the_state_and_the_bytes_of_each_of_them(
    channels: list[QueueSettings], publishes: list[tuple[list[bytes], int]]
) -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    now = 1
    commands = [CreateQueue(f"channel-{number}", settings) for number, settings in enumerate(channels)] + [
        PublishTopics(
            [NewMessage(body, "text/plain", priority, topics=("work.a",)) for body in bodies], QueueSettings()
        )
        for bodies, priority in publishes
    ]
    for command in commands:
        now += 10
        for event in together.decide(command, now).events:
            together.evolve(event, batch.add(event))
            for single in apart_of(event):
                apart.evolve(single, other.add(single))
    assert batch.seal(now) == other.seal(now)
    assert state_of(together) == state_of(apart)
    assert together.next_deadline == apart.next_deadline
    for engine in (together, apart):
        engine.advance(now + 10_000)
    for name in together.numbers:
        fetch = Fetch(name, 1000)
        assert together.decide(fetch, now + 10_000) == apart.decide(fetch, now + 10_000)


KEYED = st.lists(
    st.tuples(st.binary(max_size=2), st.sampled_from([b"a", b"b"])), min_size=RUN_MESSAGES_MIN, max_size=60
)


@effort(150)
@given(st.lists(KEYED, min_size=1, max_size=4))
def test_runs_of_messages_with_keys_leave_the_state_the_history_and_the_bytes_of_their_messages(
    publishes: list[list[tuple[bytes, bytes]]],
) -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    create = QueueSettings(detect_unchanged=True)
    now, last = 1, dict[bytes, bytes]()
    for publish in publishes:
        now += 10
        messages = [NewMessage(body, object="thing", topics=("thing.said",), key=key) for key, body in publish]
        decision = together.decide(PublishTopics(messages, create), now)
        states = "".join(published.state for published in decision.answer)  # type: ignore[union-attr]
        expected = ""
        for key, body in publish:
            expected += "U" if key and last.get(key) == body else "Q"
            last[key] = body
        assert states == expected
        for event in decision.events:
            together.evolve(event, batch.add(event))
            for single in apart_of(event):
                apart.evolve(single, other.add(single))
    assert batch.count == other.count
    assert batch.seal(now) == other.seal(now)
    assert state_of(together) == state_of(apart)
    assert list(together.history.sections()) == list(apart.history.sections())


TOPICS = [("detects.x",), ("once.x",), ("all.x",), ("detects.x", "all.x"), ("all", "once")]
KINDS_OF_MESSAGES = st.fixed_dictionaries(
    {
        "sender": st.sampled_from(["", "me"]),
        "topics": st.sampled_from(TOPICS),
        "object": st.sampled_from(["thing", "other"]),
        "headers": st.sampled_from([b"", b"", b"h"]),
    }
)
BODIES_AND_KEYS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"", b"1", b"2", b"3"])), max_size=9
)


KINDS_OF_QUEUES = {
    "detects": QueueSettings(detect_unchanged=True),
    "all": QueueSettings(),
    "once": QueueSettings(deduplication=True),
    "channel": QueueSettings(topics=("all.*",)),
}


@effort(150)
@given(st.lists(st.tuples(KINDS_OF_MESSAGES, BODIES_AND_KEYS), max_size=8), st.data())
def test_messages_published_together_are_the_same_as_one_after_the_other(
    kinds: list[tuple[dict[str, Any], list[tuple[bytes, bytes]]]], data: st.DataObject
) -> None:
    messages = [NewMessage(body, key=key, **kind) for kind, each in kinds for body, key in each]
    together, apart = Rig(), Rig()
    for name, settings in KINDS_OF_QUEUES.items():
        together.do(CreateQueue(name, settings))
        apart.do(CreateQueue(name, settings))
    states: dict[Rig, str] = {together: "", apart: ""}
    while messages:
        some = data.draw(st.integers(1, len(messages)))
        for rig, commands in ((together, [messages[:some]]), (apart, [[message] for message in messages[:some]])):
            for command in commands:
                answer = rig.do(PublishTopics(command, QueueSettings()))
                states[rig] += "".join(published.state for published in answer)  # type: ignore[union-attr]
        messages = messages[some:]
    assert states[together] == states[apart]
    for name in KINDS_OF_QUEUES:
        assert told(together, name) == told(apart, name)
    for about in [(about, key) for about in ("thing", "other") for key in (b"1", b"2", b"3")]:
        versions = [rig.engine.history.get(*about) for rig in (together, apart)]
        assert len({version and (version.digest, version.versions) for version in versions}) == 1


def told(rig: Rig, queue: str) -> list[tuple[bytes, bytes, bytes, str]]:
    """What a consumer gets, in its order."""
    deliveries: list[Delivery] = rig.do(Fetch(queue, 1000))  # type: ignore[assignment]
    return [(each.body, each.key, each.headers, each.sender) for each in deliveries]


def test_many_messages_with_keys_are_a_run_whether_they_have_changed_or_not() -> None:
    rig = Rig()
    keys = [b"%d" % number for number in range(RUN_MESSAGES_MIN)]
    messages = [NewMessage(b"x", object="thing", key=key) for key in keys]
    command = PublishTopics(messages, QueueSettings(detect_unchanged=True))
    first = rig.engine.decide(command, rig.now()).events
    assert isinstance(first[-1], LoggedRun)
    assert list(first[-1].keys) == keys
    rig.do(command)
    (second,) = rig.engine.decide(command, rig.now()).events
    assert isinstance(second, UnchangedRun)
    assert (second.keys, second.to_sequence) == (keys, list(range(1, RUN_MESSAGES_MIN + 1)))


def test_messages_that_changed_and_messages_that_did_not_are_two_runs_unless_a_key_does_both() -> None:
    rig = Rig()
    settings = QueueSettings(detect_unchanged=True)
    keys = [b"%d" % number for number in range(2 * RUN_MESSAGES_MIN)]
    rig.do(PublishTopics([NewMessage(b"x", object="thing", key=key) for key in keys], settings))
    bodies = [b"x" if number % 2 else b"y" for number in range(len(keys))]
    mixed = [NewMessage(body, object="thing", key=key) for key, body in zip(keys, bodies, strict=True)]
    changed, same = rig.engine.decide(PublishTopics(mixed, settings), rig.now()).events
    assert isinstance(changed, LoggedRun)
    assert isinstance(same, UnchangedRun)
    assert (changed.keys, same.keys) == (keys[::2], keys[1::2])
    both = [NewMessage(body, object="thing", key=keys[0]) for body in (b"y", b"y", b"x")]
    decision = rig.engine.decide(PublishTopics(both, settings), rig.now())
    assert [type(event) for event in decision.events] == [Logged, Unchanged, Logged]
    assert [published.sequence - len(keys) for published in decision.answer] == [1, 2, 3]  # type: ignore[union-attr]


def test_messages_with_headers_that_have_not_changed_keep_them_and_are_alone() -> None:
    rig = Rig()
    settings = QueueSettings(detect_unchanged=True)
    keys = [b"%d" % number for number in range(RUN_MESSAGES_MIN)]
    rig.do(PublishTopics([NewMessage(b"x", object="thing", key=key) for key in keys], settings))
    headed = [NewMessage(b"x", object="thing", key=key, headers=b"of " + key) for key in keys]
    events = rig.engine.decide(PublishTopics(headed, settings), rig.now()).events
    assert [event.headers for event in events if isinstance(event, Unchanged)] == [b"of " + key for key in keys]
    assert read_back(*events) == events


def read_back(*events: Event) -> list[Event]:
    batch = Batch(0, 0)
    for event in events:
        batch.add(event)
    data = batch.seal(1)
    header = read_header(data)
    assert header is not None
    return [event for event, _ in events_of(header, data[HEADER_BYTES:])]


def test_a_run_is_read_back_as_its_messages() -> None:
    rig = Rig()
    rig.do(CreateQueue("work", QueueSettings()))
    bodies = [b"%d" % index for index in range(RUN_MESSAGES_MIN)]
    decision = rig.engine.decide(Publish("work", [NewMessage(body) for body in bodies]), rig.now())
    (run,) = decision.events
    assert isinstance(run, LoggedRun)
    assert read_back(run) == one_by_one(run)


def test_messages_that_differ_in_more_than_their_bodies_are_logged_one_by_one() -> None:
    rig = Rig()
    rig.do(CreateQueue("work", QueueSettings()))
    plain = NewMessage(b"x", "text/plain")
    for odd in (
        NewMessage(b"x", "text/html"),
        NewMessage(b"x", "text/plain", priority=1),
        NewMessage(b"x", "text/plain", sender="me"),
        NewMessage(b"x", "text/plain", key=b"k"),
        NewMessage(b"x", "text/plain", headers=b"h"),
        NewMessage(b"x", "text/plain", object="o"),
        NewMessage(b"x", "text/plain", topics=("a.b",)),
        NewMessage(b"x", "text/plain", delay_ns=1),
        NewMessage(b"x", "text/plain", expires_ns=1),
        NewMessage(b"x", "text/plain", lease_ns=1),
    ):
        messages = [plain] * RUN_MESSAGES_MIN
        for place in (0, RUN_MESSAGES_MIN - 1):
            mixed = [*messages[:place], odd, *messages[place + 1 :]]
            events = rig.engine.decide(Publish("work", mixed), rig.now()).events
            assert not any(isinstance(event, LoggedRun) for event in events)
            assert sum(isinstance(event, Logged) for event in events) == len(mixed)


def test_a_message_of_a_run_can_be_taken_and_finished_like_any_other() -> None:
    rig = Rig()
    rig.do(CreateQueue("work", QueueSettings()))
    rig.do(Publish("work", [NewMessage(b"%d" % index) for index in range(50)]))
    queue = rig.engine.queues[1]
    for expected in range(1, 51):
        answer = rig.do(Fetch("work"))
        assert isinstance(answer, list)
        (delivery,) = answer
        assert isinstance(delivery, Delivery)
        assert delivery.sequence == expected
        rig.do(Finish(delivery.queue, delivery.sequence))
    assert queue.rows.count == queue.leases.live == 0


# ── Fetched and finished together ─────────────────────────────────────────────────────────────────────────


def filled(count: int = 100, **settings: Any) -> Rig:
    rig = Rig()
    rig.create("work", **settings)
    rig.publish("work", *[b"%d" % index for index in range(count)])
    rig.events.clear()
    return rig


def runs(rig: Rig) -> list[type[Event]]:
    """The kinds of runs that were applied, and none of anything else."""
    assert all(isinstance(event, MessageRun) for event in rig.events), rig.events
    return [type(event) for event in rig.events]


def check(rig: Rig) -> None:
    """The log, which knows no runs, and a snapshot give the same state."""
    assert state_of(rig.replayed()) == state_of(rig.engine) == state_of(rig.restored())
    queue = rig.engine.queues[1]
    lined_up = sum(line.live for line in queue._ready.values())
    assert lined_up == queue.ready
    assert queue.rows.count == queue.ready + queue.leases.live + queue.delayed.live


@pytest.mark.parametrize("retention_ns", [NEVER_NS, 10**15])
def test_many_are_fetched_and_finished_in_two_events(retention_ns: int) -> None:
    rig = filled(retention_ns=retention_ns)
    deliveries = rig.fetch("work", 100)
    assert [delivery.body for delivery in deliveries] == [b"%d" % index for index in range(100)]
    assert {delivery.receives for delivery in deliveries} == {1}
    check(rig)
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=1) for each in deliveries[::-1]]))
    assert answers == [Done()] * 100
    assert runs(rig) == [FetchedRun, SucceededRun]
    assert rig.counts("work") == (0, 0, 0)
    assert rig.engine.queues[1].lifetimes.live == rig.engine.queues[1].lifetimes.entries == 0
    check(rig)


def test_many_are_popped_in_one_event() -> None:
    rig = filled(retention_ns=10**15)
    assert rig.bodies("work", 60, confirm=False) == [b"%d" % index for index in range(60)]
    assert runs(rig) == [HandedOverRun]
    assert rig.counts("work") == (40, 0, 0)
    check(rig)


def test_a_lease_of_a_run_ends_at_its_time() -> None:
    rig = filled(visibility_ns=5 * SECOND_NS)
    rig.fetch("work", 50)
    rig.fetch("work", 50, lease_ns=60 * SECOND_NS)
    rig.wait(6)
    assert rig.counts("work") == (50, 50, 0)
    assert [delivery.receives for delivery in rig.fetch("work", 50)] == [2] * 50
    check(rig)


def test_a_run_takes_the_lease_that_its_messages_have_in_common() -> None:
    rig = Rig()
    rig.create("work")
    rig.publish("work", *[NewMessage(b"x", lease_ns=7 * SECOND_NS)] * 20, *[NewMessage(b"y")] * 20)
    rig.events.clear()
    (leases,) = {delivery.visible_at - rig.engine.time for delivery in rig.fetch("work", 20)}
    assert leases == 7 * SECOND_NS
    assert runs(rig) == [FetchedRun]


def test_messages_with_different_leases_are_fetched_one_by_one() -> None:
    rig = Rig()
    rig.create("work", visibility_ns=9 * SECOND_NS)
    rig.publish("work", *[NewMessage(b"x", lease_ns=7 * SECOND_NS)] * 20, *[NewMessage(b"y")] * 20)
    rig.events.clear()
    deliveries = rig.fetch("work", 40)
    assert [delivery.visible_at - rig.engine.time for delivery in deliveries] == [7 * SECOND_NS] * 20 + [
        9 * SECOND_NS
    ] * 20
    assert len(rig.events) == 40
    check(rig)


def test_the_last_receive_before_the_dead_letters_is_never_part_of_a_run() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("work", *[b"x"] * 30)
    assert len(rig.fetch("work", 30)) == 30
    assert rig.describe("dead").messages == 30


@pytest.mark.parametrize("gone", [0, 13, 29])
def test_finishing_many_tells_each_what_became_of_it(gone: int) -> None:
    rig = filled(30)
    deliveries = rig.fetch("work", 30)
    rig.finish(deliveries[gone])
    twice = [*deliveries, deliveries[(gone + 1) % 30]]
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence) for each in twice]))
    assert isinstance(answers, list)
    refused = [index for index, answer in enumerate(answers) if isinstance(answer, Refused)]
    assert refused == [gone, 30]
    assert rig.counts("work") == (0, 0, 0)
    check(rig)


def test_a_lease_that_ran_out_cannot_finish_among_many() -> None:
    rig = filled(30, visibility_ns=SECOND_NS)
    first = rig.fetch("work", 30)
    rig.wait(2)
    rig.fetch("work", 15)
    answers = rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=each.receives) for each in first]))
    assert answers == [Refused(Reason.LEASE_GONE)] * 30
    assert rig.counts("work") == (15, 15, 0)


class Traffic(RuleBasedStateMachine):
    """Any mix of runs and single steps leaves what the log alone leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.held: list[Delivery] = []

    @initialize(settings=st.builds(QueueSettings, retention_ns=st.sampled_from([NEVER_NS, 3 * SECOND_NS])))
    def create(self, settings: QueueSettings) -> None:
        self.rig.do(CreateQueue("work", settings))

    @rule(count=st.integers(1, 70), priority=st.integers(0, 1), lease=st.sampled_from([None, SECOND_NS]))
    def publish(self, count: int, priority: int, lease: int | None) -> None:
        self.rig.publish("work", *[NewMessage(b"m", priority=priority, lease_ns=lease)] * count)

    @rule(count=st.integers(1, 90), confirm=st.booleans())
    def fetch(self, count: int, confirm: bool) -> None:
        ready = self.rig.describe("work").ready
        deliveries = self.rig.fetch("work", count, confirm=confirm)
        assert len(deliveries) == min(count, ready)
        self.held += deliveries if confirm else []

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.held:
            start = data.draw(st.integers(0, len(self.held) - 1))
            stop = data.draw(st.integers(start, len(self.held)))
            some = data.draw(st.permutations(self.held[start:stop])) if stop - start < 40 else self.held[start:stop]
            self.rig.do(FinishMany([Finish(each.queue, each.sequence, delivery=each.receives) for each in some]))
            del self.held[start:stop]

    @rule(seconds=st.sampled_from([0.1, 1.1]))
    def wait(self, seconds: float) -> None:
        self.rig.wait(seconds)

    @invariant()
    def the_log_agrees(self) -> None:
        if self.rig.engine.queues:
            self.rig.settle()
            check(self.rig)


Traffic.TestCase.settings = effort(60)
test_any_traffic_leaves_what_the_log_leaves = Traffic.TestCase
