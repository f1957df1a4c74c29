"""`penstock log rebuild-history`: the Object History made anew from the log is the one that was lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.log import app
from penstock.errors import DamagedLogError, DataDirectoryError
from penstock.model.values import Version
from penstock.storage.directory import DataDirectory
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import name_of
from penstock.storage.log.segments import SegmentLog
from tests.support.live_loop import Remembered

KEYS = 20


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """A directory that a broker has left: 20 keys, most of them changed often, in several segments."""
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=64 << 10)
    assert list(log.recover().events) == []

    async def story() -> None:
        rig = Remembered(log)
        await rig.publish(*[(key, b"first") for key in range(KEYS)])
        for number in range(300):
            await rig.publish((number % (KEYS // 2), b"%d" % (number // 17) * 500))
            if number == 200:
                await rig.history_writes.reach(rig.history.noted)
        await rig.history_writes.stop()
        await rig.snapshots.stop()
        await rig.close()

    asyncio.run(story())
    assert len(log.segments) > 3
    log.close()
    directory.close()
    return directory


def entries(data: DataDirectory) -> dict[bytes, Version]:
    stored = StoredVersions(data.history)
    found = dict(stored.entries())
    stored.close()
    return found


def chains(data: DataDirectory) -> dict[bytes, list[int]]:
    """By key: the sequences of all its versions, newest first."""
    history = ObjectHistory(data.history)
    about = [("customer", b"%d" % key) for key in range(KEYS)]
    found = {name_of(*each): [version.sequence for version in history.versions(*each, 100)] for each in about}
    history.close()
    return found


def rebuild(data: DataDirectory) -> str:
    answer = CliRunner().invoke(app, ["rebuild-history", str(data.path)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def remove_first_segment(data: DataDirectory) -> None:
    sorted(data.log.glob("*.log"))[0].unlink()


@pytest.mark.parametrize("lost", ["removed", "garbage", "there"])
def test_what_is_rebuilt_is_what_was(data: DataDirectory, lost: str) -> None:
    before = entries(data), chains(data)
    if lost == "removed":
        shutil.rmtree(data.history)
    elif lost == "garbage":
        (data.history / "data.mdb").write_bytes(b"garbage" * 10_000)
    assert "has 20 keys" in rebuild(data)
    assert (entries(data), chains(data)) == before
    assert not (data.path / "history.new").exists()


def test_what_the_log_no_longer_tells_is_taken_over(data: DataDirectory) -> None:
    before = entries(data)
    remove_first_segment(data)
    said = rebuild(data)
    assert "10 of them are no longer in the log, and were copied" in said
    assert entries(data) == before, "also how many versions there were"


def test_what_nobody_can_tell_any_more_is_said_to_be_lost(data: DataDirectory) -> None:
    remove_first_segment(data)
    shutil.rmtree(data.history)
    said = rebuild(data)
    assert "has 10 keys" in said
    assert "Keys that have not changed since are lost, and count as new" in said


def test_a_hole_in_the_log_takes_nothing_back(data: DataDirectory) -> None:
    before = entries(data)
    middle = sorted(data.log.glob("*.log"))[-2]
    middle.unlink()
    rebuild(data)
    assert entries(data) == before


def test_a_damaged_log_is_not_rebuilt_from(data: DataDirectory) -> None:
    before = entries(data)
    segment = sorted(data.log.glob("*.log"))[1]
    damaged = bytearray(segment.read_bytes())
    damaged[5000] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(DamagedLogError, match="penstock log verify"):
        rebuild(data)
    assert entries(data) == before


def test_what_is_no_data_directory_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="not a Penstock data directory"):
        CliRunner().invoke(app, ["rebuild-history", str(tmp_path)], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []
