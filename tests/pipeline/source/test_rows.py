"""Ranges of the log as rows: whatever way it is divided, every event is there once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.pipeline.source.columns import COLUMNS, arrow_schema
from penstock.pipeline.source.files import FileLog
from penstock.pipeline.source.rows import Rows
from tests.support.broker import Broker
from tests.support.offline import decoded, plain

ALL: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def data(past: Broker) -> Path:
    return past.data


def read(data: Path, *bounds: int, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, object]]:
    log = FileLog(data)
    rows = Rows(columns, ALL, ALL, log.names())
    return [
        row
        for start, end in pairwise(bounds)
        for part in rows.of(log.batches(start, end), start, end)
        for row in plain(part)
    ]


@settings(max_examples=25)
@given(chosen=st.data())
def test_however_a_log_is_divided_every_event_is_read_once(data: Path, chosen: st.DataObject) -> None:
    end = FileLog(data).extent().end
    cuts = chosen.draw(st.sets(st.integers(0, end), max_size=5))
    assert read(data, *sorted({0, end} | cuts)) == decoded(data)


def test_a_record_can_be_read_alone(data: Path) -> None:
    expected = decoded(data)
    for offset in sorted({row["offset"] for row in expected})[::7]:
        assert read(data, offset, offset + 1) == [row for row in expected if row["offset"] == offset]


def test_each_column_can_be_read_alone(data: Path) -> None:
    end = FileLog(data).extent().end
    for name in COLUMNS:
        assert read(data, 0, end, columns=(name,)) == decoded(data, (name,)), name


def test_spark_gets_no_type_that_it_does_not_know() -> None:
    kinds = {str(field.type) for field in arrow_schema(COLUMNS)}
    assert kinds == {"int64", "int32", "int8", "string", "binary", "timestamp[us, tz=UTC]", "map<string, binary>"}


def test_filters_leave_only_what_is_asked_for(data: Path) -> None:
    log = FileLog(data)
    end = log.extent().end
    rows = Rows(("offset", "sequence"), frozenset({"hopeless", "dead"}), frozenset("EQ"), log.names())
    found = pa.Table.from_batches(rows.of(log.batches(0, end), 0, end)).to_pylist()
    assert found == [
        {"offset": row["offset"], "sequence": row["sequence"]}
        for row in decoded(data)
        if row["queue"] in ("hopeless", "dead") and row["state"] in "EQ"
    ]
    assert found


def test_a_queue_that_nobody_knows_has_no_events(data: Path) -> None:
    log = FileLog(data)
    end = log.extent().end
    assert not list(Rows(("offset",), frozenset({"nowhere"}), ALL, log.names()).of(log.batches(0, end), 0, end))
