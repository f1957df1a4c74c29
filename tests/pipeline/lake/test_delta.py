"""Tables of the lake as Delta has them, without Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.pipeline.lake.delta import LakeTable
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.publication import public_table, publish, publish_all
from penstock.pipeline.lake.reading import open_lake
from penstock.pipeline.lake.tables import TABLES, parts_table
from penstock.pipeline.source.log import Extent
from tests.support.command_line import penstock
from tests.support.small_lake import write_minutes


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake of a log with 12 records."""
    made = Lake(tmp_path / "lake")
    made.path.mkdir()
    made.open_for([Extent("log", 0, 0, 12, 0)])
    for table in TABLES.values():
        parts_table(made, table).make()
    return made


def reach(lake: Lake, table: LakeTable, offset: int) -> None:
    table.make()
    table.append(lake.origin(), {0: (0, offset)}, {})


def add(lake: Lake, table: LakeTable, reached: int, when: datetime, rows: list[dict[str, Any]]) -> None:
    """Add rows of one date to a table, which then has the log up to `reached`."""
    folder, schema = table.stage(), table.schema
    if table.by_date:
        folder, schema = folder / f"date={when.date()}", schema.remove(schema.get_field_index("date"))
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part.parquet", row_group_size=2)
    table.append(lake.origin(), {0: (table.reached(lake.origin())[0], reached)}, {})


def test_the_status_tells_what_a_table_has_from_what_other_readers_find(lake: Lake) -> None:
    for table in TABLES.values():
        reach(lake, parts_table(lake, table), 12)
    reach(lake, public_table(lake, TABLES["messages"]), 5)
    ended = penstock("pipeline", "status", "--lake", str(lake.path), "--data", "/nowhere")
    lines = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines() if line.split()}
    assert lines["events"] == ["12", "unknown", "12", "unknown"]
    assert lines["messages"] == ["12", "unknown", "5", "unknown"]
    assert lines["changes"] == ["12", "unknown", "0", "unknown"]
    ended = penstock("pipeline", "status", "--lake", str(lake.path), "--data", "/nowhere", "--json")
    assert json.loads(ended.stdout)["tables"]["messages"] == {"has": [12], "published": [5]}
    ended = penstock("pipeline", "tables", "--lake", str(lake.path), "--json")
    tables = {row["table"]: row["rows"] for row in map(json.loads, ended.stdout.splitlines())}
    assert tables == {"events": 0, "leases": 0, "messages": 0}


def test_the_log_of_a_table_says_which_values_a_file_has(lake: Lake) -> None:
    """So other readers skip files."""
    table = parts_table(lake, TABLES["events"])
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    rows = [
        {
            "offset": offset,
            "state": letter,
            "queue": name,
            "queue_number": 1,
            "shard": 0,
            "time": moment,
            "body": b"x",
        }
        for offset, letter, name in ((7, "Q", "orders"), (8, "L", "x" * 100), (9, "S", None))
    ]
    add(lake, table, 10, moment, rows)
    [found] = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    assert (found["num_records"], found["min.offset"], found["max.offset"]) == (3, 7, 9)
    assert (found["min.state"], found["max.state"], found["null_count.queue"]) == ("L", "S", 1)
    assert found["min.time"] == found["max.time"] == moment
    assert found.get("max.queue") is None  # Too long.
    assert found["null_count.sequence"] == 3
    read = DeltaTable(table.path).to_pyarrow_dataset()
    assert read.to_table(filter=pc.field("offset") > 8).num_rows == 1
    assert len(list(read.get_fragments(filter=pc.field("offset") > 9))) == 0


def test_a_published_table_gets_columns_that_it_was_made_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_minutes(tmp_path / "lake", ("work", 3600 * 400_000, 3))
    lake, table = Lake(tmp_path / "lake"), TABLES["queue_minutes"]
    reach(lake, parts_table(lake, table), 5)
    assert publish(lake, table) == 1
    path = lake.path / table.name
    columns = DeltaTable(path).to_pyarrow_table().column_names
    before = public_table(lake, table, pa.schema(DeltaTable(path).schema().to_arrow()).remove(3))
    shutil.rmtree(path)
    before.make()
    with monkeypatch.context() as patch:
        patch.delattr(LakeTable, "widen")  # As if the process ended then.
        with pytest.raises(AttributeError):
            publish(lake, table)
    assert publish(lake, table) == 1
    found = DeltaTable(path).to_pyarrow_table()
    assert sorted(found.column_names) == sorted(columns)
    assert found[columns[3]].null_count == 0
    assert publish(lake, table) == 0


def test_the_removal_of_a_queue_rewrites_only_dates_in_which_it_ends_messages(lake: Lake) -> None:
    table = TABLES["messages"]
    parts, days = parts_table(lake, table), [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for offset, (day, gone) in enumerate(zip(days, (True, False, True, False), strict=True), 1):
        facts = {"queue": "q", "queue_number": 1 + (day is days[3]), "sequence": offset, "created": day, "body": b"x"}
        add(lake, parts, offset, day, [facts | {"last": offset * 16 + 3, "gone": day if gone else None}])
    assert publish(lake, table) == 4
    public = public_table(lake, table)
    before = {file.date: file.path for file in public.files()}
    removal = {"queue_number": 1, "sequence": 0, "gone": days[3], "created": days[3], "last": 5 * 16 + 13}
    add(lake, parts, 5, days[3], [removal])
    publish(lake, table)
    after = {file.date: file.path for file in public.files()}
    assert [after[day.date()] == before[day.date()] for day in days] == [True, False, True, False]
    rows = {row["sequence"]: row["state"] for row in DeltaTable(public.path).to_pyarrow_table().to_pylist()}
    assert rows[2] == "D"
    assert rows[4] == "Q"


def test_a_key_that_was_only_seen_again_is_read_beside_what_is_published(lake: Lake) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    seen = {"object": "o", "key": b"k", "shard": 0, "seen": 1, "unchanged": 1, "seen_at": when}
    for offset in (5, 9):
        reach(lake, parts_table(lake, TABLES["changes"]), offset)
        add(lake, parts_table(lake, TABLES["object_history"]), offset, when, [seen])
        if offset == 5:
            publish_all(lake)
    [row] = open_lake(lake.path).table("object_history").to_pylist()
    assert (row["key"], row["versions"], row["seen"], row["unchanged"], row["hash"]) == ("k", 0, 2, 2, None)
