"""Messages logged together are the same, in memory and on disk, as messages logged one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model import (
    CreateQueue,
    Delivery,
    Fetch,
    Finish,
    Logged,
    LoggedRun,
    NewMessage,
    Publish,
    QueueSettings,
)
from penstock.storage.batch import HEADER_BYTES, Batch, events_of, read_header
from tests.engine.effort import effort
from tests.engine.rig import Rig

BODIES = st.lists(st.binary(max_size=40), min_size=RUN_MESSAGES_MIN, max_size=90)
SETTINGS = st.builds(
    QueueSettings,
    delay_ns=st.sampled_from([0, 5_000]),
    retention_ns=st.sampled_from([NEVER_NS, 1_000_000]),
)


def one_by_one(run: LoggedRun) -> list[Logged]:
    names = (run.priority, run.content_type, run.sender, run.object, run.topics, run.lease_ns)
    return [
        Logged(run.time, run.queue, run.sequence + index, run.visible_at, run.expires_at, *names, b"", b"", b"", body)
        for index, body in enumerate(run.bodies)
    ]


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


def state_of(engine: Engine) -> list[tuple[str, bytes, list[bytes]]]:
    return [(kind, facts, [column.tobytes() for column in columns]) for kind, facts, columns in engine.sections()]


def test_a_run_is_read_back_as_its_messages() -> None:
    rig = Rig()
    rig.do(CreateQueue("work", QueueSettings()))
    bodies = [b"%d" % index for index in range(RUN_MESSAGES_MIN)]
    decision = rig.engine.decide(Publish("work", [NewMessage(body) for body in bodies]), rig.now())
    (run,) = decision.events
    assert isinstance(run, LoggedRun)
    batch = Batch(0, 0)
    batch.add(run)
    data = batch.seal(1)
    header = read_header(data)
    assert header is not None
    assert [event for event, _ in events_of(header, data[HEADER_BYTES:])] == one_by_one(run)


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
