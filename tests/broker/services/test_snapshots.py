"""Snapshots by a forked child, and the space they give back."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.services.damage import DamagedMessages
from penstock.broker.services.live_messages import NOBODY, LiveMessages
from penstock.broker.services.snapshots import Snapshots
from penstock.broker.writer.loop import Loop
from penstock.config.config import LogConfig
from penstock.engine.groups import WORKERS
from penstock.errors import StoreError
from penstock.model.commands import (
    AwaitResult,
    CreateQueue,
    Draw,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    PublishTopics,
    Pull,
)
from penstock.model.kinds import State
from penstock.model.settings import QueueSettings
from penstock.storage.log import segments as storage
from penstock.storage.log.segments import SegmentLog
from tests.support.live_loop import a_loop, ask

FORGETFUL = LogConfig(snapshot_bytes=64 << 10, retention_seconds=0)
BODY = b"x" * 1000


async def come_and_go(loop: Loop, count: int, *, keep: int = 0) -> None:
    """Publish and finish messages, leaving every `keep`-th one there."""
    for number in range(count):
        await ask(loop, Publish("work", [NewMessage(BODY)]))
        (delivery,) = await ask(loop, Fetch("work"))
        if not keep or number % keep:
            await ask(loop, Finish(delivery.queue, delivery.sequence))


async def snapshots(loop: Loop, keeper: Snapshots, count: int, *, keep: int = 0) -> None:
    """Let messages come and go until so many snapshots were taken."""
    for _ in range(count):
        taken = published(loop)
        await come_and_go(loop, 80, keep=keep)
        await taken.wait()


def published(loop: Loop) -> asyncio.Event:
    """Set when the next snapshot counts."""
    log, happened, running = cast("Any", loop.log), asyncio.Event(), asyncio.get_running_loop()
    publish = log.publish_snapshot

    def publish_and_say_so(offset: int) -> None:
        publish(offset)
        log.publish_snapshot = publish
        running.call_soon_threadsafe(happened.set)

    log.publish_snapshot = publish_and_say_so
    return happened


def test_a_broker_at_rest_takes_a_snapshot_of_its_last_burst(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 10)
        taken = published(loop)
        keeper.start()
        await taken.wait()
        newest = log.snapshots[0]
        assert newest.offset == log.end.offset
        await asyncio.sleep(0.05)
        assert keeper.newest is newest, "nothing has happened since"
        await keeper.close()

    monkeypatch.setattr("penstock.broker.services.snapshots._LOOK_AROUND_SECONDS", 0.001)
    asyncio.run(story())


class SlowStore:
    """Publishes no snapshot until it may, and remembers which ones it was given."""

    def __init__(self, log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.offsets: list[int] = []
        self._publish = log.publish_snapshot
        monkeypatch.setattr(log, "publish_snapshot", self._publish_slowly)

    def _publish_slowly(self, offset: int) -> None:
        self.offsets.append(offset)
        self.begun.set()
        self.may_end.wait(60)
        self._publish(offset)


def test_clients_are_served_while_a_snapshot_is_published(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be far away."""
    slow = SlowStore(log, monkeypatch)

    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 10)
        keeper.start()
        await asyncio.to_thread(slow.begun.wait, 60)
        await come_and_go(loop, 1)
        assert not log.snapshots
        slow.may_end.set()
        await keeper.idle.wait()
        assert log.snapshots
        await keeper.close()

    monkeypatch.setattr("penstock.broker.services.snapshots._LOOK_AROUND_SECONDS", 0.001)
    asyncio.run(story())


def test_no_other_snapshot_is_taken_while_one_is_for_a_hand_over(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStore(log, monkeypatch)

    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, LogConfig(snapshot_bytes=64 << 10))
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 10)
        shortened = asyncio.create_task(keeper.shorten_replay())
        await asyncio.to_thread(slow.begun.wait, 60)
        await come_and_go(loop, 160)
        assert len(slow.offsets) == 1
        slow.may_end.set()
        await shortened
        await come_and_go(loop, 160)
        await keeper.close()
        assert slow.offsets == sorted(slow.offsets)

    monkeypatch.setattr("penstock.broker.services.snapshots.REPLAY_BYTES_SHORT", 0)
    monkeypatch.setattr("penstock.broker.services.snapshots._LOOK_AROUND_SECONDS", 0.001)
    asyncio.run(story())


