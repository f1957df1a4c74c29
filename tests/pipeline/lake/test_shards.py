"""The lake of a store with two shards: its tables are what another engine makes of the events of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import asdict
from pyspark.sql import SparkSession

from penstock.cli.reshard.making import reshard
from penstock.model.events import Arrived, Event, Fetched, NameDefined, SentAsDead, Succeeded
from penstock.pipeline.lake.compaction import compact
from penstock.pipeline.lake.publication import publish_all
from penstock.pipeline.lake.tables import TABLES
from penstock.storage.backup.making import Progress
from tests.support.effort import LONG
from tests.support.lakes import FilledLake, assert_same_tables, events_of_shards
from tests.support.offline import definitions, make_log
from tests.support.power_cuts import fill_until_cut
from tests.support.samples import logged
from tests.support.two_shards import make_two_shards


def versions(queue: int, first: int, count: int, about: int = 2) -> list[Event]:
    """Messages of two objects, each shard with keys of its own, with a delivery of every second."""
    events: list[Event] = []
    for sequence in range(first, first + count):
        time = sequence * 7_000_000_000 + queue
        what = {"queue": queue, "time": time, "object": about, "key": b"%d of %d" % (sequence % 3, queue)}
        events.append(logged(sequence, b"one" if sequence % 4 else b"two", **what))
        if sequence % 2:
            events.append(Fetched(time + 5_000_000, queue, sequence, 1, 1, 0, visible_at=time + 10**10))
        if sequence % 4 == 1:
            events.append(Succeeded(time + 9_000_000, queue, sequence, 1, 0, 0, complete=True, result=b""))
    return events


@pytest.fixture
def data(tmp_path: Path) -> Path:
    names: list[Event] = [NameDefined(1, 2, "customer")]
    steps = [versions(queue, at, 10) for at in range(1, 31, 10) for queue in (1, 2)]
    return make_two_shards(tmp_path / "data", names, names, *steps)


def test_the_tables_of_two_shards_survive_crashes_compaction_and_a_lost_checkpoint(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    for survived in (1, 3) if LONG else (3,):
        fill_until_cut(filled, survived, maxEventsPerTrigger=90)
    shutil.rmtree(filled.lake.checkpoint)  # The next batches are others, and tables have reached different offsets.
    filled.fill(maxEventsPerTrigger=120)
    assert_same_tables(filled, events_of_shards(data), shards=2)
    make_two_shards(data, [], versions(2, 31, 5))
    filled.fill()
    compact(spark, filled.lake, TABLES["object_history"], everything=True)
    publish_all(filled.lake)
    assert_same_tables(filled, events_of_shards(data), published=True, shards=2)
    assert {(row["shard"], row["queue"]) for row in filled.rows("messages")} == {(0, "orders"), (1, "others")}


def test_a_lake_goes_on_when_its_log_was_divided_into_two_shards(spark: SparkSession, tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", definitions(), *(versions(queue, 1, 10, about=0) for queue in (1, 2)))
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill()
    reshard(data, 2, None, Progress())
    make_two_shards(data, *(versions(queue, 11, 5, about=0) for queue in (1, 2)))
    filled.fill()
    assert_same_tables(filled, events_of_shards(data), shards=2)


def test_what_is_in_two_shards_is_one_object_and_two_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Versions are compared in the order of time, wherever they are: what changes back is a change.
    A message that went to the other shard ends here and begins there."""
    what = {"object": 2, "key": b"k", "time": 1000}
    names: list[Event] = [NameDefined(1, 2, "customer")]
    early = [logged(1, b"one", **what), logged(3, b"one", **what | {"time": 9000})]
    late = [logged(at, b"two", **what | {"time": 4000 + at}, queue=2) for at in (1, 2)]
    dead = logged(2, b"dead")
    went = [dead, SentAsDead(2000, 1, 2, dead.time, 1, 0, shard=1, target=b"others")]
    came = [Arrived(**asdict(dead) | {"queue": 2, "sequence": 3, "time": 5000, "created": dead.time})]
    data = make_two_shards(tmp_path / "data", names, names, early[:1], late, [*early[1:], *went], came)
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill(maxEventsPerTrigger=8)
    for rows in (filled.rows, filled.rows_without_spark):
        changes = sorted((row["version"], row["shard"], row["sequence"]) for row in rows("changes"))
        assert changes == [(1, 0, 1), (2, 1, 1), (3, 0, 3)]
        (history,) = rows("object_history")
        assert (history["versions"], history["seen"], history["shard"], history["queue"]) == (3, 4, 0, "orders")
        places = {(row["shard"], row["queue"], row["sequence"]): row for row in rows("messages")}
        gone, there = places[0, "orders", 2], places[1, "others", 3]
        assert (gone["state"], gone["queued"], gone["message"]) == ("E", False, b"dead")
        assert (there["state"], there["queued"], there["message"]) == ("Q", True, b"dead")
        assert there["created"] == gone["created"] < there["entered"]
