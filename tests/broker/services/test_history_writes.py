"""The Object History on the disk follows the log, and snapshots wait for it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.limits import HISTORY_BATCH_KEYS
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.log.segments import SegmentLog
from tests.support.live_loop import Remembered


def test_versions_are_written_when_there_are_enough(log: SegmentLog) -> None:
    async def story() -> None:
        rig = Remembered(log)
        count = 0
        while count < HISTORY_BATCH_KEYS:
            await rig.publish(*[(count + number, b"a") for number in range(4000)])
            count += 4000
        await rig.history_writes.reach(1)
        assert rig.history.keys == count
        await rig.close()
        stored = StoredVersions(log.directory.history)
        assert HISTORY_BATCH_KEYS <= stored.keys <= count
        assert stored.reached <= log.end.position
        stored.close()

    asyncio.run(story())


def test_a_snapshot_counts_when_the_history_has_reached_it(log: SegmentLog) -> None:
    async def story() -> None:
        rig = Remembered(log)
        for number in range(100):
            await rig.publish((number % 7, b"%d" % number * 300))
        assert rig.history.reached == 0
        noted = rig.history.noted
        rig.snapshots.start()  # The log has grown enough for one.
        await asyncio.sleep(0)
        await rig.snapshots.idle.wait()
        assert log.snapshots
        assert rig.history.reached >= noted > 0
        await rig.close()

    asyncio.run(story())


def test_no_snapshot_counts_while_the_history_cannot_be_written(log: SegmentLog) -> None:
    async def story() -> None:
        rig = Remembered(log)
        log.directory.history.write_bytes(b"in the way")
        for number in range(100):
            await rig.publish((number % 7, b"%d" % number * 300))
        rig.snapshots.start()
        await rig.history_writes._next_try()
        failure = rig.history_writes.failure
        assert failure is not None
        assert not log.snapshots
        assert rig.known(1).versions == 15, "what is not written is known all the same"
        log.directory.history.unlink()
        await rig.snapshots.idle.wait()
        assert log.snapshots
        assert rig.history_writes.failure is None
        await rig.close()

    asyncio.run(story())


def test_a_broker_that_stops_has_everything_on_the_disk(log: SegmentLog) -> None:
    async def story() -> None:
        rig = Remembered(log)
        await rig.publish((1, b"a"), (2, b"b"), (1, b"c"))
        await rig.history_writes.stop()
        await rig.close()
        again = ObjectHistory(log.directory.history)
        version = again.get("customer", b"1")
        assert version is not None
        assert (version.sequence, version.versions) == (3, 2)
        assert again.reached == rig.history.noted <= log.end.position
        again.close()

    asyncio.run(story())


def test_the_process_that_writes_ends_when_there_is_nothing_to_write(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        rig = Remembered(log)
        await rig.publish((1, b"a"))
        await rig.history_writes.reach(rig.history.noted)
        process = rig.history._writer._process
        assert process is not None, "there may soon be more to write"
        monkeypatch.setattr("penstock.broker.services.history_writes._IDLE_SECONDS", 0.001)
        rig.history_writes.wake()
        await asyncio.to_thread(process.wait)
        await rig.publish((1, b"b"))
        await rig.history_writes.stop()
        assert rig.history.reached == rig.history.noted
        await rig.close()

    asyncio.run(story())


def test_the_log_knows_what_it_still_holds(log: SegmentLog) -> None:
    async def story() -> None:
        rig = Remembered(log)
        for number in range(200):
            await rig.publish((1, b"%d" % number * 500))
        assert len(rig.history.versions("customer", b"1", 100)) == 100
        assert len(log.segments) > 3
        middle = log.segments[-2]
        log.remove(middle)
        shown = [version.position for version in rig.history.versions("customer", b"1", 100)]
        end = log.segments[-1].base_position
        assert shown
        assert not [position for position in shown if middle.base_position <= position < end]
        assert min(shown) < middle.base_position < end < max(shown)
        await rig.close()

    asyncio.run(story())
