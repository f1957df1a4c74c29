"""Couriers between live shards: what crosses arrives once and soon, whatever crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from penstock.broker.services import courier_source, courier_target
from penstock.errors import Reason
from penstock.limits import COURIER_PROGRESS_RECORDS, SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import Fetch, NewMessage, Publish, PublishTopics, Redrive, Settle, UpdateQueue
from penstock.model.courier_commands import CollectParcels
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Cursor, Stage
from penstock.storage.memory import MemoryLog
from penstock.storage.port import BeingFetchedError
from tests.support.live_loop import ask, until
from tests.support.live_shards import NEW_QUEUE, LiveShards

HOMES = {"a": 0, "b": 1, "all": 1, "dead": 1, "sweet": 2, "far": 2}


def live(story: Callable[[LiveShards], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        shards = LiveShards(3, HOMES)
        await shards.create("dead")
        await shards.create("a", redrive_policy=RedrivePolicy(1, "dead"))
        await shards.create("all", topics=("*",))
        await shards.create("sweet", topics=("a.sweet",))
        try:
            async with asyncio.timeout(100):
                await story(shards)
        finally:
            await shards.end()

    def test() -> None:
        asyncio.run(run())

    test.__name__ = getattr(story, "__name__", "test")
    return test


def about(body: bytes, topic: str = "a.sweet") -> NewMessage:
    return NewMessage(body, topics=(topic,))


async def has(shards: LiveShards, queue: str, expected: Counter[bytes]) -> None:
    """Wait until a queue has these messages, and no more of them."""
    await until(lambda: shards.bodies(queue).total() >= expected.total())
    assert shards.bodies(queue) == expected


@live
async def test_a_channel_elsewhere_gets_messages_as_they_are_published(shards: LiveShards) -> None:
    for each in range(5):
        await shards.publish(about(b"%d" % each))
        expected = Counter(b"%d" % done for done in range(each + 1))
        await has(shards, "sweet", expected)
        await has(shards, "all", expected)


@live
async def test_a_message_that_is_published_while_the_services_start_is_not_forgotten(shards: LiveShards) -> None:
    """A worker answers clients before its services run."""
    for each in range(5):
        await shards.crash(0)
        source = shards.of("a")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        source.loop.submit(PublishTopics([about(b"%d" % each)], NEW_QUEUE), answered.set_result)
        source.loop.decide_collected()
        assert source.log.collecting
        source.courier_source.start()
        await answered
        await has(shards, "sweet", Counter(b"%d" % done for done in range(each + 1)))


@live
async def test_a_dead_letter_goes_elsewhere_and_back(shards: LiveShards) -> None:
    await shards.publish(about(b"1", "a.x"))
    [delivery] = await shards.ask("a", Fetch("a"))
    await shards.ask("a", Settle(delivery.queue, delivery.sequence, "retry"))
    await has(shards, "dead", Counter([b"1"]))
    await shards.ask("dead", Redrive("dead", [1]))
    await has(shards, "a", Counter([b"1"]))
    await until(lambda: not shards.bodies("dead"))
    await until(lambda: all(not box.messages for box in shards.of("a").loop.engine.couriers.outboxes.values()))


@live
async def test_a_shard_knows_at_once_for_whom_its_queues_are_dead_letter_queues(shards: LiveShards) -> None:
    courier = shards.of("dead").courier
    await until(lambda: courier.dead_letters() == {"dead"})
    await shards.create("far", redrive_policy=RedrivePolicy(1, "b"))
    await until(lambda: courier.dead_letters() == {"b", "dead"})
    await shards.ask("a", UpdateQueue("a", QueueSettings(), ("redrive_policy",)))
    await until(lambda: courier.dead_letters() == {"b"})
    await shards.crash(1)
    await until(lambda: shards.of("dead").courier.dead_letters() == {"b"})


@live
async def test_a_shard_that_crashes_goes_on_where_it_was(shards: LiveShards) -> None:
    for each in range(12):
        await shards.publish(*[about(b"%d %d" % (each, more)) for more in range(10)])
        await shards.crash(each % 3)
    expected = Counter(b"%d %d" % (each, more) for each in range(12) for more in range(10))
    await has(shards, "sweet", expected)
    await has(shards, "all", expected)


@live
async def test_a_channel_has_every_message_that_is_published_after_its_creation(shards: LiveShards) -> None:
    for each in range(10):
        name = f"new{each}"
        await shards.create(name, topics=(f"a.{each}",))
        await shards.publish(about(b"%d" % each, f"a.{each}"))
        await has(shards, name, Counter([b"%d" % each]))


@live
async def test_a_shard_that_is_far_behind_reads_the_log(shards: LiveShards) -> None:
    target = shards.of("sweet")
    await target.courier.close()
    for each in range(30):
        await shards.publish(*[about(b"%d %d" % (each, more)) for more in range(100)])
    await shards.crash(0)  # The source has nothing in memory any more.
    target.courier.start()
    await has(shards, "sweet", Counter(b"%d %d" % (each, more) for each in range(30) for more in range(100)))


def snapshot(shards: LiveShards, of: str, *, forgets_promises: bool = False) -> None:
    """Let a shard start from its state of now. Earlier versions did not store where the newest promise is."""
    source = shards.of(of)
    source.log.write_snapshot(source.loop.engine.sections(), source.log.appended, 1)
    source.log.publish_snapshot(source.log.appended.offset)
    assert source.log.snapshot
    kind, facts, columns = source.log.snapshot.sections[0]
    head = msgspec.json.decode(facts)
    assert (kind, head["promised"]) == ("engine", source.loop.engine.couriers.promised)
    if forgets_promises:
        del head["promised"]
        source.log.snapshot.sections[0] = (kind, msgspec.json.encode(head), columns)


@pytest.mark.parametrize("forgets_promises", [False, True])
def test_what_was_promised_before_a_snapshot_is_found_after_it(forgets_promises: bool) -> None:
    @live
    async def story(shards: LiveShards) -> None:
        target = shards.of("sweet")
        await target.courier.close()
        await shards.publish(about(b"1"))
        await shards.ask("a", Publish("a", [NewMessage(b"for nobody else")]))
        snapshot(shards, "a", forgets_promises=forgets_promises)
        await shards.crash(0)
        target.courier.start()
        await has(shards, "sweet", Counter([b"1"]))

    story()


@live
async def test_promises_in_a_part_that_is_fetched_are_awaited_while_others_are_served(shards: LiveShards) -> None:
    target, fetch = shards.of("sweet"), Future[None]()
    await target.courier.close()
    await shards.publish(about(b"1"))
    await shards.crash(0)
    source, asked = shards.of("a"), list[int]()

    def require(position: int) -> None:
        asked.append(position)
        if not fetch.done():
            raise BeingFetchedError(fetch)

    source.log.require = require  # type: ignore[method-assign,assignment]
    target.courier.start()
    await until(lambda: bool(asked))
    await shards.ask("a", Publish("a", [NewMessage(b"for nobody else")]))
    assert not shards.bodies("sweet")
    fetch.set_result(None)
    await has(shards, "sweet", Counter([b"1"]))


@live
async def test_what_is_found_to_be_durable_after_a_failure_is_sent_at_once(shards: LiveShards) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_target, "COURIER_WAIT_SECONDS", 1000)
        await shards.crash(shards.map.of_name("sweet"))  # Its next questions wait as long.
        await shards.publish(about(b"0"))
        await has(shards, "sweet", Counter([b"0"]))
        source = shards.of("a")

        def commit_and_lose_the_answer(now: int, progress: Callable[[Stage | BaseException], None]) -> None:
            MemoryLog.commit(source.log, now, lambda _: None)
            progress(OSError("the answer was lost"))

        patch.setattr(source.log, "commit", commit_and_lose_the_answer)
        publishing = asyncio.ensure_future(shards.publish(about(b"1")))
        await until(lambda: bool(source.loop.failure))
        source.revive()
        assert not isinstance(await publishing, Refused)
        await has(shards, "sweet", Counter([b"0", b"1"]))


@live
async def test_a_log_without_promises_after_a_cursor_is_not_read_for_them(shards: LiveShards) -> None:
    await shards.publish(about(b"1"))
    await has(shards, "sweet", Counter([b"1"]))
    await has(shards, "all", Counter([b"1"]))
    await shards.ask("a", Publish("a", [NewMessage(b"for nobody else")]))
    snapshot(shards, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_source.CourierSource, "_promised_in_log", None)  # Calling it fails.
        await shards.crash(0)
        await shards.publish(about(b"2"))
        await has(shards, "sweet", Counter([b"1", b"2"]))
        await has(shards, "all", Counter([b"1", b"2"]))


@live
async def test_what_is_not_in_memory_any_more_is_read_from_the_log(shards: LiveShards) -> None:
    target = shards.of("sweet")
    await target.courier.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_source, "COURIER_RECENT_BYTES", 1000)
        for each in range(40):
            await shards.publish(about(b"%064d" % each))
        target.courier.start()
        await has(shards, "sweet", Counter(b"%064d" % each for each in range(40)))


@live
async def test_the_lag_is_how_long_the_oldest_message_waits(shards: LiveShards) -> None:
    await shards.publish(about(b"1"))
    await has(shards, "sweet", Counter([b"1"]))
    courier = shards.of("sweet").courier
    await until(lambda: courier.lags() == {0: 0.0, 1: 0.0})
    samples = dict(courier.state())
    assert samples["penstock_courier_messages_total"] == [(("0",), 1), (("1",), 0)]
    await courier.close()
    source: Any = courier._sources[0]
    shards._links[0].shard, kept = None, shards._links[0].shard
    courier.start()
    await until(lambda: source.lag_seconds(shards.of("sweet").loop.executor.now()) > 0)
    shards._links[0].shard = kept
    await until(lambda: courier.lags()[0] == 0.0)


@live
async def test_the_log_is_kept_until_all_other_shards_have_passed_it(shards: LiveShards) -> None:
    source = shards.of("a")
    await until(lambda: source.courier_source._reached.keys() == {1, 2})
    before = source.courier_source.kept_from()
    messages = [NewMessage(b"x")] * 1000
    for _ in range(COURIER_PROGRESS_RECORDS // 1000 + 1):
        await ask(source.loop, Publish("a", messages))
    await until(lambda: source.courier_source.kept_from() > COURIER_PROGRESS_RECORDS > before)


@live
async def test_an_idle_store_writes_nothing(shards: LiveShards) -> None:
    await shards.publish(about(b"1"))
    await has(shards, "sweet", Counter([b"1"]))
    await has(shards, "all", Counter([b"1"]))
    ends = [shard.log.end for shard in shards.shards]
    for _ in range(200):
        await asyncio.sleep(0)
    assert [shard.log.end for shard in shards.shards] == ends


@live
async def test_a_damaged_batch_costs_only_the_messages_in_it(shards: LiveShards) -> None:
    source, target = shards.of("a"), shards.of("sweet")
    await target.courier.close()
    for each in (b"first", b"second", b"third"):
        await shards.publish(about(each))
    at = next(at for at, data in enumerate(source.log.durable) if b"second" in data)
    source.log.durable[at] = source.log.durable[at].replace(b"second", b"sesond")
    source.courier_source._recent.reset()  # Nothing is in memory, as after a start.
    target.courier.start()
    await has(shards, "sweet", Counter([b"first", b"third"]))


@live
async def test_a_shard_whose_log_has_failed_does_not_say_what_it_has(shards: LiveShards) -> None:
    """It may say so of messages that are not durable, and then nobody has them."""
    source, target = shards.of("a"), shards.of("sweet")
    await target.courier.close()
    source.courier_source._reached.clear()
    target.loop.commit.failure = "the disk is full"
    target.courier.start()
    await shards.publish(about(b"first"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert target.loop.engine.shard not in source.courier_source._reached
    target.loop.commit.failure = None
    await has(shards, "sweet", Counter([b"first"]))


@live
async def test_nothing_is_skipped_that_looks_damaged_while_the_log_is_replaced(shards: LiveShards) -> None:
    source, target = shards.of("a"), shards.of("sweet")
    await target.courier.close()
    await shards.publish(about(b"first"))
    at = next(at for at, data in enumerate(source.log.durable) if b"first" in data)
    whole, source.loop.commit.failure = source.log.durable[at], "it is replaced"
    source.log.durable[at] = whole.replace(b"first", b"worst")
    source.courier_source._recent.reset()
    answers = list[Any]()
    await source.courier_source.collect(CollectParcels(1, Cursor(0, 0), [], 0), answers.append)
    assert [answer.reason for answer in answers] == [Reason.UNAVAILABLE]
    source.log.durable[at], source.loop.commit.failure = whole, None
    target.courier.start()
    await has(shards, "sweet", Counter([b"first"]))


@live
async def test_a_shard_that_is_not_served_any_more_answers_those_that_wait_for_it(shards: LiveShards) -> None:
    source, answers = shards.of("a"), list[Any]()
    question = CollectParcels(1, Cursor(source.loop.log.end.offset, 0), [], 3600 * SECOND_NS)
    source.courier_source.collect(question, answers.append)
    await asyncio.sleep(0)
    await source.courier_source.close()
    assert [answer.reason for answer in answers] == [Reason.UNAVAILABLE]
