"""Who holds a message that was fetched through glovebox."""

from __future__ import annotations

import pytest

from penstock.dialects.glovebox import replies
from penstock.dialects.glovebox import session as glovebox_session
from penstock.model.commands import (
    CreateQueue,
    DescribeQueue,
    Fetch,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.glovebox import House, fetch, finish, live, notice
from tests.support.live_loop import ask


@live
async def test_only_the_session_that_fetched_a_message_can_finish_it_and_only_once(house: House) -> None:
    await house.fill("a")
    holder, other = await house.client(), await house.client()
    holder.say(fetch())
    message = await holder.hear()
    other.say(finish(message, label=1))
    refused = {"type": "error", "label": 1, "code": "NoObject", "key": "1"}
    assert await other.hear() == refused
    holder.say(finish(message, queue="other", label=1), finish(message, shard=1, label=1))
    assert await holder.hear_all(2) == [refused, refused]
    holder.say(finish(message), finish(message))
    assert await holder.hear() == refused | {"label": 0}


@live
async def test_a_lease_that_ran_out_cannot_be_finished(house: House) -> None:
    await house.fill("a")
    first, second = await house.client(), await house.client()
    first.say(fetch(work_timeout=0.01))
    message = await first.hear()
    second.say(fetch(block_timeout=5))
    assert (await second.hear())["sequence"] == message["sequence"]
    first.say(finish(message, label=9))
    assert await first.hear() == {"type": "error", "label": 9, "code": "NoObject", "key": "1"}
    second.say(finish(message, label=9))
    assert await second.hear() == notice(9, "finish")


@live
async def test_a_message_that_comes_again_to_the_same_session_is_finished_by_its_newest_lease(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(fetch(work_timeout=0.01))
    first = await client.hear()
    client.say(fetch(block_timeout=5))
    assert await client.hear() == first
    client.say(finish(first, label=1))
    assert await client.hear() == notice(1, "finish")


@live
async def test_dead_letters_of_the_same_sequence_are_told_apart_by_their_shard(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    policy = QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))
    for name in ("one", "two"):
        await ask(house.loop, CreateQueue(name, policy))
        await house.fill(name, queue=name)
        await ask(house.loop, Fetch(name, lease_ns=1))
    client = await house.client()
    client.say(*[fetch(queue="dead", block_timeout=5) for _ in range(2)])
    letters = await client.hear_all(2)
    assert sorted((letter["sequence"], letter["shard"]) for letter in letters) == [(1, 0), (1, 1)]
    second = next(letter for letter in letters if letter["shard"])
    client.say(finish(second, queue="dead", label=1))
    assert await client.hear() == notice(1, "finish")
    other = await house.client()
    client.say(finish(letters[1 - letters.index(second)], queue="dead", label=2))
    assert await client.hear() == notice(2, "finish")
    other.say(fetch(queue="dead", label=3))
    assert await other.hear() == {"type": "nomessage", "label": 3}


@live
async def test_the_last_delivery_before_a_dead_letter_queue_can_still_be_finished(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    await ask(house.loop, CreateQueue("risky", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    await house.fill("a", "b", queue="risky")
    client = await house.client()
    client.say(*[fetch(queue="risky", work_timeout=60) for _ in range(2)])
    messages = await client.hear_all(2)
    assert (await ask(house.loop, DescribeQueue("dead"))).messages == 2
    client.say(*[finish(message, queue="risky", label=1) for message in messages])
    assert await client.hear_all(2) == [notice(1, "finish")] * 2
    assert (await ask(house.loop, DescribeQueue("dead"))).messages == 0


def test_for_one_lease_too_many_the_oldest_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glovebox_session, "HELD_LEASES_MAX", 2)
    monkeypatch.setattr(replies, "HELD_LEASES_MAX", 2)

    @live
    async def story(house: House) -> None:
        await house.fill("a", "b", "c")
        client = await house.client()
        client.say(*[fetch() for _ in range(3)])
        oldest, *_ = await client.hear_all(3)
        await house.settled()
        assert await house.leased() == 2
        client.say(finish(oldest, label=1), fetch(label=2))
        replies = await client.hear_all(2)
        assert replies[0] == {"type": "error", "label": 1, "code": "NoObject", "key": "1"}
        assert replies[1]["body"] == "a"

    story()
