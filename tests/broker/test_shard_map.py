"""Which shard has a queue."""

from __future__ import annotations

from penstock.broker.shard_map import ShardMap, answers_for


def test_a_name_has_the_same_shard_in_every_process_and_release() -> None:
    shards = ShardMap(64)
    assert [shards.of_name(name) for name in ("orders", "jobs", "default", "Ä")] == [13, 19, 34, 10]


def test_names_spread_evenly() -> None:
    shards = ShardMap(4)
    found = [shards.of_name(f"queue-{number}") for number in range(4000)]
    assert min(found.count(shard) for shard in range(4)) > 900


def test_a_queue_that_was_moved_is_elsewhere() -> None:
    assert ShardMap(64, {"orders": 7}).of_name("orders") == 7


def test_one_shard_has_everything() -> None:
    shards = ShardMap()
    assert {shards.of_name(f"queue-{number}") for number in range(100)} == {0}
    assert {shards.of_number(number) for number in range(1, 100)} == {0}


def test_a_number_tells_the_shard() -> None:
    assert [ShardMap(4).of_number(number) for number in (1, 2, 3, 4, 5, 9)] == [0, 1, 2, 3, 0, 0]


def test_many_objects_and_keys_are_where_each_of_them_is() -> None:
    shards = ShardMap(64)
    keys = [(about, b"%d" % key) for about in ("customer", "order") for key in range(20)]
    found = shards.of_objects(keys)
    assert found == [shards.of_object(*each) for each in keys]
    assert found == [[answers_for(shard, 64)(*each) for shard in range(64)].index(True) for each in keys]
    assert len(set(found)) > 10
