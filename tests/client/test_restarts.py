"""Clients at work while the broker is restarted and killed: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import AsyncClient, Client
from penstock.client import Event
from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.ports import free_port

ROUNDS = 40 if LONG else 4
PUBLISHERS = 50
TIMEOUT = 60

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1200 if LONG else 300)]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data", http=f"127.0.0.1:{free_port()}").start()


async def shaken(broker: Broker, until: Awaitable[object], *, between: Callable[[], Awaitable[None]]) -> None:
    """Restart and kill the broker in turns, then let the work come to its end."""
    for number in range(ROUNDS):
        await between()
        await asyncio.to_thread(broker.stop if number % 2 else broker.kill)
        await asyncio.to_thread(broker.start)
    await until


class Progress:
    """Lets a test wait until so much more has happened."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._changed.set()

    async def more(self, by: int) -> None:
        goal = self.count + by
        while self.count < goal:
            self._changed.clear()
            await self._changed.wait()


def test_every_publish_is_stored_once_and_every_event_read_once(broker: Broker) -> None:
    async def run() -> tuple[list[str], list[str], list[Event], list[Event]]:
        progress, stopping = Progress(), asyncio.Event()
        acknowledged: list[str] = []
        followed: list[Event] = []

        async def publish(client: AsyncClient, name: int) -> None:
            number = 0
            while not stopping.is_set():
                acknowledged.append((await client.publish("ledger", f"{name}.{number}")).id)
                number += 1
                progress.add()

        async def follow(client: AsyncClient) -> None:
            async for event in client.events(queue="ledger"):
                followed.append(event)
                if len(followed) > 1 and followed[-2].body == b"the end":
                    return

        async with AsyncClient(broker.url, timeout=TIMEOUT) as client:
            await client.queues.create("ledger")
            following = asyncio.create_task(follow(client))
            publishing = asyncio.gather(*[publish(client, name) for name in range(PUBLISHERS)])
            await shaken(broker, asyncio.sleep(0), between=lambda: progress.more(500 + random.randrange(2000)))
            stopping.set()
            await publishing
            acknowledged.append((await client.publish("ledger", "the end")).id)
            await asyncio.wait_for(following, TIMEOUT)
            stored = [found.id async for found in client.search(queue="ledger", bodies=False)]
            all_events = [event async for event in client.events(queue="ledger", follow=False)]
        return acknowledged, stored, followed, all_events

    acknowledged, stored, followed, all_events = asyncio.run(run())
    broker.stop()
    assert Counter(stored) == Counter(acknowledged)
    assert [event.next for event in followed] == [event.next for event in all_events]
    assert len(all_events) == 2 * len(stored)


def test_threads_publish_and_consume_without_loss(broker: Broker) -> None:
    seen: Counter[str] = Counter()
    sent: list[str] = []
    stopping = threading.Event()
    arrived = threading.Semaphore(0)

    def publish(client: Client, name: int) -> None:
        number = 0
        while not stopping.is_set():
            client.publish("work", f"{name}.{number}")
            sent.append(f"{name}.{number}")
            number += 1

    def consume(client: Client) -> None:
        for message in client.consume("work", idle=3):
            seen[message.text] += 1
            arrived.release()

    with Client(broker.url, timeout=TIMEOUT) as client:
        client.queues.create("work", lease=2)
        publishers = [threading.Thread(target=publish, args=(client, name)) for name in range(4)]
        consumers = [threading.Thread(target=consume, args=(client,)) for _ in range(2)]
        for thread in (*publishers, *consumers):
            thread.start()
        for number in range(ROUNDS):
            for _ in range(200):
                assert arrived.acquire(timeout=TIMEOUT)
            (broker.stop if number % 2 else broker.kill)()
            broker.start()
        stopping.set()
        for thread in (*publishers, *consumers):
            thread.join()
        assert client.queues.get("work").status.messages == 0
    broker.stop()
    assert set(seen) == set(sent)
