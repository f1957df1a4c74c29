"""Answers that cross a link are bounded at both of its ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.broker.room import Room
from penstock.broker.writer.loop import Loop
from penstock.cluster.links.calls import Asking
from penstock.cluster.links.link import Link
from penstock.limits import FETCH_BYTES_MAX, ROOM_EACH_BYTES, SECOND_NS
from penstock.model.access import EVERYTHING
from penstock.model.commands import Command, CreateQueue, Fetch, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.linked import linked_to, told_in
from tests.support.live_loop import a_loop, ask, until

SHARD = 3
LIMIT = 16 << 20
MEBIBYTE = 1 << 20
LONG_NS = 3600 * SECOND_NS
STOCK = 40


class Client:
    """One whose connection is at the near end."""

    access = EVERYTHING
    address = "127.0.0.1"
    dialect = "mqs"

    def __init__(self) -> None:
        self.holder = self

    def abort(self) -> None:
        raise AssertionError("nobody is closed here")


class Ends:
    """`room` is that of the near end, where the clients are; `loop` has that of the far one."""

    def __init__(self, near: Link, far: Link, loop: Loop, room: Room) -> None:
        self.near, self.far, self.loop, self.room = near, far, loop, room
        self.answers: list[Any] = []
        self._full = Client()

    def send(self, command: Command, client: Client | None = None) -> Any:
        return self.near.submit(SHARD, client or Client(), command, self.answers.append)

    async def answered(self, count: int) -> list[Any]:
        await until(lambda: len(self.answers) >= count)
        return self.answers

    async def fill(self, size: int) -> None:
        """Have another client hold so much, until the far end knows whether that is much."""
        self.room.note(self._full, size)
        await until(lambda: self.far._served.is_crowded_there == self.room.is_crowded)

    async def stock(self, count: int) -> None:
        for _ in range(count):
            await ask(self.loop, Publish("work", [NewMessage(bytes(MEBIBYTE))]))

    async def waits(self, count: int) -> None:
        await until(lambda: self.loop.waiting("work") == count)


Story = Callable[[Ends], Coroutine[Any, Any, None]]


def linked(story: Story) -> Callable[[Path], None]:
    """A decorator for tests of two processes, each with little room."""

    async def run(path: Path) -> None:
        loop = a_loop(MemoryLog(), Room(LIMIT))
        await ask(loop, CreateQueue("work", QueueSettings()))
        near, far = Asking(), Asking()
        near.room, far.room = Room(LIMIT), loop.room
        other = Link(1, {SHARD: loop}, asking=far)
        async with linked_to(other, path, near) as link:
            near.room.on_crowded.append(link.say_crowded)
            far.room.on_crowded.append(other.say_crowded)
            await asyncio.wait_for(story(Ends(link, other, loop, near.room)), 60)

    return told_in(run, story)


@linked
async def test_what_a_link_has_not_sent_takes_room_and_no_more_is_made_for_its_other_end(ends: Ends) -> None:
    await ends.stock(STOCK)
    assert ends.near._transport
    ends.near._transport.pause_reading()
    for _ in range(STOCK):
        ends.send(Fetch("work"))
    room = ends.loop.room
    await until(lambda: room.bytes >= ROOM_EACH_BYTES and room.free(None) > 0)
    assert room.bytes < LIMIT // 2 + 2 * MEBIBYTE, "two turns"
    assert room.free(Client()) > 0, "others get answers"
    ends.near._transport.resume_reading()
    await ends.answered(STOCK)
    await until(lambda: room.bytes == 0)


@linked
async def test_without_room_a_command_is_sent_when_there_is_some_and_its_answer_is_no_larger(ends: Ends) -> None:
    await ends.stock(4)
    await ends.fill(LIMIT)
    ends.send(Fetch("work", 4))
    await ask(ends.loop, Fetch("none"))
    assert ends.answers == []
    await ends.fill(LIMIT - FETCH_BYTES_MAX // 2)
    (answer,) = await ends.answered(1)
    assert len(answer) == 2
    await until(lambda: ends.room.bytes == LIMIT - FETCH_BYTES_MAX // 2)


@linked
async def test_who_waits_for_a_message_holds_no_room_and_comes_again_when_there_is_one(ends: Ends) -> None:
    waiting = ends.send(Fetch("work", wait_ns=LONG_NS))
    await ends.waits(1)
    await ends.fill(LIMIT)
    await ask(ends.loop, Publish("work", [NewMessage(b"hello")]))
    await ends.waits(0)
    assert (ends.answers, ends.room.bytes) == ([], LIMIT)
    await ends.fill(0)
    ((delivery,),) = await ends.answered(1)
    assert (delivery.body, delivery.receives) == (b"hello", 1)
    assert not waiting.is_waiting


@linked
async def test_who_comes_again_and_finds_nothing_waits_on(ends: Ends) -> None:
    waiting = ends.send(Fetch("work", wait_ns=LONG_NS))
    await ends.waits(1)
    await ends.fill(LIMIT)
    await ask(ends.loop, Publish("work", [NewMessage(b"for another")]))
    assert await ask(ends.loop, Fetch("work"))
    await ends.fill(0)
    await ends.waits(1)
    await until(lambda: ends.room.bytes == 0)
    assert ends.answers == []
    waiting.give_up()
    assert await ends.answered(1) == [[]]


@linked
async def test_who_goes_away_gives_its_room_back(ends: Ends) -> None:
    gone = Client()
    await ends.fill(LIMIT)
    ends.send(Fetch("work", wait_ns=LONG_NS), gone)
    ends.room.leave(gone)
    await ends.fill(0)
    waiting = ends.send(Fetch("work", wait_ns=LONG_NS))
    await ends.waits(1)
    waiting.cancel()
    await ends.waits(0)
    assert ends.room.is_empty
    assert (ends.answers, ends.room.bytes) == ([], 0)
