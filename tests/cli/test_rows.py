"""Rows of a query, as tables, lines, JSON and CSV; and what is drawn of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import charts, rows
from penstock.errors import LakeError
from penstock.pipeline.lake.directory import Lake
from tests.support.command_line import penstock

NAMES = ["queue", "n"]


def test_a_sum_of_whole_numbers_is_one_and_can_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """DuckDB adds whole numbers up to decimals with 38 digits."""
    column = pa.array([Decimal(3), Decimal(12), None], pa.decimal128(38, 0))
    found = rows.rows_of(pa.table({"queue": ["a", "b", "c"], "n": column}))
    assert found == [["a", 3], ["b", 12], ["c", None]]
    charts.bars(NAMES, found)
    assert "█" in capsys.readouterr().out
    charts.bars(NAMES, [["a", Decimal("1.5")]])
    assert "█" in capsys.readouterr().out


def test_columns_with_the_same_name_are_all_there() -> None:
    assert rows.rows_of(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])) == [[1, 2]]


def test_a_row_that_is_too_wide_has_a_line_for_each_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide = [f"column_{at}" for at in range(12)]
    values: list[object] = [b"body\n", "text", 7, *["x" * 10] * 9]
    rows.show(wide, [values, values])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "─── 1 ───"
    assert shown[1] == "column_0   body·"
    assert len(shown) == 2 * (1 + 12)
    rows.show(NAMES, [["orders", 1000]])
    assert capsys.readouterr().out == "queue      n\norders  1000\n"
    rows.show(NAMES, [["orders", 1]], vertical=True)
    assert capsys.readouterr().out == "─── 1 ───\nqueue  orders\nn      1\n"


def test_rows_for_programs_are_json_or_csv(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["message", "key", "at", "headers", "hands"]
    row = [b"\xff", b"k", datetime(2026, 1, 2, tzinfo=UTC), [("a", b"1")], [{"consumer": "w", "ms": Decimal("0.5")}]]
    rows.write_json(names, [row])
    assert json.loads(capsys.readouterr().out) == {
        "message_base64": "/w==",
        "key": "k",
        "at": "2026-01-02T00:00:00Z",
        "headers": {"a": "1"},
        "hands": [{"consumer": "w", "ms": 0.5}],
    }
    rows.write_csv(names, [row])
    head, line = capsys.readouterr().out.splitlines()
    assert head == "message,key,at,headers,hands"
    assert line == '\\xff,k,2026-01-02 00:00:00.000,a: 1,"consumer w, ms 0.5"'


@pytest.mark.parametrize("verb", [("pipeline", "run"), ("up",), ("sql", "select 1")])
def test_a_lake_that_is_no_directory_is_refused(verb: tuple[str, ...]) -> None:
    ended = penstock(*verb, "--lake", "s3a://bucket/lake")
    assert ended.returncode
    assert "s3a://bucket/lake is not a directory" in ended.stderr
    assert not Path("s3a:").exists()


def test_a_lake_that_is_no_directory_is_not_opened_either() -> None:
    with pytest.raises(LakeError, match="object stores and hdfs:// are not supported"):
        Lake(Path("hdfs://host/lake"))
