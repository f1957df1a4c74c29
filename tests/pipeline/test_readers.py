"""The lake for everybody else: readers that know Delta or Parquet, and ours that starts no Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import penstock
from penstock.errors import LakeError
from penstock.model.kinds import Kind
from penstock.pipeline import publication, stream
from penstock.pipeline.compaction import compact
from penstock.pipeline.lake import Lake
from penstock.pipeline.publication import publish as publish_table
from penstock.pipeline.sql import ask
from penstock.pipeline.tables import TABLES
from penstock.pipeline.upgrade import upgrade
from penstock.pipeline.views import view
from tests.support.broker import Broker
from tests.support.event_history import publish
from tests.support.lakes import FilledLake, assert_same_tables, events_of
from tests.support.offline import definitions, make_log, messages

GOLDEN = Path(__file__).parent / "golden" / "lake-format-1.tar.gz"


def publish_all(spark: SparkSession, lake: Lake) -> None:
    for table in TABLES.values():
        publish_table(spark, lake, table)


@pytest.fixture(scope="module")
def published(spark: SparkSession, past_lake: FilledLake) -> FilledLake:
    publish_all(spark, past_lake.lake)
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
    publish_all(spark, filled.lake)
    before = set(DeltaTable(filled.lake.path / "messages").file_uris())
    assert publish_table(spark, filled.lake, TABLES["messages"]) == 0
    make_log(data, messages(11, 5, time=3 * day))
    filled.fill()
    assert publish_table(spark, filled.lake, TABLES["messages"]) == 5
    assert before < set(DeltaTable(filled.lake.path / "messages").file_uris())
    assert len(filled.rows_of_others("messages")) == 15
    compact(spark, filled.lake, TABLES["messages"], everything=True)
    publish_all(spark, filled.lake)
    assert_same_tables(filled, events_of(data), published=True)


def test_a_publication_that_another_one_has_overtaken_is_given_up(
    spark: SparkSession, past_lake: FilledLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(past_lake.lake.path, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    publish_table(spark, lake, TABLES["messages"], everything=True)
    write_files = stream.write_files

    def overtaken(*given: object) -> None:
        monkeypatch.setattr(publication, "write_files", write_files)
        publish_table(spark, lake, TABLES["messages"], everything=True)
        write_files(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(publication, "write_files", overtaken)
    with pytest.raises(LakeError, match="somebody else"):
        publish_table(spark, lake, TABLES["messages"], everything=True)
    assert DeltaTable(lake.path / "messages").count() == view(spark, lake, "messages").count()


# ── A lake of the version before ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def old(spark: SparkSession, tmp_path: Path) -> FilledLake:
    """A lake that the version before has filled, and its log."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return FilledLake(spark, tmp_path / "lake", path=str(tmp_path / "data"))


def known_before(data: Path) -> pa.Table:
    """The events that a lake of the version before has: all but the removal of a queue, which was none."""
    events = events_of(data)
    return events.filter(pc.not_equal(events["kind"], Kind.QUEUE_REMOVED))


def test_a_lake_of_the_version_before_is_refused_with_what_to_do(old: FilledLake) -> None:
    with pytest.raises(LakeError, match=r"an older version .*: penstock pipeline upgrade --lake .*/lake rewrites"):
        penstock.lake(old.lake.path)


def test_a_lake_of_the_version_before_is_upgraded_and_goes_on(spark: SparkSession, old: FilledLake) -> None:
    data = old.lake.path.parent / "data"
    said: list[str] = []
    assert upgrade(spark, old.lake, said.append)
    assert said[0].startswith(f"upgrading {old.lake.path} from format 1 to 2")
    assert_same_tables(old, known_before(data), published=True)
    assert not upgrade(spark, old.lake, said.append)
    assert sorted(path.name for path in old.lake.path.iterdir() if path.name.startswith("_")) == [
        "_checkpoint",
        "_parts",
    ]
    broker = Broker(data).start()
    publish(broker, "hopeless", b"more")
    broker.stop()
    old.fill()  # From the checkpoint that the version before has left.
    assert_same_tables(old, known_before(data))


