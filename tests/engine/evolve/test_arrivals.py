"""Messages logged, fetched and finished together are the same, in memory and on disk, as one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Delivery
from penstock.model.commands import CreateQueue, Fetch, Finish, NewMessage, Publish, PublishTopics
from penstock.model.events import (
    Event,
    Logged,
    LoggedRun,
    QueuedRun,
    Unchanged,
    UnchangedRun,
)
from penstock.model.settings import QueueSettings
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


def test_messages_of_a_channel_that_are_not_alike_enter_it_as_one_by_one() -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    messages = [
        NewMessage(b"%d" % number, priority=number // RUN_MESSAGES_MIN, topics=("work.a",))
        for number in range(2 * RUN_MESSAGES_MIN)
    ]
    commands = [CreateQueue("channel", QueueSettings(topics=("work.*",))), PublishTopics(messages, QueueSettings())]
    for now, command in enumerate(commands, start=1):
        for event in together.decide(command, now).events:
            together.evolve(event, batch.add(event))
            for single in apart_of(event):
                apart.evolve(single, other.add(single))
    assert batch.seal(9) == other.seal(9)
    assert state_of(together) == state_of(apart)
    channel = together.queues[together.numbers["channel"]]
    assert [row.priority for each in range(1, len(messages) + 1) if (row := channel.rows.get(each))] == [
        message.priority for message in messages
    ]


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
