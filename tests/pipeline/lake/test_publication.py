"""The tables that other readers of Delta and Parquet find."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import penstock
from penstock.errors import LakeError
from penstock.pipeline.lake import publication
from penstock.pipeline.lake.compaction import compact
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.publication import publish as publish_table
from penstock.pipeline.lake.publication import publish_all
from penstock.pipeline.lake.reading import open_parts, open_tables
from penstock.pipeline.lake.tables import DOCUMENTED, TABLES, Table, parts_table
from penstock.pipeline.lake.views import view
from tests.support.broker import Broker
from tests.support.lakes import FilledLake, assert_same_tables, events_of
from tests.support.offline import definitions, make_log, messages


@pytest.fixture(scope="module")
def published(spark: SparkSession, past_lake: FilledLake) -> FilledLake:
    publish_all(past_lake.lake)
    return past_lake


def test_what_others_read_is_the_documented_tables(published: FilledLake, past: Broker) -> None:
    assert_same_tables(published, events_of(past.data), published=True)


@pytest.mark.parametrize("name", TABLES)
def test_every_reader_finds_the_same_columns_and_rows(spark: SparkSession, published: FilledLake, name: str) -> None:
    """Spark's plain Parquet reader, DuckDB, pandas and delta-rs, none of which knows what a part is."""
    path = published.lake.path / name
    files = DeltaTable(path).file_uris()
    columns = view(spark, published.lake, name).columns
    count = len(published.rows(name))
    assert DeltaTable(path).to_pandas().shape == (count, len(columns))
    assert sorted(DeltaTable(path).to_pyarrow_table().column_names) == sorted(columns)
    if files:
        frame = spark.read.option("basePath", str(path)).parquet(*files)
        assert (sorted(frame.columns), frame.count()) == (sorted(columns), count)
        with duckdb.connect() as connection:
            found = connection.sql(f"SELECT * FROM read_parquet({files}, hive_partitioning = true)")
            assert (sorted(found.columns), len(found)) == (sorted(columns), count)


def test_only_what_has_changed_is_published_again(spark: SparkSession, tmp_path: Path) -> None:
    day = 86_400_000_000_000
    data = make_log(tmp_path / "data", definitions(), messages(1, 5, time=day), messages(6, 5, time=2 * day))
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill()
    publish_all(filled.lake)
    before = set(DeltaTable(filled.lake.path / "messages").file_uris())
    assert publish_table(filled.lake, TABLES["messages"]) == 0
    make_log(data, messages(11, 5, time=3 * day))
    filled.fill()
    assert publish_table(filled.lake, TABLES["messages"]) == 5
    assert before < set(DeltaTable(filled.lake.path / "messages").file_uris())
    assert len(filled.rows_of_others("messages")) == 15
    compact(spark, filled.lake, TABLES["messages"], everything=True)
    publish_all(filled.lake)
    assert_same_tables(filled, events_of(data), published=True)


def test_a_publication_that_another_one_has_overtaken_is_given_up(
    spark: SparkSession, past_lake: FilledLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(past_lake.lake.path, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    publish_table(lake, TABLES["messages"], everything=True)
    write = publication._write

    def overtaken(*given: Any) -> None:
        monkeypatch.setattr(publication, "_write", write)
        publish_table(lake, TABLES["messages"], everything=True)
        write(*given)

    monkeypatch.setattr(publication, "_write", overtaken)
    with pytest.raises(LakeError, match="another process changed"):
        publish_table(lake, TABLES["messages"], everything=True)
    assert DeltaTable(lake.path / "messages").count() == view(spark, lake, "messages").count()


def run_publisher(path: Path) -> subprocess.CompletedProcess[str]:
    """As the pipeline runs it beside its batches."""
    command = [sys.executable, "-m", publication.__name__, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_the_process_of_the_pipeline_publishes_every_table(past_lake: FilledLake, tmp_path: Path) -> None:
    shutil.copytree(past_lake.lake.path, tmp_path / "lake")
    parted = [name for name, table in TABLES.items() if table.in_parts]
    for name in parted:
        shutil.rmtree(tmp_path / "lake" / name, ignore_errors=True)
    ended = run_publisher(tmp_path / "lake")
    assert (ended.returncode, ended.stderr) == (0, "")
    reader = penstock.lake(tmp_path / "lake")
    assert {name: DeltaTable(tmp_path / "lake" / name).count() for name in parted} == {
        name: len(reader.table(name)) for name in parted
    }


def test_a_publication_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    ended = run_publisher(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"there is no lake in {tmp_path} yet")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_readers_add_to_what_is_published_what_is_younger(
    past_lake: FilledLake, tmp_path: Path, share: float
) -> None:
    """As if the publication was some batches ago: with rows that changed since, and queues that were removed."""
    shutil.copytree(past_lake.lake.path, tmp_path / "early")
    early, late = Lake(tmp_path / "early"), Lake(tmp_path / "late")
    for name in DOCUMENTED:
        shutil.rmtree(early.path / name, ignore_errors=True)
    forgotten = sum(forget_latest(early, TABLES[name], share) for name in DOCUMENTED)
    assert forgotten
    publish_all(early)
    shutil.copytree(past_lake.lake.path, late.path)
    for name, columns in DOCUMENTED.items():
        shutil.rmtree(late.path / name, ignore_errors=True)
        shutil.copytree(early.path / name, late.path / name)
        with closing(open_tables(late, name)) as some, closing(open_parts(late, name)) as every:
            found, expected = some.table(name), every.table(name)
            assert tuple(found.columns) == tuple(expected.columns) == columns
            assert found.types == expected.types
            assert sorted(map(repr, found.fetchall())) == sorted(map(repr, expected.fetchall()))
    publish_all(late)
    for name, table in TABLES.items():
        with closing(open_tables(late, name)) as some, closing(open_parts(late, name)) as every:
            found, expected = some.table(name), every.table(name)
            assert sorted(map(repr, found.fetchall())) == sorted(map(repr, expected.fetchall()))
            if table.in_parts:
                assert not len(some.sql("SELECT 1 FROM duckdb_views() WHERE view_name LIKE '%_young'"))


def forget_latest(lake: Lake, table: Table, share: float) -> int:
    """Leave a share of the batches in the parts of a table. Returns how many files are gone."""
    parts = parts_table(lake, table)
    files = parts.files()
    cut = sorted({file.end for file in files})[int(share * len({file.end for file in files}))]
    kept = [file for file in files if file.end <= cut]
    before = parts.path.rename(lake.path / f"{table.name}-before")
    parts = parts_table(lake, table)
    parts.make()
    staging = parts.stage()
    for number, file in enumerate(kept):
        place = staging / Path(file.path).parent / f"{number}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(before / file.path, place)
    parts.append(lake.origin(), {0: (0, cut)}, {})
    return len(files) - len(kept)
