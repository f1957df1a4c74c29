"""What holds for the engine as a whole: dispatch, purity, replay and snapshots."""

from __future__ import annotations

import pytest

from penstock.engine.engine import DECIDE, EVOLVE, Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import (
    AwaitMessage,
    Command,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    Finish,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    Release,
    Tick,
    UpdateQueue,
)
from penstock.model.courier_commands import (
    BorrowKeys,
    CollectParcels,
    KeepLoans,
    OpenLoans,
    Recall,
    ReturnKeys,
)
from penstock.model.events import (
    Event,
    Expired,
    QueueCreated,
)
from penstock.model.settings import QueueSettings
from tests.support.engine_rig import Rig, state_of

# ── Dispatch ─────────────────────────────────────────────────────────────────────────────────────────────────


def subclasses(base: type) -> set[type]:
    below: set[type] = set(base.__subclasses__())
    return below.union(*map(subclasses, below))


def test_every_command_has_a_decision() -> None:
    # The writer decides the parts of the first; services answer the others.
    elsewhere = {PublishInTurn, AwaitMessage, CollectParcels, Recall, OpenLoans, KeepLoans, BorrowKeys, ReturnKeys}
    assert DECIDE.keys() == subclasses(Command) - elsewhere


def test_every_event_has_a_change() -> None:
    assert EVOLVE.keys() == {event for event in subclasses(Event) if "kind" in vars(event)}


# ── Purity, replay and snapshots ─────────────────────────────────────────────────────────────────────────────


def busy(rig: Rig) -> None:
    """A bit of everything."""
    rig.with_dead_letters(max_receives=2, visibility_ns=SECOND_NS, retention_ns=60 * SECOND_NS)
    rig.create("unique", deduplication=True, delay_ns=3 * SECOND_NS)
    rig.create("gone")
    rig.publish("work", *[NewMessage(b"%d" % n, priority=n % 3, sender=f"s{n % 2}") for n in range(40)])
    rig.publish("unique", b"a", b"b", b"a", b"c")
    rig.publish("gone", b"x")
    for _ in range(3):
        rig.fetch("work", 10, consumer="me")
        rig.wait(2)
    rig.release(rig.fetch("work", consumer="you")[0], delay_ns=5 * SECOND_NS)
    rig.finish(rig.fetch("dead")[0])
    rig.fetch("unique", confirm=False)
    rig.do(DeleteQueue("gone"))


def test_deciding_changes_nothing(rig: Rig) -> None:
    busy(rig)
    commands = [
        Tick(),
        Publish("work", [NewMessage(b"new", content_type="new/type", sender="new")]),
        Publish("unique", [NewMessage(b"b"), NewMessage(b"z"), NewMessage(b"z")]),
        Fetch("work", 5, consumer="somebody new"),
        Fetch("work", 5, confirm=False),
        Fetch("dead", 5),
        Finish(2, 3),
        Release(2, 3),
        CreateQueue("more", QueueSettings()),
        UpdateQueue("work", QueueSettings()),
        DeleteQueue("dead"),
        DescribeQueue("work"),
        ListQueues(),
    ]
    before = state_of(rig.engine)
    for command in commands:
        first = rig.engine.decide(command, now=rig.now())
        assert state_of(rig.engine) == before, command
        assert rig.engine.decide(command, now=rig.now()) == first, command


def test_replay_and_snapshot_give_the_state_byte_for_byte(rig: Rig) -> None:
    busy(rig)
    replayed, restored = rig.replayed(), rig.restored()
    assert state_of(replayed) == state_of(rig.engine)
    assert state_of(restored) == state_of(rig.engine)


def test_a_restored_engine_goes_on_as_the_live_one_would(rig: Rig) -> None:
    busy(rig)
    for engine in (rig.replayed(), rig.restored()):
        later = rig.now() + 100 * SECOND_NS
        assert engine.decide(Fetch("work", 99), now=rig.now()) == rig.engine.decide(Fetch("work", 99), now=rig.now())
        mine, theirs = (
            sorted(repr(event) for event in each.decide(Tick(), now=later).events if isinstance(event, Expired))
            for each in (engine, rig.engine)
        )
        assert mine == theirs


def test_an_empty_engine_survives_a_snapshot() -> None:
    engine = Engine()
    engine.restore(list(Engine().sections()))
    assert state_of(engine) == state_of(Engine())


def test_a_decision_is_later_than_the_last_event(rig: Rig) -> None:
    rig.create("work")
    with pytest.raises(AssertionError, match="a decision is later than the last event"):
        rig.engine.decide(Tick(), now=rig.engine.time)


def test_a_message_of_another_shard_may_always_come_and_one_of_its_own_only_if_it_was_there() -> None:
    engine = Engine(shard=1, shards=4)
    engine.evolve(QueueCreated(1, 2, "work", QueueSettings()), 0)
    assert [engine.has_had(place) for place in [(1, 7), (3, 7), (4, 7), (5, 7)]] == [True] * 4
    assert [engine.has_had(place) for place in [(2, 1), (6, 1)]] == [False] * 2
