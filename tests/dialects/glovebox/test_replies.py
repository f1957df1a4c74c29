"""Replies to a client that is away are kept, as long as there is room."""

from __future__ import annotations

from penstock.dialects.glovebox.replies import CODES
from penstock.errors import Reason
from penstock.model.commands import (
    Release,
)
from tests.support.glovebox import DURABLE, Client, House, bounded, fetch, finish, live, notice, post


@live
async def test_what_came_while_a_durable_session_was_lost_is_told_when_it_is_back(house: House) -> None:
    await house.fill("mine", "next")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1), post(notify=["finish"], label=2))
    mine = await first.hear()
    first.say(fetch(label=3))
    first.lose()
    other = await house.client()
    await house.settled()
    other.say({"type": "pop", "queue": "work"})
    assert (await other.hear())["body"] == "hello"
    await house.settled()
    second = Client(house, reconnect_as=str(number), **DURABLE)
    hello, *kept = await second.hear_all(3)
    assert hello == {"type": "hello", "id": number}
    assert [reply.get("body", reply.get("notice")) for reply in kept] == ["next", "finish"]
    second.say(finish(mine, label=4), finish(kept[0], label=5))
    assert await second.hear_all(2) == [notice(4, "finish"), notice(5, "finish")]
    assert house.glovebox._sessions.kept_bytes == 0


@live
async def test_what_waits_is_written_as_the_new_connection_wants_it(house: House) -> None:
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(post(label=7))
    first.lose()
    await house.settled()
    second = Client(house, reconnect_as=str(number), binary="true")
    hello, told = await second.hear_all(2)
    assert hello == bytes.fromhex("0000000002000000") + number.to_bytes(8, "little")
    assert told.hex() == "0000000001000000" + "0700000000000000" + "02000000"


@live
async def test_a_second_connection_takes_a_session_over(house: House) -> None:
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1, block_timeout=10))
    second = Client(house, reconnect_as=str(number))
    assert (await second.hear())["id"] == number
    assert "took this session over" in first.closed_because
    first.lose()
    second.say(post(label=2))
    assert await second.hear() == notice(2, "sync")
    assert first.unheard == 0
    assert house.loop.waiting("work") == 0


@live
async def test_waiting_fetches_of_a_lost_connection_are_called_off(house: House) -> None:
    for headers in ({}, DURABLE):
        client = await house.client(**headers)
        client.say(fetch(block_timeout=10), {"type": "pop", "queue": "work", "timeout": 10})
        client.lose()
    await house.fill("a")
    assert house.loop.waiting("work") == 0
    assert await house.leased() == 0


@live
async def test_the_leases_of_a_plain_session_are_left_to_run_out(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(fetch(work_timeout=60))
    await client.hear()
    client.lose()
    await house.settled()
    assert await house.leased() == 1


@bounded(session_replies_max=2)
async def test_of_too_much_that_waits_the_oldest_goes_and_its_lease_is_given_back(house: House) -> None:
    await house.fill("a", "b", "c")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1), fetch(label=2), fetch(label=3))
    first.lose()
    await house.settled()
    assert [command.sequence for command in first.commands if type(command) is Release] == [1]
    assert await house.leased() == 2
    second = Client(house, reconnect_as=str(number))
    assert [reply.get("body") for reply in await second.hear_all(3)] == [None, "b", "c"]


@bounded(session_bytes_max=1 << 16)
async def test_what_waits_is_bounded_in_bytes_too(house: House) -> None:
    await house.fill(*["x" * 30_000] * 4)
    first = Client(house, **DURABLE)
    first.say(*[fetch() for _ in range(4)])
    first.lose()
    await house.settled()
    assert await house.leased() == 2
    assert house.glovebox._sessions.kept_bytes < 1 << 16


def test_every_refusal_has_a_code() -> None:
    assert set(CODES) == set(Reason)
