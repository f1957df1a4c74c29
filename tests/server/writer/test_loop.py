"""What the loop does for clients that wait, watch and follow, on a log in memory and in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from penstock.errors import Reason
from penstock.limits import SECOND_NS, WAKES_MAX
from penstock.model.answers import Answer, Delivery, Discarded, Done, Receipt, Refused
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    Finish,
    NewMessage,
    Outcome,
    Publish,
    PublishTopics,
    Receive,
    Release,
    Settle,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.server.writer.loop import Loop
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask

HELLO = NewMessage(b"hello")


def live(story: Callable[[Loop], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A story told with a loop that has a queue named work."""

    def run() -> None:
        async def tell() -> None:
            loop = a_loop(MemoryLog())
            await ask(loop, CreateQueue("work", QueueSettings()))
            await asyncio.wait_for(story(loop), 20)

        asyncio.run(tell())

    run.__name__ = story.__name__
    run.__doc__ = story.__doc__
    return run


def _note(order: list[int], number: int, _: Answer) -> None:
    order.append(number)


async def settled(loop: Loop) -> None:
    """Until nothing waits for the disk."""
    while not loop.idle:  # noqa: ASYNC110 - A turn, not a time.
        await asyncio.sleep(0)
    await asyncio.sleep(0)


# ── Watching ──────────────────────────────────────────────────────────────────────────────────────────────


class Bell:
    def __init__(self) -> None:
        self.rings = 0
        self.rang = asyncio.Event()

    def ring(self) -> None:
        self.rings += 1
        self.rang.set()


@live
async def test_a_watch_is_woken_once_however_much_comes(loop: Loop) -> None:
    bell, other = Bell(), Bell()
    loop.watch("work", bell.ring)
    loop.watch("other", other.ring)
    await settled(loop)
    assert bell.rings == 0
    await ask(loop, Publish("work", [HELLO]))
    await ask(loop, Publish("work", [HELLO]))
    assert (bell.rings, other.rings) == (1, 0)


@live
async def test_a_watch_of_a_queue_that_has_a_message_is_woken_at_once(loop: Loop) -> None:
    await ask(loop, Publish("work", [HELLO]))
    bell = Bell()
    loop.watch("work", bell.ring)
    assert bell.rings == 1


@live
async def test_a_message_that_was_published_before_the_watch_but_not_decided_wakes_it(loop: Loop) -> None:
    loop.submit(Publish("work", [HELLO]), lambda _: None)
    bell = Bell()
    loop.watch("work", bell.ring)
    assert bell.rings == 0  # It is not durable yet.
    await bell.rang.wait()


@live
async def test_a_watch_may_wait_for_a_queue_that_is_not_there(loop: Loop) -> None:
    bell = Bell()
    loop.watch("new", bell.ring)
    await ask(loop, Publish("new", [HELLO], create=QueueSettings()))
    assert bell.rings == 1


@live
async def test_a_watch_is_woken_by_a_delay_that_ends_and_by_a_lease_that_runs_out(loop: Loop) -> None:
    bell = Bell()
    await ask(loop, Publish("work", [NewMessage(b"late", delay_ns=SECOND_NS // 20)]))
    loop.watch("work", bell.ring)
    assert bell.rings == 0
    await bell.rang.wait()
    await ask(loop, Fetch("work", lease_ns=SECOND_NS // 20))
    again = Bell()
    loop.watch("work", again.ring)
    assert again.rings == 0
    await again.rang.wait()


@live
async def test_a_watch_is_not_woken_for_what_a_waiting_fetch_takes(loop: Loop) -> None:
    bell = Bell()
    taken = asyncio.ensure_future(ask(loop, Fetch("work", wait_ns=10 * SECOND_NS)))
    await settled(loop)
    await asyncio.sleep(0)
    loop.watch("work", bell.ring)
    await ask(loop, Publish("work", [HELLO]))
    assert len(await taken) == 1
    assert bell.rings == 0
    await ask(loop, Publish("work", [HELLO]))
    assert bell.rings == 1


@live
async def test_a_canceled_watch_is_not_woken(loop: Loop) -> None:
    before, between = Bell(), Bell()
    loop.watch("work", before.ring).cancel()
    watch = loop.watch("work", between.ring)
    loop.submit(Publish("work", [HELLO]), lambda _: None)
    loop.decide_collected()
    watch.cancel()  # It was woken, but what woke it was not durable yet.
    await settled(loop)
    assert before.rings == between.rings == 0


# ── Following ─────────────────────────────────────────────────────────────────────────────────────────────


async def published(loop: Loop, queue: str = "work", tell: Callable[[Kind], None] | None = None) -> Receipt:
    """Publish a message and follow it from its first moment."""
    receipts: list[Receipt] = []

    def ready(answer: Any) -> None:
        receipts.extend(answer)
        if tell:
            loop.follow(answer[0].queue, answer[0].sequence, tell)

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
async def test_whoever_stops_following_is_told_nothing_more(loop: Loop) -> None:
    told: list[Kind] = []
    receipt = await published(loop)
    follower = loop.follow(receipt.queue, receipt.sequence, told.append)
    loop.submit(Fetch("work"), lambda _: None)
    loop.decide_collected()
    follower.cancel()
    await settled(loop)
    assert not told
    assert not loop.executor.followers.by_place


# ── Stages ────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_stages_are_reached_in_order(loop: Loop) -> None:
    reached: list[str] = []
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("sync"), Stage.SYNC)
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("write"), Stage.WRITE)
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("ready"), Stage.READY)
    loop.decide_collected()
    assert reached == ["ready"]
    loop.when(Stage.SYNC, lambda: reached.append("all"))
    await settled(loop)
    assert reached == ["ready", "write", "sync", "all"]
    loop.when(Stage.SYNC, lambda: reached.append("at once"))
    assert reached[-1] == "at once"


@live
async def test_an_answer_at_ready_does_not_wait_for_a_commit_that_is_under_way(loop: Loop) -> None:
    order: list[str] = []
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("first, at sync"))
    await asyncio.sleep(0)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("ready"), Stage.READY)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("second, at sync"))
    await settled(loop)
    assert order.index("ready") < order.index("second, at sync")


