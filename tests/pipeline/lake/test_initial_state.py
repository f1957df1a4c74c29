"""A lake of a log whose first events are gone begins with what the broker holds."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Client
from penstock.errors import BrokerError, LakeError
from penstock.pipeline.lake.compaction import rebuild
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.division import open_lake_for
from penstock.pipeline.lake.initial_state import begin, initial_state
from penstock.pipeline.lake.tables import TABLES, parts_table
from penstock.pipeline.source.broker import BrokerLog
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.shards import ShardLogs
from tests.support.broker import Broker
from tests.support.lakes import FilledLake, Row

FORGETFUL = ("log.segment_bytes=65536", "log.snapshot_bytes=65536", "log.retention_seconds=0")


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with messages in every state, whose events the log does not have any more."""
    broker = Broker(tmp_path_factory.mktemp("late") / "data", *FORGETFUL).start()
    with Client(broker.url, name="shop") as client:
        for name in ("work", "waits", "empty"):
            client.queues.create(name, lease=3600)
        client.publish_many("waits", [f"message {number}" for number in range(40)])
        client.publish("waits", "later", delay=3600, priority=3)
        client.publish("waits", "red", headers={"colour": "red"})
        client.publish_to("things.big", "known", key="k7")
        at = "timestamp=2026-01-02T03:04:05.678901234Z"
        assert broker.request("POST", f"/v1/publish?topic=things.small&{at}", body=b"dated").status == 201
        client.receive("waits", 5)
        client.receive("waits", 1)[0].retry()
        while not _earliest(broker):
            client.publish_many("work", [b"x" * 4000] * 20)
            client.confirm_many(client.receive("work", 20))
    yield broker
    broker.stop()


def _earliest(broker: Broker) -> int:
    """The lowest of all shards."""
    with closing(ShardLogs(parse_options({"url": broker.url}))) as logs:
        return min(extent.earliest for extent in logs.extents())


@pytest.fixture(params=["path", "url"])
def lake(request: pytest.FixtureRequest, late: Broker, tmp_path: Path) -> Lake:
    """What a new lake of that log begins with, read both ways."""
    source = {"path": str(late.data)} if request.param == "path" else {"url": late.url}
    made = Lake(tmp_path / "lake")
    assert "the log begins at offset " in begun(made, source)[0]
    return made


def begun(lake: Lake, source: dict[str, str]) -> list[str]:
    """Begin a lake. Returns what was said."""
    said: list[str] = []
    lake.path.mkdir()
    with closing(ShardLogs(parse_options(source))) as logs:
        extents = logs.extents()
        begin(lake, open_lake_for(lake, extents), logs.logs, extents, said.append)
    return said


def test_every_message_that_waits_is_there_with_what_it_says(lake: Lake) -> None:
    found = penstock.lake(lake.path)
    rows = {row["message"]: row for row in found.table("messages").to_pylist()}
    waiting = [row for row in rows.values() if row["queue"] == "waits"]
    assert len(waiting) == 42
    assert all(row["queued"] and not row["archived"] for row in waiting)
    assert Counter(row["state"] for row in waiting) == {"Q": 36, "F": 5, "R": 1}
    one = rows[b"message 7"]
    assert (one["sequence"], one["sender"], one["shard"], one["receives"]) == (8, "shop", 0, 0)
    assert (rows[b"later"]["priority"], rows[b"known"]["key"], rows[b"known"]["object"]) == (3, "k7", "things")
    assert dict(rows[b"red"]["headers"])["colour"] == b"red"
    assert rows[b"dated"]["timestamp"] == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert one["timestamp"] is None
    leases = found.table("leases").where("queue = 'waits'").to_pylist()
    assert sorted((row["sequence"], row["consumer"]) for row in leases) == [(at, "shop") for at in range(1, 6)]
    depths = {row["queue"]: row["depth"] for row in found.table("queue_minutes").to_pylist()}
    assert (depths["waits"], depths["things"], depths["empty"]) == (42, 2, 0)