def test_a_hand_over_waits_for_the_next_snapshot_too_if_that_one_begins_at_once(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStore(log, monkeypatch)

    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, LogConfig(snapshot_bytes=64 << 10))
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 80)
        keeper.start()
        await asyncio.to_thread(slow.begun.wait, 60)
        shortened = asyncio.create_task(keeper.shorten_replay())
        await come_and_go(loop, 160)
        slow.may_end.set()
        await shortened
        await keeper.close()
        assert len(slow.offsets) > 1
        assert slow.offsets == sorted(set(slow.offsets))

    monkeypatch.setattr("penstock.broker.services.snapshots.REPLAY_BYTES_SHORT", 0)
    asyncio.run(story())


def test_a_shard_is_handed_over_without_a_snapshot_if_none_can_be_taken(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may say at that moment that another broker has the shard."""

    def lose(_: int) -> None:
        raise StoreError("another broker owns this log")

    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, LogConfig(snapshot_bytes=64 << 10))
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 10)
        await keeper.shorten_replay()
        assert not log.snapshots
        await keeper.close()

    monkeypatch.setattr("penstock.broker.services.snapshots.REPLAY_BYTES_SHORT", 0)
    monkeypatch.setattr(log, "publish_snapshot", lose)
    asyncio.run(story())


def test_a_broker_at_work_takes_no_snapshot_before_its_time(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await come_and_go(loop, 20)
        await keeper.close()
        assert keeper.newest is None

    asyncio.run(story())


def test_a_snapshot_that_is_given_up_leaves_no_child(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        while keeper.idle.is_set():
            await come_and_go(loop, 1)
        await keeper.close()
        assert keeper.idle.is_set()

    before = children()
    asyncio.run(story())
    assert children() == before


def children() -> set[str]:
    """The processes that this one has started, also those that ended and were not waited for."""
    return {status.parent.name for status in Path("/proc").glob("[0-9]*/stat") if parent_of(status) == os.getpid()}


def parent_of(status: Path) -> int | None:
    try:
        return int(status.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # It has ended meanwhile.


@pytest.mark.parametrize(("retention_seconds", "expected"), [(0, 1), (3600, 0)])
def test_a_log_that_nobody_wants_is_worth_a_snapshot_earlier(
    log: SegmentLog, retention_seconds: int, expected: int
) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, LogConfig(retention_seconds=retention_seconds))
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        for _ in range(25):
            await ask(loop, Publish("work", [NewMessage(bytes(1 << 20))]))
        await keeper.idle.wait()
        assert len(log.snapshots) == expected

    asyncio.run(story())


def test_segments_without_living_messages_are_given_back(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await snapshots(loop, keeper, 4)
        await keeper.idle.wait()
        await keeper.close()
        assert log.segments[0].base_offset > 0
        assert len(log.segments) < 6
        assert sum(path.stat().st_size for path in log.directory.log.iterdir()) < 512 << 10

    asyncio.run(story())


def test_a_start_with_a_shorter_retention_gives_space_back_without_traffic(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, LogConfig(snapshot_bytes=64 << 10))
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await snapshots(loop, keeper, 3)
        await keeper.close()
        kept, end = len(log.view().parts), log.end
        again = Snapshots(loop, FORGETFUL)
        taken = published(loop)
        again.start()
        await taken.wait()
        await again.idle.wait()
        assert len(log.view().parts) < kept
        assert log.end == end
        await again.close()

    asyncio.run(story())


def test_the_living_messages_of_a_mostly_dead_segment_are_carried_forward(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings(visibility_ns=10**15)))
        await ask(loop, Publish("work", [NewMessage(b"the first of all")]))
        (survivor,) = await ask(loop, Fetch("work"))
        await snapshots(loop, keeper, 8, keep=50)
        await keeper.idle.wait()
        await keeper.close()
        assert log.segments[0].base_offset > 0
        row = loop.engine.queues[1].rows.get(survivor.sequence)
        assert row is not None
        assert row.position > survivor.position, "it was written again further up"
        assert log.read(row.position, row.body_bytes) == b"the first of all"

    asyncio.run(story())


def test_damage_does_not_keep_other_messages_from_being_carried_forward(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        DamagedMessages(loop).start()
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings(visibility_ns=10**15)))
        for body in (b"damaged on the disk", b"whole"):
            await ask(loop, Publish("work", [NewMessage(body)]))
        damaged, whole = await ask(loop, Fetch("work", 2))
        oldest = log.segments[0].path
        content = oldest.read_bytes()
        oldest.write_bytes(content.replace(b"damaged on the disk", b"damaged On the disk"))
        await snapshots(loop, keeper, 8, keep=50)
        await keeper.idle.wait()
        await keeper.close()
        rows = loop.engine.queues[1].rows
        lost, carried = rows.get(damaged.sequence), rows.get(whole.sequence)
        assert lost is not None
        assert carried is not None
        assert (State(lost.state), lost.position) == (State.DAMAGED, damaged.position)
        assert carried.position > whole.position, "it was written again further up"
        assert oldest.exists(), "what can still be had of it is in it"
        assert len(log.segments) < 10, "and others are given back"

    monkeypatch.setattr(storage, "TAIL_BYTES_MAX", 0)  # Everything is read from the disk.
    asyncio.run(story())


def test_nothing_is_removed_while_the_log_is_pinned(log: SegmentLog) -> None:
    async def story() -> None:
        loop, pinned = a_loop(log), True
        keeper = Snapshots(loop, FORGETFUL, is_pinned=lambda: pinned)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await snapshots(loop, keeper, 4)
        await keeper.idle.wait()
        assert log.segments[0].base_offset == 0
        pinned = False
        await snapshots(loop, keeper, 1)
        await keeper.idle.wait()
        assert log.segments[0].base_offset > 0
        await keeper.close()

    asyncio.run(story())


def test_results_are_carried_forward_like_messages(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await ask(loop, CreateQueue("kept", QueueSettings(keep="all")))
        await ask(loop, Publish("kept", [NewMessage(b"question")]))
        await ask(loop, Pull("r", [Draw("kept", retries=1, fail_ns=10**15)]))
        await ask(loop, Pull("r", results=[("kept", 1, b"answer")]))
        await ask(loop, Pull("s", results=[("kept", 1, b"")]))
        before = loop.engine.queues[2].groups.result(1)
        await snapshots(loop, keeper, 8)
        await keeper.idle.wait()
        await keeper.close()
        assert log.segments[0].base_offset > 0
        after = loop.engine.queues[2].groups.result(1)
        assert before is not None
        assert after is not None
        assert after.position > before.position, "it was written again further up"
        for receiver, result in (("r", b"answer"), ("s", b"")):
            assert (await ask(loop, AwaitResult("kept", 1, receiver))).result == result

    asyncio.run(story())


def test_a_body_that_many_queues_share_is_carried_once(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        for number in range(40):
            await ask(loop, CreateQueue(f"channel-{number}", QueueSettings(topics=("a.*",))))
        await ask(loop, PublishTopics([NewMessage(b"shared", topics=("a.b",), key=b"k")], QueueSettings()))
        sharing = [loop.engine.queues[number] for number in [*range(2, 42), 42]]
        (before,) = {row.position for queue in sharing if (row := queue.rows.get(1))}
        await snapshots(loop, keeper, 8)
        await keeper.idle.wait()
        await keeper.close()
        assert log.segments[0].base_offset > 0
        (after,) = {row.position for queue in sharing if (row := queue.rows.get(1))}
        assert after > before, "it was written again further up"
        assert log.read(after, 7) == b"sharedk"

    asyncio.run(story())


def test_what_workers_have_confirmed_of_several_is_carried_forward(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        keeper = Snapshots(loop, FORGETFUL)
        keeper.start()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await ask(loop, CreateQueue("several", QueueSettings(confirmations=3)))
        await ask(loop, Publish("several", [NewMessage(b"x")]))
        await ask(loop, Fetch("several"))
        await ask(loop, Finish(2, 1, result=b"done"))
        await snapshots(loop, keeper, 8)
        await keeper.idle.wait()
        await keeper.close()
        assert log.segments[0].base_offset > 0
        slot = loop.engine.queues[2].groups.slot(WORKERS, 1)
        assert slot is not None
        assert log.read(slot.value, slot.size) == b"done"

    asyncio.run(story())


def test_a_segment_with_living_results_stays(log: SegmentLog) -> None:
    async def story() -> None:
        loop = a_loop(log)
        await ask(loop, CreateQueue("kept", QueueSettings(keep="all")))
        await ask(loop, Publish("kept", [NewMessage(b"%d" % number) for number in range(100)]))
        for sequence in range(1, 101):
            await ask(loop, Pull("r", results=[("kept", sequence, BODY)]))
        live = LiveMessages([segment.base_position for segment in log.segments])
        list(live.watch(loop.engine.sections()))
        assert sum(live.alive) == 200
        assert all(live.alive)
        everything = live.living_in(loop.engine.sections(), [True] * len(log.segments), 1000)
        results = [each for each in everything if each.receiver != NOBODY]
        assert [each.sequence for each in results] == list(range(1, 101))
        assert all(log.read(each.position, each.size) == BODY for each in results)
        assert len(live.living_in(loop.engine.sections(), [True] * len(log.segments), 150)) == 150

    asyncio.run(story())
