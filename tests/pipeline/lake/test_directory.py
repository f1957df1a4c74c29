"""A lake belongs to one log, and says so when the log was restored from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import LakeError
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.source.log import Extent


def test_a_restored_log_is_told_from_which_offset_it_continues_the_log_of_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.path.mkdir(exist_ok=True)
    lake.open_for([Extent("first", 0, 0, 900, 0)])
    lake.open_for([Extent("first", 0, 0, 950, 0)])
    with pytest.raises(LakeError, match=r"is the lake of another log \(first, not other\): choose another directory"):
        lake.open_for([Extent("other", 0, 0, 900, 0)])
    with pytest.raises(LakeError, match="the second continues the first from offset 700, by a restore"):
        lake.open_for([Extent("second", 0, 0, 900, 0, (("first", 700),))])


def test_a_lake_is_of_all_shards_of_a_store(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    both = [Extent(f"log-{shard}", shard, 0, 900, 0, shards=2) for shard in range(2)]
    assert lake.open_for(both) == lake.open_for(both) == lake.origin()
    assert lake.origin().names == ["penstock-log-log-0-0", "penstock-log-log-1-1"]
    with pytest.raises(LakeError, match=r"is the lake of another log \(log-0, log-1, not log-0\)"):
        lake.open_for(both[:1])


def test_a_log_that_was_restored_twice_is_the_same_as_its_ancestors_only_up_to_the_earlier_backup() -> None:
    extent = Extent("third", 0, 0, 900, 0, (("first", 500), ("second", 300)))
    assert extent.same_until("third") is None
    assert [extent.same_until(log) for log in ("second", "first", None, "other")] == [300, 300, 300, 0]
