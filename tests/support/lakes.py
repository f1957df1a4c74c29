"""Lakes filled in the session that tests share, and what they should hold."""

from __future__ import annotations

import math
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

import penstock
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.division import open_lake_for
from penstock.pipeline.lake.initial_state import begin
from penstock.pipeline.lake.stream import Filler, Written, has_ended, start_query
from penstock.pipeline.lake.views import view
from penstock.pipeline.source.files import FileLog
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.shards import ShardLogs
from penstock.storage.arrow.columns import COLUMNS, decode
from penstock.storage.arrow.names import Names
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import batches
from penstock.storage.shards import shard_directory
from tests.support import lake_reference as reference

Row = dict[str, Any]
QUERY_SECONDS_MAX = 300
_QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99}


class FilledLake:
    """A lake, and the log it is filled from."""

    def __init__(self, spark: SparkSession, folder: Path, **source: str) -> None:
        self.spark = spark
        self.lake = Lake(folder)
        self.written: list[Written] = []
        self.progress: list[StreamingQueryProgress] = []  # Of the last run.
        self._source = source

    def fill(self, **options: Any) -> None:
        """All there is now, as `penstock pipeline run --once` does it."""
        self.lake.take()
        try:
            with closing(ShardLogs(parse_options(self._source))) as logs:
                extents = logs.extents()
                origin = open_lake_for(self.lake, extents)
                begin(self.lake, origin, logs.logs, extents, print)
            filler = Filler(self.lake, origin, self.written.append)
            asked = self._source | {name: str(value) for name, value in options.items()}
            query = start_query(self.spark, self.lake, filler, asked, once=True, seconds=0)
            try:
                assert has_ended(query, QUERY_SECONDS_MAX)
                self.progress = query.recentProgress
            finally:
                query.stop()
        finally:
            self.lake.release()

    def rows(self, name: str) -> list[Row]:
        rows: list[Row] = view(self.spark, self.lake, name).toArrow().to_pylist()
        return rows

    def rows_without_spark(self, name: str) -> list[Row]:
        return penstock.lake(self.lake.path).table(name).to_pylist()

    def rows_of_others(self, name: str) -> list[Row]:
        """What somebody reads who knows only Delta."""
        rows: list[Row] = DeltaTable(self.lake.path / name).to_pyarrow_table().to_pylist()
        return rows


def events_of(data: Path) -> pa.Table:
    batch = decode(batches(DataDirectory(data), 0), COLUMNS, Names())
    return pa.Table.from_batches([batch])


def events_of_shards(data: Path, shards: int = 2) -> pa.Table:
    """The events of a store with several shards, with offsets that differ: see `_in_one_line`."""
    found = []
    for shard in range(shards):
        path = shard_directory(data, shard).path
        events = events_of(path)
        events = events.filter(pc.greater_equal(events["offset"], FileLog(path).extent().earliest))
        offsets = pc.add(pc.multiply(events["offset"], shards), shard)
        found.append(events.set_column(events.schema.get_field_index("offset"), "offset", offsets))
    return pa.concat_tables(found)


def _in_one_line(row: Row, shards: int) -> Row:
    """A row of one of several shards, with an offset that no row of another shard has."""
    return row | {"offset": shards * row["offset"] + row["shard"]} if "offset" in row and shards > 1 else row


def assert_same_tables(filled: FilledLake, events: pa.Table, *, published: bool = False, shards: int = 1) -> None:
    """Held against DuckDB, which has read the events without Spark: what Spark makes of the parts, what our reader
    without Spark makes of them, and, if it is said to be up to date, what other readers of Delta find."""
    for name, expected in reference.tables(events):
        if name == "queue_minutes":
            for row in expected:
                row["lists"] = {kind: sorted(row.pop(kind)) for kind in ("wait", "processing")}
        readers = [filled.rows, filled.rows_without_spark, *([filled.rows_of_others] if published else [])]
        found_by = [[_in_one_line(row, shards) for row in read(name)] for read in readers]
        every = [_sorted(found, _KEYS[name]) for found in found_by]
        assert [len(found) for found in every] == [len(expected)] * len(every), name
        assert all(found == every[0] for found in every), name
        for ours, theirs in zip(every[0], _sorted(expected, _KEYS[name]), strict=True):
            _compare(name, ours, theirs)


_KEYS = {
    "events": ("offset", "state", "queue_number"),
    "messages": ("queue_number", "sequence"),
    "queue_minutes": ("queue_number", "minute"),
    "leases": ("queue_number", "sequence", "offset"),
    "changes": ("offset",),
    "object_history": ("object", "key"),
}


def _sorted(rows: list[Row], keys: tuple[str, ...]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(row[name] for name in keys))


def _compare(name: str, ours: Row, theirs: Row) -> None:
    lists = theirs.pop("lists", {})
    for kind, values in lists.items():
        for suffix, rank in _QUANTILES.items():
            _assert_quantile(ours[f"{kind}_{suffix}"], values, rank)
    if name == "messages":
        for one in ours["consumers"] or []:
            taken = one["confirmed"] - one["fetched"] if one["confirmed"] and one["fetched"] else None
            assert one.pop("duration_ms") == (None if taken is None else taken / timedelta(milliseconds=1))
        ours |= {column: ours[column] or [] for column in ("consumers", "topics")}
    assert {column: ours[column] for column in theirs} == theirs, name


def _assert_quantile(value: float | None, values: list[int], rank: float) -> None:
    """The value of that rank, within one in a hundred."""
    if not values:
        assert value is None
        return
    assert value is not None
    exact = max(0, values[math.ceil(rank * len(values)) - 1])
    assert abs(value * 1000 - exact) <= 0.01 * exact
