"""Receivers that wait: for messages, for what is due again, for results. On a log in memory and in real time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.writer.loop import Loop
from penstock.broker.writer.waiters import Waiter
from penstock.limits import SECOND_NS
from penstock.model.answers import Pulled, StoredResult
from penstock.model.commands import (
    FROM_NEWEST,
    FROM_NEXT,
    AwaitResult,
    DeleteQueue,
    Draw,
    Finish,
    NewMessage,
    Publish,
    Pull,
)
from penstock.model.settings import QueueSettings
from tests.support.live_loop import ask, live_with

KEEPS = QueueSettings(keep="all")
LONG_NS = 20 * SECOND_NS
FOREVER_NS = 3600 * SECOND_NS
RETRY_NS = SECOND_NS // 20
HELLO = NewMessage(b"hello")

live = live_with("q", KEEPS)


class Waiting:
    """A client that has asked and waits for its answer."""

    def __init__(self, loop: Loop, command: Pull | AwaitResult) -> None:
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiter = loop.submit(command, self.answered.set_result)
        assert isinstance(waiter, Waiter)
        self.waiter = waiter
        assert not self.answered.done()

    async def messages(self) -> dict[str, list[int]]:
        answer = await self.answered
        assert isinstance(answer, Pulled), answer
        return {drawn.queue: drawn.sequences for drawn in answer.drawn}


def waiting(loop: Loop, receiver: str, *queues: str, wait_ns: int = LONG_NS, **options: Any) -> Waiting:
    options = {"retries": 1, "fail_ns": RETRY_NS} | options
    return Waiting(loop, Pull(receiver, [Draw(queue, **options) for queue in queues or ("q",)], (), wait_ns))


async def ask_for(loop: Loop, receiver: str) -> list[int]:
    answer = await ask(loop, Pull(receiver, [Draw("q")]))
    return [sequence for drawn in answer.drawn for sequence in drawn.sequences]


def nobody_waits(loop: Loop) -> bool:
    waiters, receivers = loop.waiters, loop.waiters.receivers
    return not (waiters.count or waiters.by_key or receivers.by_queue or receivers._starts or receivers._due)


@live
async def test_a_message_wakes_every_receiver_and_of_each_name_one(loop: Loop) -> None:
    first, second, other = (waiting(loop, name) for name in ("r", "r", "s"))
    assert (loop.waiters.count, loop.waiting("q")) == (3, 3)
    await ask(loop, Publish("q", [HELLO]))
    assert await first.messages() == await other.messages() == {"q": [1]}
    assert not second.answered.done()
    await ask(loop, Publish("q", [HELLO]))
    assert await second.messages() == {"q": [2]}
    assert nobody_waits(loop)


@live
async def test_a_pull_waits_for_any_of_its_queues_be_they_made_meanwhile(loop: Loop) -> None:
    client = waiting(loop, "r", "q", "later")
    await ask(loop, Publish("later", [HELLO], KEEPS))
    answer = await client.answered
    assert [(drawn.queue, drawn.bodies) for drawn in answer.drawn] == [("later", [b"hello"])]
    assert nobody_waits(loop)


@live
async def test_an_empty_pull_tells_the_last_ids_when_its_time_is_over(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO] * 3))
    client = waiting(loop, "r", "q", "none", wait_ns=SECOND_NS // 50, start=FROM_NEXT)
    answer = await client.answered
    assert (list(answer.drawn), answer.last) == ([], {"q": 3, "none": 0})
    assert nobody_waits(loop)


@live
async def test_a_client_that_has_gone_away_gets_nothing_and_leaves_nothing(loop: Loop) -> None:
    gone, there = waiting(loop, "r", "q", "none"), waiting(loop, "r")
    gone.waiter.cancel()
    await ask(loop, Publish("q", [HELLO]))
    assert await there.messages() == {"q": [1]}
    assert not gone.answered.done()
    assert nobody_waits(loop)


@live
async def test_what_is_due_again_wakes_a_pull_that_waits(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    began = loop.now()
    assert (await ask(loop, Pull("r", [Draw("q", retries=1, fail_ns=RETRY_NS)]))).drawn
    assert await waiting(loop, "r", wait_ns=FOREVER_NS).messages() == {"q": [1]}
    assert loop.now() - began >= RETRY_NS
    assert nobody_waits(loop)


@live
async def test_a_pull_that_waits_learns_what_another_of_its_name_came_to_owe(loop: Loop) -> None:
    first, second = waiting(loop, "r"), waiting(loop, "r")
    await ask(loop, Publish("q", [HELLO]))
    assert await first.messages() == {"q": [1]}
    assert await second.messages() == {"q": [1]}, "once more, since the first said nothing"
    assert nobody_waits(loop)


@live
async def test_a_pull_that_takes_no_retries_does_not_stand_in_the_way_of_one_that_does(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    await ask(loop, Pull("r", [Draw("q", retries=1, fail_ns=RETRY_NS)]))
    proud, humble = waiting(loop, "r", retries=0), waiting(loop, "r")
    assert await humble.messages() == {"q": [1]}
    assert not proud.answered.done()
    proud.waiter.cancel()
    assert nobody_waits(loop)


@live
async def test_a_result_in_time_leaves_nothing_to_wake_for(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    await ask(loop, Pull("r", [Draw("q", retries=1, fail_ns=RETRY_NS)]))
    await ask(loop, Pull("r", results=[("q", 1, b"done")]))
    client = waiting(loop, "r", wait_ns=2 * RETRY_NS)
    assert await client.messages() == {}


@pytest.mark.parametrize("way", ["finished", "expired", "visible"])
def test_what_no_longer_stands_in_the_way_wakes_receivers(way: str) -> None:
    delay_ns = RETRY_NS if way == "visible" else LONG_NS
    hidden = NewMessage(b"hidden", delay_ns=delay_ns, expires_ns=RETRY_NS if way == "expired" else None)

    @live
    async def story(loop: Loop) -> None:
        await ask(loop, Publish("q", [hidden, HELLO]))
        client = waiting(loop, "r", most=9)
        if way == "finished":
            await ask(loop, Finish(1, 1))
        assert await client.messages() == {"q": [2] if way == "expired" else [1, 2]}

    story()


@live
async def test_a_start_that_leads_past_what_stands_in_the_way_wakes_others_of_the_name(loop: Loop) -> None:
    await ask(loop, Publish("q", [NewMessage(b"hidden", delay_ns=LONG_NS), HELLO, HELLO]))
    client = waiting(loop, "r")
    assert [drawn.sequences for drawn in (await ask(loop, Pull("r", [Draw("q", start=2)]))).drawn] == [[2]]
    assert await client.messages() == {"q": [3]}


@live
async def test_a_pull_for_what_is_new_waits_on_while_something_old_is_due(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    await ask(loop, Pull("r", [Draw("q", retries=1, fail_ns=1)]))
    client = waiting(loop, "r", start=FROM_NEXT)
    assert await waiting(loop, "r", wait_ns=RETRY_NS).messages() == {"q": [1]}
    assert not client.answered.done()
    await ask(loop, Publish("q", [HELLO]))
    assert await client.messages() == {"q": [2]}


@live
async def test_a_waiting_pull_for_the_newest_gets_the_newest_of_what_comes(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    assert (await ask(loop, Pull("r", [Draw("q")]))).drawn
    client = waiting(loop, "r", start=FROM_NEWEST, most=9)
    await ask(loop, Publish("q", [HELLO] * 2))
    assert await client.messages() == {"q": [3]}
    assert nobody_waits(loop)


@live
async def test_a_waiting_pull_for_the_next_leaves_what_was_there_to_a_later_pull(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO] * 2))
    given_up = waiting(loop, "r", start=FROM_NEXT)
    given_up.waiter.give_up()
    assert await given_up.messages() == {}
    assert await ask_for(loop, "r") == [1]
    client = waiting(loop, "r", start=FROM_NEXT, most=9)
    await ask(loop, Publish("q", [HELLO] * 2))
    assert await client.messages() == {"q": [3, 4]}
    assert await ask_for(loop, "r") == []
    assert nobody_waits(loop)


@live
async def test_waiting_pulls_of_one_name_get_what_each_wants_wherever_they_start(loop: Loop) -> None:
    far, plain, newest, second = (waiting(loop, "r", start=start) for start in (4, 0, FROM_NEWEST, 2))
    await ask(loop, Publish("q", [HELLO]))
    served = [each for each in (plain, newest) if each.answered.done()]
    assert [await each.messages() for each in served] == [{"q": [1]}]
    assert not far.answered.done()
    assert not second.answered.done()
    await ask(loop, Publish("q", [HELLO]))
    await ask(loop, Publish("q", [HELLO]))
    numbers = [(await each.messages())["q"] for each in (plain, newest, second)]
    assert sorted(numbers) == [[1], [2], [3]]
    assert not far.answered.done()
    await ask(loop, Publish("q", [HELLO]))
    assert await far.messages() == {"q": [4]}
    assert nobody_waits(loop)


@live
async def test_a_waiting_pull_with_a_start_learns_what_another_of_its_name_came_to_owe(loop: Loop) -> None:
    far = waiting(loop, "r", start=9)
    await ask(loop, Publish("q", [HELLO]))
    assert not far.answered.done()
    assert (await ask(loop, Pull("r", [Draw("q", retries=1, fail_ns=RETRY_NS)]))).drawn
    assert await far.messages() == {"q": [1]}
    assert nobody_waits(loop)


@live
async def test_a_waiting_pull_that_moves_ahead_clears_the_way_for_others_of_its_name(loop: Loop) -> None:
    await ask(loop, Publish("q", [NewMessage(b"hidden", delay_ns=LONG_NS)]))
    plain, ahead = waiting(loop, "r"), waiting(loop, "r", start=2)
    await ask(loop, Publish("q", [HELLO] * 2))
    assert await ahead.messages() == {"q": [2]}
    assert await plain.messages() == {"q": [3]}
    assert nobody_waits(loop)


@live
async def test_a_pull_for_what_is_new_outlives_its_queue(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO] * 5))
    first, second = (waiting(loop, name, start=FROM_NEXT, most=9) for name in ("r", "s"))
    await ask(loop, DeleteQueue("q"))
    await ask(loop, Publish("q", [HELLO] * 7, KEEPS))
    assert await first.messages() == await second.messages() == {"q": [1, 2, 3, 4, 5, 6, 7]}
    assert nobody_waits(loop)


@live
async def test_a_pull_outlives_its_queue(loop: Loop) -> None:
    client = waiting(loop, "r")
    await ask(loop, DeleteQueue("q"))
    await ask(loop, Publish("q", [HELLO], KEEPS))
    assert await client.messages() == {"q": [1]}


@live
async def test_a_result_wakes_those_who_wait_for_it_and_nobody_else(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO] * 2))
    others = Waiting(loop, AwaitResult("q", 1, "s", LONG_NS))
    mine = Waiting(loop, AwaitResult("q", 1, "r", LONG_NS))
    any_of_them = Waiting(loop, AwaitResult("q", 1, "", LONG_NS))
    another = Waiting(loop, AwaitResult("q", 2, "", LONG_NS))
    await ask(loop, Pull("r", results=[("q", 1, b"42")]))
    for client in (mine, any_of_them):
        answer = await client.answered
        assert isinstance(answer, StoredResult)
        assert (answer.receiver, answer.result) == ("r", b"42")
    assert not others.answered.done()
    assert not another.answered.done()
    for client in (others, another):
        client.waiter.cancel()
    assert nobody_waits(loop)


@live
async def test_a_result_that_does_not_come_is_an_empty_answer_in_time(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    assert not await Waiting(loop, AwaitResult("q", 1, "r", SECOND_NS // 50)).answered
    assert nobody_waits(loop)
