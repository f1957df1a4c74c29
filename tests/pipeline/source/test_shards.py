"""A store with two shards, read as one table: each shard has offsets of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.cli.reshard.making import reshard
from penstock.errors import EventsLostError, OptionError
from penstock.pipeline.source.events import EventReader
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.stream import EventStreamReader
from penstock.storage.backup.making import Progress
from penstock.storage.shards import shard_directory
from tests.support.offline import Row, decoded, definitions, make_log, messages, plain
from tests.support.two_shards import make_two_shards

COLUMNS = ("shard", "offset", "state", "queue", "content_type", "body")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Offsets 0 to 31 in shard 0, and 0 to 11 in shard 1."""
    return make_two_shards(tmp_path / "data", messages(1, 30), messages(1, 10, queue=2))


def rows_of(data: Path) -> list[Row]:
    return [row for shard in range(2) for row in decoded(shard_directory(data, shard).path, COLUMNS, shard)]


def options(data: Path, **more: Any) -> dict[str, str]:
    return {"path": str(data), "columns": ",".join(COLUMNS)} | {name: str(value) for name, value in more.items()}


def stream(data: Path, **more: Any) -> EventStreamReader:
    return EventStreamReader(parse_options(options(data, **more)))


def read(reader: EventReader | EventStreamReader, parts: Any) -> list[Row]:
    return [row for part in parts for rows in reader.read(part) for row in plain(rows)]


def test_a_table_has_the_events_of_all_shards(spark: SparkSession, data: Path) -> None:
    found = spark.read.format("penstock").options(**options(data)).load().orderBy("shard", "offset", "state")
    expected = sorted(rows_of(data), key=lambda row: (row["shard"], row["offset"], row["state"]))
    assert plain(found.toArrow()) == expected
    assert {row["queue"] for row in expected} == {"orders", "others"}


def test_a_stream_goes_through_all_shards_within_its_limits(data: Path) -> None:
    reader = stream(data, maxEventsPerTrigger=15)
    offset, found, batches = reader.initialOffset(), [], []
    while (end := reader.latestOffset(offset, ReadMaxRows(15))) != offset:
        batches.append(end)
        found += read(reader, reader.partitions(offset, end))
        offset = end
    assert batches[0] == {"0": 2, "1": 2}
    assert batches[-1] == {"0": 32, "1": 12}
    assert found != rows_of(data)
    assert sorted(map(repr, found)) == sorted(map(repr, rows_of(data)))


def test_a_stream_goes_on_where_it_was_in_each_shard(data: Path) -> None:
    reader = stream(data)
    assert reader.latestOffset({"0": 32, "1": 12}, ReadAllAvailable()) == {"0": 32, "1": 12}
    make_log(shard_directory(data, 1).path, messages(11, 1, queue=2))
    assert reader.latestOffset({"0": 32, "1": 12}, ReadAllAvailable()) == {"0": 32, "1": 13}
    (part,) = reader.partitions({"0": 32, "1": 12}, {"0": 32, "1": 13})
    assert [(row["shard"], row["offset"]) for row in read(reader, [part])] == [(1, 12)] * 2
    with pytest.raises(EventsLostError, match=r"past the end of the log of shard 1 \(13\)"):
        reader.latestOffset({"0": 0, "1": 14}, ReadAllAvailable())


def test_bytes_bound_a_batch_of_all_shards(data: Path) -> None:
    end = stream(data, maxBytesPerTrigger=1).latestOffset({"0": 2, "1": 2}, ReadMaxRows(1))
    assert end == {"0": 32, "1": 12}, "one batch of the log of each shard, however large"


def test_an_offset_is_given_for_each_shard(data: Path) -> None:
    assert stream(data, startingOffset='{"0": 5, "1": "latest"}').initialOffset() == {"0": 5, "1": 12}
    assert stream(data, startingOffset="latest").initialOffset() == {"0": 32, "1": 12}
    assert stream(data, startingOffset=0).initialOffset() == {"0": 0, "1": 0}
    late = stream(data, startingOffset="1970-01-01T00:00:00.000002Z")
    assert late.initialOffset() == {"0": 32, "1": 12}
    with pytest.raises(OptionError, match="is one offset, but there are 2 shards"):
        stream(data, startingOffset=5).initialOffset()
    with pytest.raises(OptionError, match="must name each shard once: they are numbered from 0 to 1"):
        stream(data, startingOffset='{"0": 5}').initialOffset()
    with pytest.raises(OptionError, match="it must have the form"):
        stream(data, startingOffset='{"0": 5')


def test_a_batch_read_ends_at_an_offset_of_each_shard(data: Path) -> None:
    asked = options(data, startingOffset='{"0": 30, "1": 10}', endingOffset='{"0": 31, "1": 12}')
    reader = EventReader(parse_options(asked))
    found = {(row["shard"], row["offset"]) for row in read(reader, reader.partitions())}
    assert found == {(0, 30), (1, 10), (1, 11)}


def test_a_checkpoint_goes_on_when_the_store_was_moved_to_two_shards(tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", definitions(), messages(1, 10), messages(1, 10, queue=2))
    before = decoded(data, COLUMNS)
    reshard(data, 2, None, Progress())
    for shard in range(2):
        make_log(shard_directory(data, shard).path, messages(11, 2, queue=shard + 1))
    reader = stream(data)
    end = reader.latestOffset({"0": 9}, ReadAllAvailable())
    found = read(reader, reader.partitions({"0": 9}, end))
    divided = len(before) // 2 + 3  # A message has two rows in one record.
    assert [row for row in found if row["offset"] < divided] == [row for row in before if row["offset"] >= 9]
    later = [(row["shard"], row["queue"], row["body"]) for row in found if row["offset"] >= divided and row["body"]]
    assert later == [
        (shard, queue, b"message %d" % at) for shard, queue in enumerate(("orders", "others")) for at in (11, 12)
    ]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    with pytest.raises(EventsLostError, match=rf"ends at offset {divided}, but the checkpoint has read up to 26"):
        reader.latestOffset({"0": 26}, ReadAllAvailable())
