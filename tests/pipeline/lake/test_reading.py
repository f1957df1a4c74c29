"""The lake without Spark: DuckDB shows what Spark shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import LakeError
from penstock.pipeline.lake.sql import ask
from penstock.pipeline.lake.tables import TABLES
from penstock.pipeline.lake.views import view
from tests.support.lakes import FilledLake
from tests.support.offline import definitions, make_log


def test_a_table_is_read_from_python_with_a_plain_path(past_lake: FilledLake) -> None:
    lake = penstock.lake(str(past_lake.lake.path))
    assert lake.tables == list(TABLES)
    table = lake.table("messages")
    frame = table.to_pandas()
    assert len(frame) == len(table) == len(past_lake.rows("messages"))
    assert list(frame.columns) == table.columns == view(past_lake.spark, past_lake.lake, "messages").columns
    assert set(table.where("state = 'E'").select("state").to_arrow()["state"].to_pylist()) == {"E"}
    assert lake.sql("select count(*) as n from events").to_pylist() == [{"n": len(past_lake.rows("events"))}]
    with pytest.raises(LakeError, match="unknown table nope; the tables are events"):
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
    assert "Its first batch arrives about a minute after the start" in ended.stderr
    ended = run_sql(tmp_path, "select count(*) as n from events")
    assert f"{tmp_path} is empty: fill it with penstock pipeline run --lake {tmp_path}" in ended.stderr
