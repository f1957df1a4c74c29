"""Clients that watch a queue, wait for a message or take it as it comes, on a log in memory and in real time."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.writer.loop import Loop
from penstock.limits import SCHEDULES_RUN_AT_ONCE, SECOND_NS, WAKES_MAX
from penstock.model.answers import Answer, Receipt
from penstock.model.commands import (
    CreateQueue,
    DescribeQueue,
    Fetch,
    NewMessage,
    Publish,
    Receive,
    Settle,
)
from penstock.model.kinds import Kind
from penstock.model.schedules import Schedule, SetSchedule
from penstock.model.settings import QueueSettings
from tests.support.live_loop import ask, live, settled, until

HELLO = NewMessage(b"hello")


def _note(order: list[int], number: int, _: Answer) -> None:
    order.append(number)


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


# ── Schedules ────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_schedules_wake_the_loop_and_those_who_wait_and_a_crowd_of_them_leaves_room_for_others(
    loop: Loop,
) -> None:
    crowd = 3 * SCHEDULES_RUN_AT_ONCE
    start = loop.now() // SECOND_NS * SECOND_NS + 2 * SECOND_NS
    for number in range(crowd):
        await ask(loop, SetSchedule(f"s{number}", Schedule(queue="work", every_ns=3600 * SECOND_NS, start=start)))
    answers: list[Answer] = []
    loop.submit(Fetch("work", wait_ns=20 * SECOND_NS), answers.append)
    runs = []
    loop.on_commit.append(lambda: runs.append(loop.events_by_kind[Kind.SCHEDULE_RAN]))
    await until(lambda: loop.events_by_kind[Kind.SCHEDULE_RAN] == crowd)
    await until(lambda: bool(answers))
    assert 0 < min(runs) < crowd, "they are not all run in one turn"
    assert loop.engine.schedules.next_due > start