def test_the_state_is_read_once(lake: Lake, late: Broker) -> None:
    """What was interrupted goes on with the same offsets, wherever the broker is now."""
    began = initial_state(lake)
    assert began is not None
    shutil.rmtree(lake.path / "_parts" / "messages")
    origin = lake.origin()
    begin(lake, origin, (), (), print)
    assert parts_table(lake, TABLES["messages"]).reached(origin) == began.offsets
    assert len(penstock.lake(lake.path).table("messages").where("queue = 'waits'")) == 42


def test_without_the_right_to_read_the_state_the_error_says_what_to_do(
    tmp_path: Path, lake: Lake, late: Broker
) -> None:
    class Refusing(BrokerLog):
        def snapshot(self, folder: Path) -> Path | None:
            raise BrokerError("the token lacks admin")

    lost = Lake(tmp_path / "other")
    lost.path.mkdir()
    logs = [Refusing(late.url)]
    extents = [logs[0].extent()]
    origin = lost.open_for(extents)
    with pytest.raises(LakeError, match="begins with the state of the broker, which cannot be read: the token lacks"):
        begin(lost, origin, logs, extents, print)
    said: list[str] = []
    begin(lost, origin, logs, extents, said.append, skip_lost=True)
    assert "are unknown to the lake: the token lacks admin" in said[0]
    logs[0].close()


def test_each_shard_begins_with_its_own_state(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", *FORGETFUL, flags=("--workers", "2")).start()
    waits, works = ([f"{name}-{number}" for number in range(8)] for name in ("waits", "work"))
    with Client(broker.url) as client:
        for name in (*waits, *works):
            client.queues.create(name)
        for name in waits:
            client.publish(name, f"in {name}")
        while not _earliest(broker):
            for name in works:
                client.publish_many(name, [b"x" * 4000] * 10)
                client.confirm_many(client.receive(name, 10, wait=0))
    lake = Lake(tmp_path / "lake")
    said = begun(lake, {"url": broker.url})
    broker.stop()
    assert "the log of shard 1 begins at offset " in said[0]
    began, found = initial_state(lake), penstock.lake(lake.path)
    assert began is not None
    assert min(began.offsets) > 0
    rows = found.table("messages").where("queue like 'waits%'").to_pylist()
    assert sorted(row["message"].decode() for row in rows) == [f"in {name}" for name in waits]
    assert len({row["shard"] for row in rows}) > 1
    depths = {row["queue"]: row["depth"] for row in found.table("queue_minutes").to_pylist()}
    assert {depths[name] for name in waits} == {1}


def test_nothing_is_missing_or_twice_while_traffic_runs(spark: SparkSession, late: Broker, tmp_path: Path) -> None:
    filled = FilledLake(spark, tmp_path / "lake", url=late.url)
    stop = threading.Event()
    traffic = threading.Thread(target=_run_traffic, args=(late, stop))
    traffic.start()
    try:
        filled.fill()
    finally:
        stop.set()
        traffic.join()
    filled.fill()
    for rows in (filled.rows, filled.rows_without_spark):
        assert {row["timestamp"] is None for row in rows("messages")} == {True, False}
        _assert_like_the_broker(late, rows("messages"), rows("queue_minutes"))
    for name in ("messages", "queue_minutes", "leases"):
        before = filled.rows_without_spark(name)
        rebuild(spark, filled.lake, TABLES[name])
        assert sorted(map(repr, filled.rows_without_spark(name))) == sorted(map(repr, before))


def _run_traffic(broker: Broker, stop: threading.Event) -> None:
    with Client(broker.url) as client:
        while not stop.is_set():
            client.publish_many("waits", [b"y" * 2000] * 10)
            client.confirm_many(client.receive("waits", 8, wait=0))


def _assert_like_the_broker(broker: Broker, messages: list[Row], minutes: list[Row]) -> None:
    with Client(broker.url) as client:
        held = [(each.queue, each.sequence, each.body) for each in client.search()]
        depths = {queue.name: queue.status.messages for queue in client.queues.list()}
    there = [(row["queue"], row["sequence"], row["message"]) for row in messages if row["queued"]]
    assert sorted(there) == sorted(held)
    assert len({(row["queue_number"], row["sequence"]) for row in messages}) == len(messages)
    last = {row["queue"]: row["depth"] for row in sorted(minutes, key=lambda row: row["minute"])}
    assert {name: depth for name, depth in last.items() if name in depths} == depths