def test_an_upgrade_that_was_interrupted_is_finished(
    spark: SparkSession, old: FilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    for survived in range(1, 6, 2):
        done = 0

        def dying(self: Path, target: Path, survived: int = survived) -> Path:
            nonlocal done
            if old.lake.path in (self.parent, Path(target).parent):
                if done == survived:
                    raise InterruptedError
                done += 1
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", dying)
        with pytest.raises(InterruptedError):
            upgrade(spark, old.lake, print)
    monkeypatch.setattr(Path, "rename", rename)
    assert upgrade(spark, old.lake, print)
    assert_same_tables(old, known_before(old.lake.path.parent / "data"), published=True)


# ── Without Spark ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_is_read_from_python_with_a_plain_path(past_lake: FilledLake) -> None:
    lake = penstock.lake(str(past_lake.lake.path))
    assert lake.tables == list(TABLES)
    table = lake.table("messages")
    frame = table.to_pandas()
    assert len(frame) == len(table) == len(past_lake.rows("messages"))
    assert list(frame.columns) == table.columns == view(past_lake.spark, past_lake.lake, "messages").columns
    assert set(table.where("state = 'E'").select("state").to_arrow()["state"].to_pylist()) == {"E"}
    assert lake.sql("select count(*) as n from events").to_pylist() == [{"n": len(past_lake.rows("events"))}]
    with pytest.raises(LakeError, match="there is no table nope; the tables are events"):
        lake.table("nope")


def test_reading_a_lake_from_python_does_not_import_spark(past_lake: FilledLake) -> None:
    code = (
        "import sys, penstock; "
        f"print(len(penstock.lake({str(past_lake.lake.path)!r}).table('messages'))); "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", TABLES)
def test_both_engines_give_the_same_rows_with_the_same_types(
    spark: SparkSession, past_lake: FilledLake, name: str
) -> None:
    query = f"select * from {name}"
    by_spark = ask(spark, past_lake.lake, query, 1_000_000)
    by_duckdb = penstock.lake(past_lake.lake.path).sql(query).to_arrow()
    assert by_duckdb.column_names == by_spark.column_names
    assert [_plain(field.type) for field in by_duckdb.schema] == [_plain(field.type) for field in by_spark.schema]
    assert sorted(map(repr, by_duckdb.to_pylist())) == sorted(map(repr, by_spark.to_pylist()))


def _plain(kind: pa.DataType) -> str:
    """Without what only Arrow has to say of it."""
    return str(kind).replace(" not null", "").replace("element", "item").replace("'", "").replace("l: ", "item: ")


def run_sql(lake: Path, query: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", "sql", query, "--lake", str(lake), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_a_question_on_the_command_line_needs_no_java(past_lake: FilledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    ended = run_sql(past_lake.lake.path, "select count(*) as n from events")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert str(len(past_lake.rows("events"))) in ended.stdout


def test_a_wrong_question_is_answered_in_a_few_lines(past_lake: FilledLake) -> None:
    ended = run_sql(past_lake.lake.path, "select nope from events")
    assert ended.returncode == 1
    assert ended.stderr.startswith('penstock: Binder Error: Referenced column "nope" not found')
    assert "Traceback" not in ended.stderr


def test_settings_of_spark_are_refused_for_another_engine(past_lake: FilledLake) -> None:
    ended = run_sql(past_lake.lake.path, "select 1", "--conf", "a=b")
    assert (ended.returncode, ended.stderr) == (
        1,
        "penstock: --master and --conf are for Spark: add --engine spark\n",
    )


def test_an_empty_lake_says_when_the_first_batch_will_be_there(tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", definitions())
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--data", str(data), "--lake", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as pipeline:
        try:
            assert pipeline.stdout is not None
            assert pipeline.stdout.readline() == f"filling {tmp_path}\n"
            ended = run_sql(tmp_path, "select count(*) as n from events")
        finally:
            pipeline.terminate()
            pipeline.wait(60)
    assert "is empty: the pipeline started " in ended.stderr
    assert "its first batch is there about a minute after the start" in ended.stderr
    ended = run_sql(tmp_path, "select count(*) as n from events")
    assert f"{tmp_path} is empty: penstock pipeline run --lake {tmp_path} fills it" in ended.stderr
