"""Tables of the lake as Delta has them, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.lake.delta import LakeTable
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.publication import public_table
from penstock.pipeline.lake.tables import TABLES, parts_table
from penstock.pipeline.source.log import Extent
from tests.support.command_line import penstock


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


def test_the_status_tells_what_a_table_has_from_what_other_readers_find(lake: Lake) -> None:
    for table in TABLES.values():
        reach(lake, parts_table(lake, table), 12)
    reach(lake, public_table(lake, TABLES["messages"]), 5)
    ended = penstock("pipeline", "status", "--lake", str(lake.path), "--data", "/nowhere")
    lines = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines() if line.split()}
    assert lines["events"] == ["12", "unknown", "12", "unknown"]
    assert lines["messages"] == ["12", "unknown", "5", "unknown"]
    assert lines["changes"] == ["12", "unknown", "0", "unknown"]
