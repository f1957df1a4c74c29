"""A lake of the version before is refused, upgraded, and goes on."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import LakeError
from penstock.model.kinds import Kind
from penstock.pipeline.lake.upgrade import upgrade
from tests.support.broker import Broker
from tests.support.event_history import publish
from tests.support.lakes import FilledLake, assert_same_tables, events_of

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def old(spark: SparkSession, tmp_path: Path, written: int) -> FilledLake:
    """A lake that an earlier version has filled, and its log."""
    with tarfile.open(GOLDEN / f"lake-format-{written}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return FilledLake(spark, tmp_path / "lake", path=str(tmp_path / "data"))


def known_before(data: Path, written: int) -> pa.Table:
    """The events that a lake of an earlier version has: with format 1 all but the removal of a queue, which was
    none."""
    events = events_of(data)
    return events.filter(pc.not_equal(events["kind"], Kind.QUEUE_REMOVED)) if written == 1 else events


@pytest.mark.parametrize("written", [2])
def test_a_lake_of_the_version_before_is_refused_with_what_to_do(old: FilledLake) -> None:
    with pytest.raises(
        LakeError, match=r"an older version .*: upgrade it with penstock pipeline upgrade --lake .*/lake"
    ):
        penstock.lake(old.lake.path)


@pytest.mark.parametrize("written", [1, 2])
def test_a_lake_of_an_earlier_version_is_upgraded_and_goes_on(
    spark: SparkSession, old: FilledLake, written: int
) -> None:
    data = old.lake.path.parent / "data"
    said: list[str] = []
    assert upgrade(spark, old.lake, said.append)
    assert said[0].startswith(f"upgrading {old.lake.path} from format {written} to 3")
    assert_same_tables(old, known_before(data, written), published=True)
    assert not upgrade(spark, old.lake, said.append)
    assert sorted(path.name for path in old.lake.path.iterdir() if path.name.startswith("_")) == [
        "_checkpoint",
        "_parts",
    ]
    broker = Broker(data).start()
    publish(broker, "hopeless", b"more")  # It is in both logs.
    broker.stop()
    old.fill()  # From the checkpoint that the version before has left.
    assert_same_tables(old, known_before(data, written))


@pytest.mark.parametrize("written", [2])
def test_an_upgrade_that_was_interrupted_is_finished(
    spark: SparkSession, old: FilledLake, written: int, monkeypatch: pytest.MonkeyPatch
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
    assert_same_tables(old, known_before(old.lake.path.parent / "data", written), published=True)
