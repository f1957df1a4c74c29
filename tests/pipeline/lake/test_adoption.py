"""A lake goes on after its broker was restored from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LakeError
from penstock.model.events import Fetched, QueueRemoved
from penstock.pipeline.lake import adoption
from penstock.pipeline.lake.adoption import adopt, common_offsets
from penstock.pipeline.lake.compaction import rebuild
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.publication import publish_all
from penstock.pipeline.lake.tables import TABLES, Table
from penstock.pipeline.source.log import Extent
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.shards import ShardLogs
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.restoring import restore_backup
from penstock.storage.backup.source import DirectorySource, StoreSource
from penstock.storage.directory import DataDirectory
from tests.support.lakes import FilledLake, assert_same_tables, events_of
from tests.support.offline import definitions, make_log, messages


def test_a_lake_is_cut_back_to_the_backup_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = Fetched(60_000_000, 1, 3, 2, 1, 0, visible_at=9)
    data = make_log(tmp_path / "data", definitions(), messages(1, 20), [fetched])
    directory = DataDirectory(data)
    source = DirectorySource(directory, directory.read_identity(), 5)
    make_backup(tmp_path / "backup", StoreSource([source]))
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    make_log(data, messages(21, 20), messages(1, 3, queue=2), [QueueRemoved(200_000_000_000_000, 1)])  # Lost.
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill(maxEventsPerTrigger=60)
    publish_all(filled.lake)
    make_log(tmp_path / "restored", messages(21, 5))
    restored = FilledLake(spark, tmp_path / "lake", path=str(tmp_path / "restored"))
    with pytest.raises(LakeError, match="with penstock pipeline adopt --lake"):
        restored.fill()
    extents = ShardLogs(parse_options({"path": str(tmp_path / "restored")})).extents()
    said: list[str] = []

    def dying(spark: SparkSession, lake: Lake, table: Table) -> int:
        if table is TABLES["messages"]:
            raise InterruptedError
        return rebuild(spark, lake, table)

    with monkeypatch.context() as patch:
        patch.setattr(adoption, "rebuild", dying)
        with pytest.raises(InterruptedError):
            adopt(spark, restored.lake, extents, said.append)
    with pytest.raises(LakeError, match="half adopted: run penstock pipeline adopt"):
        restored.fill()
    assert adopt(spark, restored.lake, extents, said.append)
    assert said[0].startswith("events: cut back to offset ")
    assert not adopt(spark, restored.lake, extents, said.append)
    restored.fill()
    publish_all(restored.lake)
    assert_same_tables(restored, events_of(tmp_path / "restored"), published=True)


def test_only_a_log_that_continues_that_of_the_lake_is_adopted(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.path.mkdir()
    origin = lake.open_for([Extent("first", 0, 0, 900, 0), Extent("second", 1, 0, 500, 0, shards=2)])
    restored = [Extent("third", 0, 0, 900, 0, (("first", 700),)), Extent("fourth", 1, 0, 600, 0, (("second", 400),))]
    assert common_offsets(lake, origin, restored) == (700, 400)
    with pytest.raises(LakeError, match="2 shards and the log 1"):
        common_offsets(lake, origin, restored[:1])
    with pytest.raises(LakeError, match="log first, from which this one was not restored"):
        common_offsets(lake, origin, [Extent("other", 0, 0, 900, 0), restored[1]])
