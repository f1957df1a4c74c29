"""Lakes filled in the session that tests share, and what they should hold."""

from __future__ import annotations

import math
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.pipeline.lake import Lake
from penstock.pipeline.options import parse_options
from penstock.pipeline.source import open_log
from penstock.pipeline.stream import Filler, Written, has_ended, start_query
from penstock.pipeline.views import view
from penstock.storage.columns import COLUMNS, Names, decode
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import batches
from tests.pipeline import reference

Row = dict[str, Any]
QUERY_SECONDS_MAX = 100
_QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99}


class FilledLake:
    """A lake, and the log it is filled from."""

    def __init__(self, spark: SparkSession, folder: Path, **source: str) -> None:
        self.spark = spark
        self.lake = Lake(folder)
        self.written: list[Written] = []
        self._source = source

    def fill(self, **options: Any) -> None:
        """All there is now, as `penstock pipeline run --once` does it."""
        self.lake.take()
        try:
            with closing(open_log(parse_options(self._source))) as log:
                origin = self.lake.open_for(log.extent())
            filler = Filler(self.lake, origin, self.written.append)
            asked = self._source | {name: str(value) for name, value in options.items()}
            query = start_query(self.spark, self.lake, filler, asked, once=True, seconds=0)
            try:
                assert has_ended(query, QUERY_SECONDS_MAX)
            finally:
                query.stop()
        finally:
            self.lake.release()

    def rows(self, name: str) -> list[Row]:
        rows: list[Row] = view(self.spark, self.lake, name).toArrow().to_pylist()
        return rows


def events_of(data: Path) -> pa.Table:
    batch = decode(batches(DataDirectory(data), 0), COLUMNS, Names())
    return pa.Table.from_batches([batch])


def assert_same_tables(filled: FilledLake, events: pa.Table) -> None:
    """Held against DuckDB, which has read the events without Spark."""
    for name, expected in reference.tables(events):
        found = filled.rows(name)
        if name == "queue_minutes":
            for row in expected:
                row["lists"] = {kind: sorted(row.pop(kind)) for kind in ("wait", "processing")}
        keys = _KEYS[name]
        assert len(found) == len(expected), name
        for ours, theirs in zip(_sorted(found, keys), _sorted(expected, keys), strict=True):
            _compare(name, ours, theirs)


_KEYS = {
    "events": ("offset", "letter", "queue"),
    "messages": ("queue", "sequence"),
    "queue_minutes": ("queue", "minute"),
    "leases": ("queue", "sequence", "offset"),
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
    """A sketch is right within two in a hundred of the ranks."""
    if not values:
        assert value is None
        return
    assert value is not None
    low = values[max(0, math.floor((rank - 0.02) * len(values)) - 1)]
    high = values[min(len(values) - 1, math.ceil((rank + 0.02) * len(values)))]
    assert low <= round(value * 1000) <= high
