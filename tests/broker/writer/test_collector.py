"""Commands that are decided together, and answered as if each were alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.writer.loop import Loop
from penstock.errors import Reason
from penstock.limits import RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Delivery, Discarded, Done, Receipt, Receipts, Refused
from penstock.model.commands import (
    CreateQueue,
    DescribeQueue,
    Fetch,
    NewMessage,
    Outcome,
    Publish,
    PublishRun,
    PublishTopics,
    Settle,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.live_loop import ask, live

HELLO = NewMessage(b"hello")


@live
async def test_more_fetches_than_messages_leave_the_last_ones_empty_handed(loop: Loop) -> None:
    await ask(loop, Publish("work", [HELLO] * 30))
    answers = await asyncio.gather(*(ask(loop, Fetch("work")) for _ in range(50)))
    assert [len(answer) for answer in answers] == [1] * 30 + [0] * 20
    assert len({answer[0].sequence for answer in answers[:30]}) == 30


@live
async def test_large_messages_are_fetched_by_everyone_who_asked(loop: Loop) -> None:
    """Together they are more than one answer may hold; each alone is not."""
    bodies = [b"%02d" % number + bytes(1 << 20)[2:] for number in range(15)]
    for body in bodies:
        await ask(loop, Publish("work", [NewMessage(body)]))
    answers = await asyncio.gather(*(ask(loop, Fetch("work")) for _ in range(15)))
    deliveries: list[Delivery] = [delivery for answer in answers for delivery in answer]
    assert [delivery.body[:2] for delivery in deliveries] == [body[:2] for body in bodies]


def run_of(*bodies: bytes, queue: str = "work", priority: int = 0) -> PublishRun:
    return PublishRun(queue, NewMessage(b"", priority=priority), list(bodies))


A, B, C = ([b"%d of %d" % (number, which) for number in range(RUN_MESSAGES_MIN)] for which in range(3))


@live
async def test_runs_that_come_together_keep_their_order_and_each_has_its_own_receipts(loop: Loop) -> None:
    before = loop.log.end.offset
    answers = await asyncio.gather(*(ask(loop, run_of(*bodies)) for bodies in (A, B, C)))
    count = RUN_MESSAGES_MIN
    assert answers == [Receipts(1, 1 + each * count, count) for each in range(3)]
    assert loop.log.end.offset - before == 3 * count
    fetched = await ask(loop, Fetch("work", count=3 * count))
    assert [each.body for each in fetched] == [*A, *B, *C]


@live
async def test_runs_that_differ_are_not_mixed(loop: Loop) -> None:
    urgent, plain, gone = await asyncio.gather(
        ask(loop, run_of(*A, priority=5)), ask(loop, run_of(*B)), ask(loop, run_of(*C, queue="nowhere"))
    )
    assert (urgent.count, plain.count) == (len(A), len(B))
    assert gone == Refused(Reason.NO_QUEUE, "nowhere")
    assert {each.body: each.priority for each in await ask(loop, Fetch("work", count=99))} == (
        dict.fromkeys(A, 5) | dict.fromkeys(B, 0)
    )


@live
async def test_a_run_and_single_messages_keep_their_order(loop: Loop) -> None:
    """A client may send them in one turn."""
    one, two = NewMessage(b"one"), NewMessage(b"two")
    commands = [Publish("work", [one]), run_of(*A), run_of(*B), Publish("work", [two]), run_of(*C)]
    await asyncio.gather(*(ask(loop, command) for command in commands))
    assert [each.body for each in await ask(loop, Fetch("work", count=99))] == [b"one", *A, *B, b"two", *C]


@live
async def test_runs_for_a_queue_that_keeps_each_content_once_have_a_receipt_a_message(loop: Loop) -> None:
    await ask(loop, CreateQueue("once", QueueSettings(deduplication=True)))
    first, again = await asyncio.gather(*(ask(loop, run_of(*A, queue="once")) for _ in range(2)))
    assert [each.fresh for each in first] == [True] * len(A)
    assert [each.fresh for each in again] == [False] * len(A)


@live
async def test_a_publish_makes_its_queue_only_if_it_may(loop: Loop) -> None:
    assert await ask(loop, Publish("new", [HELLO])) == Refused(Reason.NO_QUEUE, "new")
    settings = QueueSettings(visibility_ns=7)
    together = await asyncio.gather(*(ask(loop, Publish("new", [HELLO], create=settings)) for _ in range(3)))
    assert together == [[Receipt(2, 1, True)], [Receipt(2, 2, True)], [Receipt(2, 3, True)]]
    assert (await ask(loop, DescribeQueue("new"))).settings == settings


@pytest.mark.parametrize("policy", [RedrivePolicy(1, "nowhere")])
def test_a_queue_with_a_policy_that_cannot_be_is_not_made_on_demand(policy: RedrivePolicy) -> None:
    @live
    async def story(loop: Loop) -> None:
        answer = await ask(loop, Publish("new", [HELLO], create=QueueSettings(redrive_policy=policy)))
        assert answer == Refused(Reason.NO_DEAD_LETTER_QUEUE, "nowhere")
        assert loop.engine.queue("new") is None

    story()


@live
async def test_a_fetch_that_comes_with_a_message_does_not_overtake_one_that_waits(loop: Loop) -> None:
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop.submit(Fetch("work", wait_ns=20 * SECOND_NS), first.set_result)
    loop.decide_collected()
    loop.submit(Publish("work", [HELLO]), lambda _: None)
    late = loop.submit(Fetch("work", count=10, wait_ns=20 * SECOND_NS), second.set_result)
    assert [delivery.body for delivery in await first] == [b"hello"]
    assert not second.done()
    assert late is not None
    late.cancel()


@live
async def test_publishes_to_topics_in_one_turn_are_one_decision_with_an_answer_each(loop: Loop) -> None:
    await ask(loop, CreateQueue("channel", QueueSettings(topics=("work.*",))))
    asked = [PublishTopics([NewMessage(b"%d" % number, topics=("work.x",))], QueueSettings()) for number in range(30)]
    answers = await asyncio.gather(*[ask(loop, command) for command in asked])
    assert [answer[0].sequence for answer in answers] == list(range(1, 31))
    assert {answer[0].channels for answer in answers} == {("channel",)}
    assert (loop.events_by_kind[Kind.LOGGED], loop.events_by_kind[Kind.QUEUED]) == (30, 30)
    deliveries = await ask(loop, Fetch("channel", 100))
    assert [delivery.body for delivery in deliveries] == [b"%d" % number for number in range(30)]


@live
async def test_a_publish_that_is_refused_does_not_take_others_of_its_turn_along(loop: Loop) -> None:
    await ask(loop, CreateQueue("channel", QueueSettings(topics=("other.*",))))
    asked = [
        PublishTopics([NewMessage(b"x", topics=(topic,))], QueueSettings())
        for topic in ("work.x", "channel.x", "work.y")
    ]
    first, refused, last = await asyncio.gather(*[ask(loop, command) for command in asked])
    assert [first[0].sequence, last[0].sequence] == [1, 2]
    assert refused == Refused(Reason.IS_CHANNEL, "channel")


@live
async def test_outcomes_in_one_turn_are_decided_in_their_order(loop: Loop) -> None:
    (place,) = await ask(loop, Publish("work", [HELLO]))
    await ask(loop, Fetch("work"))
    outcomes: list[Outcome] = ["invalid", "success"]
    asked = [Settle(place.queue, place.sequence, outcome) for outcome in outcomes]
    assert await asyncio.gather(*[ask(loop, command) for command in asked]) == [Done(), Discarded()]


@live
async def test_a_publish_that_is_refused_for_its_own_messages_leaves_others_of_its_turn_alone(loop: Loop) -> None:
    """Together they have more new names than there is room for."""
    loop.engine.names.most = len(loop.engine.names) + 1
    asked = [Publish("work", [NewMessage(b"x", sender=sender)]) for sender in ("a", "a", "b")]
    first, second, refused = await asyncio.gather(*[ask(loop, command) for command in asked])
    assert [first[0].sequence, second[0].sequence] == [1, 2]
    assert refused.reason is Reason.TOO_MANY_NAMES
