"""Keys that live shards lend to each other, whatever crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from penstock.cluster.routing.keyed import KEYED, keys_of
from penstock.errors import Reason
from penstock.model.answers import Discarded, Loan, Refused, RowsTaken
from penstock.model.commands import DescribeObject, NewMessage, Publish, PublishInTurn, PublishTopics, TakeRows
from penstock.model.courier_commands import BorrowKeys, KeepLoans, OpenLoans, ReturnKeys
from penstock.model.settings import QueueSettings
from penstock.model.values import LentVersion, Stage
from tests.support.live_loop import until
from tests.support.live_shards import LiveShard, LiveShards

HOMES = {"a": 0, "b": 1, "c": 2}
DETECTING = QueueSettings(detect_unchanged=True)


def live(story: Callable[[LiveShards], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        shards = LiveShards(3, HOMES)
        for name in HOMES:
            await shards.create(name, detect_unchanged=True)
        try:
            async with asyncio.timeout(100):
                await story(shards)
        finally:
            await shards.end()

    def test() -> None:
        asyncio.run(run())

    test.__name__ = getattr(story, "__name__", "test")
    return test


def key_of(shards: LiveShards, shard: int) -> bytes:
    """One that this shard answers for."""
    return next(key for number in range(100) if shards.map.of_object("o", key := b"%d" % number) == shard)


async def ask(shard: LiveShard, command: Any, stage: Stage = Stage.SYNC) -> Any:
    answered = asyncio.get_running_loop().create_future()
    shard.port.submit(command, answered.set_result, stage)
    return await answered


async def publish(shards: LiveShards, queue: str, key: bytes, *bodies: bytes) -> str:
    messages = [NewMessage(body, object="o", topics=(f"{queue}.x",), key=key) for body in bodies]
    answer = await ask(shards.of(queue), PublishTopics(messages, DETECTING))
    assert not isinstance(answer, Refused), answer
    return "".join(each.state for each in answer)


async def versions(shards: LiveShards, key: bytes) -> int:
    found = await ask(shards.shards[shards.map.of_object("o", key)], DescribeObject("o", key, 10))
    return int(found.newest.versions)


@live
async def test_each_shard_compares_with_the_newest_version_of_all(shards: LiveShards) -> None:
    for shard in range(3):
        key = key_of(shards, shard)
        told = (("a", b"1"), ("b", b"2"), ("a", b"1"), ("b", b"1"), ("c", b"3"))
        found = [await publish(shards, queue, key, body) for queue, body in told]
        assert found == ["Q", "Q", "Q", "U", "Q"]
        assert await versions(shards, key) == 4


@live
async def test_versions_outlive_the_shard_that_answers_for_them(shards: LiveShards) -> None:
    key = key_of(shards, 2)
    assert await publish(shards, "a", key, b"1", b"2", b"1") == "QQQ"
    assert await publish(shards, "b", key, b"3") == "Q"
    await shards.crash(2)
    assert await publish(shards, "a", key, b"3") == "U"
    assert await publish(shards, "c", key, b"1") == "Q"
    assert await versions(shards, key) == 5


@live
async def test_what_was_not_durable_when_its_shard_died_counts_as_never_published(shards: LiveShards) -> None:
    key, lender = key_of(shards, 2), shards.shards[2]
    assert await publish(shards, "a", key, b"1") == "Q"
    message = NewMessage(b"2", object="o", topics=("a.x",), key=key)
    shards.of("a").port.submit(PublishTopics([message], DETECTING), lambda _: None)
    assert lender.lender._taken
    await shards.crash(0)  # What answers it has given meanwhile, nobody has heard.
    assert await publish(shards, "b", key, b"2") == "Q"
    assert await publish(shards, "a", key, b"2") == "U"
    assert lender.lender._taken == {}
    assert await versions(shards, key) == 2


@live
async def test_a_session_begins_when_what_was_decided_with_the_last_one_is_durable(shards: LiveShards) -> None:
    shard, order = shards.of("a"), list[str]()
    await until(lambda: len(shard.borrower._sessions) == 3)
    key = key_of(shards, 2)
    message = NewMessage(b"1", object="o", topics=("a.x",), key=key)
    shard.port.submit(PublishTopics([message], DETECTING), lambda _: order.append("published"))
    await until(lambda: bool(shard.loop.commit.in_flight) or bool(order))
    shard.port.submit(OpenLoans(2, 1), lambda _: order.append("opened"))
    await until(lambda: len(order) == 2)
    assert order == ["published", "opened"]


@live
async def test_a_key_is_lent_to_one_shard_at_a_time_in_the_order_of_asking(shards: LiveShards) -> None:
    lender, key = shards.shards[2], ("o", key_of(shards, 2))
    sessions = await opened(lender)
    answers: list[tuple[int, Any]] = []

    def noted(loan: int, answer: Any) -> None:
        answers.append((loan, answer))

    for borrower, loan in ((0, 101), (1, 102), (0, 103)):
        asked = BorrowKeys(borrower, sessions[borrower], loan, [key])
        lender.port.submit(asked, partial(noted, loan))
    assert answers == [(101, Loan([None]))]
    changed = LentVersion(b"x" * 16, 1, 1)
    await ask(lender, ReturnKeys(0, sessions[0], [(101, [(*key, changed)])]))
    assert len(answers) == 1  # The other shard does not get it before the version is learned.
    assert isinstance(await ask(lender, BorrowKeys(1, 7, 9, [key])), Discarded)
    lender.lender.learned([("o", key[1], *changed, 5)])  # type: ignore[list-item]
    assert [loan for loan, _ in answers] == [101, 102]


async def opened(lender: LiveShard) -> dict[int, int]:
    await until(lambda: len(lender.lender._opened) == 3)
    return lender.lender._sessions


@live
async def test_who_waits_too_long_for_a_key_is_refused_and_leaves_nothing_behind(shards: LiveShards) -> None:
    lender, key = shards.shards[2], ("o", key_of(shards, 2))
    sessions = await opened(lender)
    await ask(lender, BorrowKeys(1, sessions[1], 1, [key]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.broker.services.loans.lender.KEYS_WAIT_SECONDS", 0.01)
        message = NewMessage(b"1", object="o", topics=("a.x",), key=key[1])
        answer = await ask(shards.of("a"), PublishTopics([message], DETECTING))
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.UNAVAILABLE
    await ask(lender, ReturnKeys(1, sessions[1], [(1, [])]))
    assert await publish(shards, "a", key[1], b"1") == "Q"
    await until(lambda: lender.lender._taken == {})
    assert shards.of("a").loop.engine.history.lent == {}  # type: ignore[union-attr]


@live
async def test_a_lender_that_is_gone_is_waited_for(shards: LiveShards) -> None:
    key, link = key_of(shards, 2), shards._links[2]
    link.shard, gone = None, link.shard
    link.lose()
    publishing = asyncio.ensure_future(publish(shards, "a", key, b"1"))
    await until(lambda: bool(shards.of("a").borrower._waiting[2]))
    link.shard = gone
    assert await publishing == "Q"


@live
async def test_a_log_that_fails_ends_the_sessions_of_its_shard(shards: LiveShards) -> None:
    key, shard = key_of(shards, 2), shards.of("a")
    assert await publish(shards, "a", key, b"1") == "Q"
    shard.loop.fail(OSError("the disk is gone"))
    shard.revive()
    assert await publish(shards, "b", key, b"1") == "U"
    assert await publish(shards, "a", key, b"2") == "Q"
    shards.shards[2].loop.fail(OSError("the disk is gone"))
    shards.shards[2].revive()
    assert await publish(shards, "b", key, b"2") == "U"
    assert await versions(shards, key) == 2


@live
async def test_what_is_published_without_being_compared_is_a_version_too(shards: LiveShards) -> None:
    key = key_of(shards, 2)

    def one(body: bytes) -> Publish:
        return Publish("a", [NewMessage(body, object="o", key=key)])

    assert len(await ask(shards.of("a"), PublishInTurn([one(b"1")]))) == 1
    for row, body in enumerate((b"1", b"2", b"1")):  # Of a batch of Spark that another shard has.
        answer = await ask(shards.of("a"), TakeRows("query", 1, (0, row), (0, row + 1), one(body)))
        assert isinstance(answer, RowsTaken)
    assert await publish(shards, "b", key, b"1") == "U"
    assert await versions(shards, key) == 3


@live
async def test_who_keeps_a_session_hears_of_its_end(shards: LiveShards) -> None:
    shard, answers = shards.of("a"), list[Any]()
    assert isinstance(await ask(shard, KeepLoans(2, 12345)), Discarded)
    session = (await opened(shards.shards[2]))[0]
    pending = shard.port.submit(KeepLoans(2, session), answers.append)
    assert pending is not None
    assert pending.is_waiting
    shard.borrower._end_session(2, session)
    assert isinstance(answers[0], Discarded)


def test_every_command_that_publishes_says_what_it_is_about() -> None:
    message = NewMessage(b"x", object="o", key=b"k")
    plain = NewMessage(b"x")
    publish = PublishTopics([message, plain, message], DETECTING)
    assert list(keys_of(publish, None)) == [("o", b"k")]  # type: ignore[arg-type]
    assert list(keys_of(PublishInTurn([Publish("a", [message])]), None)) == [("o", b"k")]  # type: ignore[arg-type]
    assert {kind.__name__ for kind in KEYED} >= {"PublishTopics", "PublishOnce", "Publish", "AdmitRows", "TakeRows"}
