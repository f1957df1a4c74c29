"""The state of a store with one shard, divided."""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.engine.history import MemoryHistory
from penstock.engine.snapshot import sections_of
from penstock.engine.split import Division, part_of
from penstock.model.answers import Location
from penstock.model.commands import CreateQueue, Fetch, NewMessage, Publish, Settle
from penstock.model.courier_commands import Locate
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Cursor
from tests.support.engine_rig import Rig

END = 77


def parts(rig: Rig, shards: int) -> list[Engine]:
    """The shards, each from its snapshot."""
    found = []
    for shard in range(shards):
        division = Division(shards, lambda name: (rig.engine.numbers[name] - 1) % shards, END)
        engine = Engine(shard=shard, shards=shards)
        engine.restore(sections_of(part_of(rig.engine, shard, division, MemoryHistory())))
        found.append(engine)
    return found


def with_queues(*names: str) -> Rig:
    rig = Rig()
    for name in names:
        rig.do(CreateQueue(name, QueueSettings()))
    return rig


def test_a_queue_goes_to_the_shard_of_its_number() -> None:
    found = parts(with_queues("a", "b", "c", "d", "e"), 3)
    assert [list(part.numbers.items()) for part in found] == [[("a", 1), ("d", 4)], [("b", 2), ("e", 5)], [("c", 3)]]


def test_each_shard_numbers_its_next_queue_as_if_it_had_always_been_one() -> None:
    for queues in range(5):
        found = parts(with_queues(*"abcd"[:queues]), 3)
        following = []
        for part in found:
            (event,) = part.decide(CreateQueue("new", QueueSettings()), now=part.time + 1).events
            part.evolve(event, 0)
            following.append(part.numbers["new"])
        assert sorted(following) == [queues + 1, queues + 2, queues + 3]
        assert [(number - 1) % 3 for number in following] == [0, 1, 2]


def test_nothing_of_the_common_past_is_owed() -> None:
    found = parts(with_queues("a", "b"), 3)
    assert found[1].couriers.cursors == {0: Cursor(END, 0), 2: Cursor(END, 0)}
    assert not any(part.couriers.outboxes for part in found)


def test_a_dead_letter_of_another_shard_is_found_by_its_id_and_knows_where_it_came_from() -> None:
    rig = with_queues("dead")
    rig.do(CreateQueue("orders", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    rig.do(Publish("orders", [NewMessage(b"bad")]))
    rig.do(Fetch("orders", 1))
    rig.do(Settle(2, 1, "retry", delivery=1, reason=b"broken"))
    dead, orders = parts(rig, 2)
    assert (dead.reasons.by_place, orders.reasons.by_place) == ({(1, 1): "broken"}, {})
    assert dead.find(2, 1) is not None
    assert dead.origins == {(1, 1): (2, 1)}
    assert dead.couriers.origins == {2: "orders"}
    answer = orders.decide(Locate(2, 1), now=orders.time + 1).answer
    assert isinstance(answer, Location)
    assert answer == Location(False, {0: 0})