# ── Popping ───────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_fleeting_message_goes_straight_to_a_pop_that_waits(loop: Loop) -> None:
    popped = asyncio.ensure_future(ask(loop, Fetch("work", wait_ns=10 * SECOND_NS, confirm=False)))
    await asyncio.sleep(0)
    loop.decide_collected()
    answers: list[Answer] = []
    loop.submit(Publish("work", [HELLO], fleeting=True), answers.append)
    assert answers == [[Receipt(1, 0, True)]]
    (delivery,) = await popped
    assert (delivery.body, delivery.sequence, delivery.receives) == (b"hello", 0, 1)
    assert loop.events_by_kind[Kind.LOGGED] == 0
    assert loop.waiters.count == 0


@live
async def test_a_fleeting_message_is_stored_where_no_pop_waits_first(loop: Loop) -> None:
    fetched = asyncio.ensure_future(ask(loop, Fetch("work", wait_ns=10 * SECOND_NS)))
    await asyncio.sleep(0)
    loop.decide_collected()
    popped = asyncio.ensure_future(ask(loop, Fetch("work", wait_ns=10 * SECOND_NS, confirm=False)))
    await asyncio.sleep(0)
    loop.decide_collected()
    assert await ask(loop, Publish("work", [HELLO], fleeting=True)) == [Receipt(1, 1, True)]
    assert [delivery.sequence for delivery in await fetched] == [1]
    loop.submit(Publish("work", [HELLO]), lambda _: None)
    assert [delivery.sequence for delivery in await popped] == [2]  # Stored, and gone: who published it asked for it.
    assert (await ask(loop, DescribeQueue("work"))).messages == 1


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_fetch_that_is_given_up_before_it_is_decided_takes_nothing(loop: Loop) -> None:
    await ask(loop, Publish("work", [HELLO]))
    answers: list[Answer] = []
    waiter = loop.submit(Fetch("work", wait_ns=SECOND_NS), answers.append)
    assert waiter is not None
    waiter.cancel()
    await settled(loop)
    assert not answers
    assert (await ask(loop, DescribeQueue("work"))).ready == 1


@live
async def test_waiting_fetches_are_served_in_turn(loop: Loop) -> None:
    order: list[int] = []
    for number in range(3):
        loop.submit(Fetch("work", wait_ns=10 * SECOND_NS), partial(_note, order, number))
    await settled(loop)
    assert loop.waiting("work") == 3
    await ask(loop, Publish("work", [HELLO, HELLO]))
    assert order == [0, 1]
    assert loop.waiting("work") == 1
    loop.release_waiters()
    assert order == [0, 1, 2]


@live
async def test_a_crowd_that_waits_is_served_over_several_turns(loop: Loop) -> None:
    order: list[int] = []
    for number in range(1000):
        loop.submit(Fetch("work", wait_ns=10 * SECOND_NS), partial(_note, order, number))
    await settled(loop)
    assert loop.waiters.count == 1000
    loop.submit(Publish("work", [HELLO] * 900), lambda _: None)
    loop.decide_collected()
    assert loop.waiters.count == 1000 - WAKES_MAX
    loop.submit(Publish("work", [HELLO] * 99), lambda _: None)
    loop.decide_collected()
    assert loop.waiters.count == 1000 - WAKES_MAX
    await settled(loop)
    while len(order) < 999:  # noqa: ASYNC110 - A turn, not a time.
        await asyncio.sleep(0)
    assert order == list(range(999))
    assert loop.waiters.count == 1


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


# ── Queues on demand ──────────────────────────────────────────────────────────────────────────────────────


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


# ── Order ─────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Topics ────────────────────────────────────────────────────────────────────────────────────────────────


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
    place = await published(loop)
    await ask(loop, Fetch("work"))
    outcomes: list[Outcome] = ["invalid", "success"]
    asked = [Settle(place.queue, place.sequence, outcome) for outcome in outcomes]
    assert await asyncio.gather(*[ask(loop, command) for command in asked]) == [Done(), Discarded()]


@live
async def test_a_consumer_that_waits_gets_again_what_it_has_not_confirmed_in_time(loop: Loop) -> None:
    await ask(loop, CreateQueue("several", QueueSettings(confirmations=2, visibility_ns=1_000_000)))
    await ask(loop, Publish("several", [HELLO]))
    await ask(loop, Receive("several", "c"))
    (again,) = (await ask(loop, Receive("several", "c", wait_ns=10**11))).deliveries
    assert again.receives == 2


@live
async def test_a_consumer_that_waits_gets_what_it_gave_back_when_its_delay_is_over(loop: Loop) -> None:
    await ask(loop, CreateQueue("several", QueueSettings(confirmations=2, visibility_ns=10**15)))
    await ask(loop, Publish("several", [HELLO]))
    (delivery,) = (await ask(loop, Receive("several", "c"))).deliveries
    waiting = asyncio.ensure_future(ask(loop, Receive("several", "c", wait_ns=10**11)))
    await settled(loop)
    await ask(loop, Settle(delivery.queue, delivery.sequence, "retry", "c", delay_ns=1_000_000))
    (again,) = (await waiting).deliveries
    assert (again.sequence, again.receives) == (delivery.sequence, 2)
