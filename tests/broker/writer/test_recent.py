"""What the writer knows of messages that ended lately."""

from __future__ import annotations

import pytest

from penstock.broker.writer import recent as module
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.recent import Recent
from penstock.model.answers import Receipt
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    Fetch,
    Finish,
    FinishMany,
    NewMessage,
    Publish,
    PublishTopics,
    Redrive,
)
from penstock.model.events import Succeeded
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import Routed
from tests.support.live_loop import ask, live


async def published(loop: Loop, count: int = 1, queue: str = "work") -> list[Receipt]:
    receipts: list[Receipt] = await ask(loop, Publish(queue, [NewMessage(b"m")] * count))
    return receipts


def finishes(receipts: list[Receipt]) -> FinishMany:
    return FinishMany([Finish(each.queue, each.sequence) for each in receipts])


def asked(loop: Loop) -> Recent:
    loop.recent.ask(loop.now())
    return loop.recent


@live
async def test_nothing_is_noted_before_somebody_asks(loop: Loop) -> None:
    (message,) = await published(loop)
    await ask(loop, Finish(message.queue, message.sequence))
    assert asked(loop).end_of((message.queue, message.sequence)) is None


@live
async def test_messages_that_end_alone_or_together_are_known_by_their_place(loop: Loop) -> None:
    asked(loop)
    receipts = await published(loop, 40)
    await ask(loop, Fetch("work", 40, consumer="c"))
    await ask(loop, finishes(receipts[1:]))
    await ask(loop, Finish(receipts[0].queue, receipts[0].sequence, result=b"r"))
    ends = [asked(loop).end_of((each.queue, each.sequence)) for each in receipts]
    assert [end.kind for end in ends if end] == [Kind.SUCCEEDED] * 40
    assert ends[0]
    assert (ends[0].result, loop.engine.names.texts[ends[0].consumer]) == (b"r", "c")


@live
async def test_of_a_message_that_is_older_than_the_notes_nothing_is_certain(loop: Loop) -> None:
    (message,) = await published(loop)
    asked(loop)
    await ask(loop, Finish(message.queue, message.sequence))
    assert asked(loop).end_of((message.queue, message.sequence)) is None


@live
async def test_of_a_message_with_copies_or_that_was_moved_nothing_is_certain(loop: Loop) -> None:
    asked(loop)
    await ask(loop, CreateQueue("other", QueueSettings()))
    new = [NewMessage(b"m", topics=("work", "other"))]
    (original,) = await ask(loop, PublishTopics(new, QueueSettings()))
    (moved,) = await published(loop)
    await ask(loop, Redrive("work", [moved.sequence], "other"))
    for each in (original, moved):
        await ask(loop, Finish(each.queue, each.sequence))
        assert asked(loop).end_of((each.queue, each.sequence)) is None


@live
async def test_a_copy_is_a_message_of_its_own(loop: Loop) -> None:
    asked(loop)
    await ask(loop, CreateQueue("other", QueueSettings()))
    await ask(loop, PublishTopics([NewMessage(b"m", topics=("work", "other"))], QueueSettings()))
    (copy,) = await ask(loop, Fetch("other"))
    await ask(loop, Finish(copy.queue, copy.sequence))
    assert asked(loop).end_of((copy.queue, copy.sequence))


@live
async def test_of_messages_in_a_queue_that_was_removed_nothing_is_certain(loop: Loop) -> None:
    asked(loop)
    (message,) = await published(loop)
    await ask(loop, Finish(message.queue, message.sequence))
    await ask(loop, DeleteQueue("work"))
    assert asked(loop).end_of((message.queue, message.sequence)) is None


@live
async def test_the_oldest_are_dropped_and_nothing_is_noted_when_nobody_asks(loop: Loop) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RECENT_MESSAGES_MAX", 10)
        asked(loop)
        known: list[bool] = []
        receipts: list[Receipt] = []
        for _ in range(4):
            receipts = await published(loop, 10)
            await ask(loop, finishes(receipts))
            known.append(asked(loop).end_of((receipts[-1].queue, receipts[-1].sequence)) is not None)
        assert known == [True] * 4
        assert asked(loop).end_of((receipts[0].queue, 1)) is None
        for _ in range(4):
            await ask(loop, finishes(await published(loop, 10)))
        assert not loop.recent.is_wanted


def test_each_message_that_is_also_for_other_shards_counts() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RECENT_MESSAGES_MAX", 10)
        recent = Recent()
        recent.ask(0)
        recent.note(Succeeded(1, 1, 1, 1, 0, 0, complete=True, result=b""))
        for at in (2, 3):  # Each fills a generation, so the first one is dropped.
            recent.note(Routed(at, 1, 10 * at, 10, 0))
        recent.ask(4)
        assert recent.end_of((1, 1)) is None
        assert not recent.is_alone((1, 35), 100)
