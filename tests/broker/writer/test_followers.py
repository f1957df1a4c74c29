"""Clients that follow a message to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.engine.engine import Engine
from penstock.model.answers import Done, Receipt
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    Redrive,
    Release,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import ask, live, settled

HELLO = NewMessage(b"hello")


async def published(loop: Loop, queue: str = "work", tell: Callable[[Kind], None] | None = None) -> Receipt:
    """Publish a message and follow it from its first moment."""
    receipts: list[Receipt] = []

    def ready(answer: Any) -> None:
        receipts.extend(answer)
        if tell:
            loop.follow(answer[0].queue, answer[0].sequence, lambda what: tell(what.kind))

    loop.submit(Publish(queue, [HELLO]), ready, Stage.READY)
    await settled(loop)
    return receipts[0]


@live
async def test_a_follower_is_told_the_life_of_a_message(loop: Loop) -> None:
    told: list[Kind] = []
    receipt = await published(loop, tell=told.append)
    await ask(loop, Fetch("work"))
    await ask(loop, Release(receipt.queue, receipt.sequence))
    (delivery,) = await ask(loop, Fetch("work"))
    assert told == [Kind.FETCHED, Kind.RETRIED, Kind.FETCHED]
    await ask(loop, Finish(receipt.queue, receipt.sequence, delivery=delivery.receives))
    assert told[3:] == [Kind.SUCCEEDED]
    assert not loop.executor.followers.by_place


@live
async def test_followers_of_many_are_told_when_they_are_fetched_and_finished_together(loop: Loop) -> None:
    told: dict[int, list[Kind]] = {}
    receipts = []
    for number in range(40):
        receipts.append(await published(loop, tell=told.setdefault(number, []).append))
    await ask(loop, Publish("work", [HELLO]))
    await asyncio.gather(*(ask(loop, Fetch("work")) for _ in receipts))
    await asyncio.gather(*(ask(loop, Finish(each.queue, each.sequence)) for each in receipts))
    assert list(told.values()) == [[Kind.FETCHED, Kind.SUCCEEDED]] * 40
    assert loop.events_by_kind[Kind.FETCHED] == 40
    assert loop.events_by_kind[Kind.SUCCEEDED] == 40


@live
async def test_a_dead_letter_is_followed_to_its_end(loop: Loop) -> None:
    told: list[Kind] = []
    await ask(loop, CreateQueue("dead", QueueSettings()))
    policy = RedrivePolicy(1, "dead")
    await ask(loop, CreateQueue("hard", QueueSettings(redrive_policy=policy)))
    receipt = await published(loop, "hard", told.append)
    (delivery,) = await ask(loop, Fetch("hard"))
    assert await ask(loop, Finish(receipt.queue, receipt.sequence, delivery=delivery.receives)) == Done()
    assert told == [Kind.DEAD_LETTERED, Kind.SUCCEEDED]


@live
async def test_followers_learn_that_the_queue_is_gone(loop: Loop) -> None:
    told: list[Kind] = []
    await published(loop, tell=told.append)
    await ask(loop, DeleteQueue("work"))
    assert told == [Kind.DELETED]
    assert not loop.executor.followers.by_place


@live
async def test_followers_of_a_message_that_was_moved_hear_of_the_queue_that_has_it(loop: Loop) -> None:
    heard: list[Kind] = []
    await ask(loop, CreateQueue("first", QueueSettings()))
    await ask(loop, CreateQueue("second", QueueSettings()))
    receipt = await published(loop, "first", heard.append)
    await ask(loop, Redrive("first", [receipt.sequence], "second"))
    await ask(loop, DeleteQueue("first"))
    assert heard == [Kind.MOVED]
    await ask(loop, DeleteQueue("second"))
    assert heard == [Kind.MOVED, Kind.DELETED]


@live
async def test_whoever_stops_following_is_told_nothing_more(loop: Loop) -> None:
    told: list[Kind] = []
    receipt = await published(loop)
    follower = loop.follow(receipt.queue, receipt.sequence, lambda what: told.append(what.kind))
    loop.submit(Fetch("work"), lambda _: None)
    loop.decide_collected()
    follower.cancel()
    await settled(loop)
    assert not told
    assert not loop.executor.followers.by_place


async def recovered_with(loop: Loop, messages: int) -> Loop:
    """What is left of a log: the queue and so many messages."""
    recovered = Loop(Engine(), MemoryLog(), loop.executor._clock, loop.commit._scheduler)
    await ask(recovered, CreateQueue("work", QueueSettings()))
    for _ in range(messages):
        await ask(recovered, Publish("work", [HELLO]))
    return recovered


@live
async def test_a_message_that_is_lost_with_the_end_of_the_log_is_not_confused_with_the_next_one(loop: Loop) -> None:
    told: list[Kind] = []
    await published(loop, tell=told.append)
    recovered = await recovered_with(loop, messages=0)
    loop.fail(OSError("no disk"))
    loop.revive(recovered.engine, recovered.log)
    assert told == [Kind.DELETED]
    (receipt,) = await ask(loop, Publish("work", [HELLO]))
    assert receipt.sequence == 1
    await ask(loop, Fetch("work"))
    assert told == [Kind.DELETED]


@live
async def test_a_message_whose_last_event_is_lost_with_the_end_of_the_log_is_followed_on(loop: Loop) -> None:
    told: list[Kind] = []
    receipt = await published(loop, tell=told.append)
    recovered = await recovered_with(loop, messages=1)
    finish = Finish(receipt.queue, receipt.sequence)
    loop.submit(finish, lambda _: None)
    loop.decide_collected()
    loop.fail(OSError("no disk"))
    loop.revive(recovered.engine, recovered.log)
    assert told == []
    await ask(loop, finish)
    assert told == [Kind.SUCCEEDED]
