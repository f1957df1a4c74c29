"""Commands whose messages are stored elsewhere: they wait for the fetch, and others do not."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from penstock.broker.writer.loop import Loop
from penstock.errors import Reason, StoreError
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, Refused
from penstock.model.commands import CreateQueue, Fetch, NewMessage, Publish, Settle
from penstock.model.settings import QueueSettings
from penstock.model.values import Position
from penstock.storage.memory import MemoryLog
from penstock.storage.port import BeingFetchedError
from tests.support.live_loop import a_loop, ask, settled


class DistantLog(MemoryLog):
    """A log whose first bytes are elsewhere until `fetch` is done."""

    def __init__(self) -> None:
        super().__init__()
        self.absent_before: Position = 0
        self.fetch: Future[None] = Future()

    def read(self, position: Position, size: int) -> bytes:
        if position < self.absent_before and not self.fetch.done():
            raise BeingFetchedError(self.fetch)
        return super().read(position, size)


async def distant(*bodies: bytes) -> tuple[Loop, DistantLog]:
    """A queue `work` whose messages are elsewhere, and an empty queue `other`."""
    log = DistantLog()
    loop = a_loop(log)
    for name in ("work", "other"):
        await ask(loop, CreateQueue(name, QueueSettings()))
    if bodies:
        await ask(loop, Publish("work", [NewMessage(body) for body in bodies]))
    log.absent_before = log.end.position
    return loop, log


def submitted(loop: Loop, command: Fetch) -> asyncio.Future[Answer]:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    loop.submit(command, answered.set_result)
    return answered


def bodies(answer: Answer) -> list[bytes]:
    return [delivery.body for delivery in answer]  # type: ignore[union-attr]


def test_others_are_served_while_a_message_is_fetched() -> None:
    async def story() -> None:
        loop, log = await distant(b"one", b"two")
        waiting = [submitted(loop, Fetch("work", 1)) for _ in range(2)]
        await ask(loop, Publish("other", [NewMessage(b"near")]))
        assert bodies(await ask(loop, Fetch("other", 1))) == [b"near"]
        assert not any(each.done() for each in waiting)
        log.fetch.set_result(None)
        assert [bodies(await each) for each in waiting] == [[b"one"], [b"two"]]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_client_that_waits_in_the_queue_gets_the_message_when_it_was_fetched() -> None:
    async def story() -> None:
        loop, log = await distant(b"one")
        (held,) = await _take_near(loop, log)
        waiting = submitted(loop, Fetch("work", 1, wait_ns=60 * SECOND_NS))
        await settled(loop)
        await ask(loop, Settle(held.queue, held.sequence, "retry"))
        await settled(loop)
        assert not waiting.done()
        log.fetch.set_result(None)
        assert bodies(await waiting) == [b"one"]

    asyncio.run(asyncio.wait_for(story(), 60))


async def _take_near(loop: Loop, log: DistantLog) -> list[Delivery]:
    """Take a message before it is elsewhere."""
    absent, log.absent_before = log.absent_before, 0
    taken = await ask(loop, Fetch("work", 1))
    log.absent_before = absent
    return list(taken)


def test_a_fetch_that_fails_refuses_its_clients() -> None:
    async def story() -> None:
        loop, log = await distant(b"one")
        waiting = submitted(loop, Fetch("work", 1))
        await settled(loop)
        log.fetch.set_exception(StoreError("the server is gone"))
        refused = await waiting
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.detail) == (Reason.UNAVAILABLE, "it cannot be read: the server is gone")

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_stopping_broker_refuses_those_who_wait_for_a_fetch() -> None:
    async def story() -> None:
        loop, log = await distant(b"one")
        waiting = submitted(loop, Fetch("work", 1))
        await settled(loop)
        loop.release_waiters()
        assert isinstance(await waiting, Refused)
        log.fetch.set_result(None)  # Too late: nobody is called.
        await settled(loop)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_failing_log_refuses_those_who_wait_for_a_fetch() -> None:
    async def story() -> None:
        loop, _ = await distant(b"one")
        waiting = submitted(loop, Fetch("work", 1))
        await settled(loop)
        loop.fail(StoreError("the lease is lost"))
        assert isinstance(await waiting, Refused)

    asyncio.run(asyncio.wait_for(story(), 60))
