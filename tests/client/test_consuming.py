"""The loop over the messages of a queue: leases that are kept, and what happens when it is left."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import AsyncClient, Client
from tests.support.broker import Broker
from tests.support.ports import free_port


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.url, timeout=60) as client:
        yield client


def test_a_slow_loop_keeps_the_leases_of_what_it_holds(client: Client) -> None:
    client.queues.create("consume-slow", lease=4)
    client.publish_many("consume-slow", ["a", "b", "c"])
    receives = []
    for message in client.consume("consume-slow", idle=0):
        receives.append(message.receives)
        if len(receives) == 1:
            assert client.receive("consume-slow", wait=10) == []  # For longer than a lease.
    assert receives == [1, 1, 1]
    assert client.queues.get("consume-slow").status.messages == 0


def test_a_loop_that_is_broken_off_gives_everything_back(client: Client) -> None:
    client.queues.create("consume-break")
    client.publish_many("consume-break", ["a", "b", "c"])
    for message in client.consume("consume-break"):
        message.confirm()
        break
    status = client.queues.get("consume-break").status
    assert (status.ready, status.leased) == (2, 0)


def test_messages_that_come_while_the_loop_waits_are_delivered(client: Client) -> None:
    client.queues.create("consume-wait")
    client.publish("consume-wait", "1")
    seen = []
    for message in client.consume("consume-wait", idle=1):
        seen.append(message.text)
        if len(seen) < 4:
            client.publish("consume-wait", str(len(seen) + 1))
    assert seen == ["1", "2", "3", "4"]


def test_a_channel_that_awaits_no_confirmation_gets_none(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.channels.create("consume-kicked", ["consume-news.*"], confirm=False, lease=1)
    for number in range(3):
        client.publish_to("consume-news.today", str(number))
    seen = []
    for message in client.consume("consume-kicked", idle=0):
        seen.append(message.text)
        if len(seen) == 1:
            assert client.receive("consume-kicked", wait=2) == []  # For longer than a lease.
    assert seen == ["0", "1", "2"]
    assert not caplog.records


def test_a_settled_message_is_left_alone(client: Client) -> None:
    client.queues.create("consume-settled")
    client.publish("consume-settled", "x")
    receives = []
    for message in client.consume("consume-settled", idle=1):
        receives.append(message.receives)
        if message.receives == 1:
            message.retry()
    assert receives == [1, 2]


def test_an_asynchronous_loop_that_fails_gives_everything_back(broker: Broker) -> None:
    async def work(client: AsyncClient) -> None:
        async for _ in client.consume("consume-fails"):
            raise ValueError

    async def run() -> list[str]:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("consume-fails")
            await client.publish_many("consume-fails", ["a", "b"])
            with pytest.raises(ValueError):  # noqa: PT011 - It has no text.
                await work(client)
            taken = await client.receive("consume-fails", 1, wait=20)
            taken += await client.receive("consume-fails", 2, wait=20)
            return sorted(message.text for message in taken)

    assert asyncio.run(run()) == ["a", "b"]


def test_a_loop_that_is_cancelled_gives_everything_back(broker: Broker) -> None:
    async def run() -> tuple[int, int]:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("consume-cancelled")
            await client.publish_many("consume-cancelled", ["a", "b"])
            begun = asyncio.Event()

            async def work() -> None:
                async for _ in client.consume("consume-cancelled"):
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            first = await client.receive("consume-cancelled", 1, wait=20)
            second = await client.receive("consume-cancelled", 1, wait=20)
            return len(first), len(second)

    assert asyncio.run(run()) == (1, 1)


def test_a_loop_that_is_cancelled_while_it_waits_for_a_message_ends_as_cancelled(broker: Broker) -> None:
    async def run() -> bool:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("consume-idle")

            async def work() -> None:
                async for _ in client.consume("consume-idle"):
                    pass

            task = asyncio.create_task(work())
            waiting = 0.0
            while not waiting:
                metrics = await client.metrics()
                waiting = float(re.findall(r"^penstock_waiting_receives (.*)", metrics, re.M)[0])
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

    assert asyncio.run(run())


def test_a_loop_that_is_gone_costs_only_that_message_an_attempt_that_it_had_begun(broker: Broker) -> None:
    """Its process is killed, as it were: nothing is given back."""

    async def run() -> list[str]:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("consume-gone", lease=2, max_attempts=1)
            await client.publish_many("consume-gone", [str(number) for number in range(10)])
            async with AsyncClient(broker.url, name="gone") as gone:
                messages = aiter(gone.consume("consume-gone").pages)
                assert [each.text for each in await anext(messages)] == ["0"]
                await gone._session.transport.close()
                return [message.text async for message in client.consume("consume-gone", idle=10)]

    assert asyncio.run(run()) == [str(number) for number in range(1, 10)]


@pytest.mark.parametrize("begin", [False, True])
def test_a_message_that_was_fetched_ahead_counts_from_its_beginning(client: Client, begin: bool) -> None:
    client.queues.create(f"ahead-{begin}", max_attempts=5)
    client.publish(f"ahead-{begin}", "x")
    (message,) = client.receive(f"ahead-{begin}", ahead=True)
    if begin:
        message.extend(60, begin=True)
    client.settle(message, "retry", begun=False)
    (message,) = client.receive(f"ahead-{begin}")
    assert message.receives == 1 + begin


def test_a_receive_that_is_cancelled_loses_no_message(broker: Broker) -> None:
    async def run() -> int:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("consume-race", lease=3600)
            received = 0
            for _ in range(50):
                receiving = asyncio.create_task(client.receive("consume-race", 10))
                await client.publish("consume-race", "x")
                receiving.cancel()
                await asyncio.wait([receiving])
                if not receiving.cancelled():  # It had ended before: what it received is its caller's.
                    received += len(receiving.result())
            while received < 50 and (messages := await client.receive("consume-race", 100, wait=20)):
                received += len(messages)
            return received

    assert asyncio.run(run()) == 50


class Noticing(logging.Handler):
    """Sets an event when a warning begins like this."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self.noticed = threading.Event()
        self._beginning = beginning

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._beginning):
            self.noticed.set()


@pytest.fixture
def gave_up() -> Iterator[threading.Event]:
    handler = Noticing("no messages of q for now")
    logger = logging.getLogger("penstock.client")
    logger.addHandler(handler)
    yield handler.noticed
    logger.removeHandler(handler)


def test_a_loop_waits_for_a_broker_that_is_away_for_longer_than_a_request_may_take(
    tmp_path: Path, gave_up: threading.Event
) -> None:
    async def first(client: AsyncClient) -> str:
        async for message in client.consume("q"):
            return message.text
        raise AssertionError

    async def run() -> str:
        async with AsyncClient(broker.url, timeout=0.5) as client:
            consuming = asyncio.create_task(first(client))
            assert await asyncio.to_thread(gave_up.wait, 60)
            await asyncio.to_thread(broker.start)
            with Client(broker.url) as other:
                other.publish("q", "at last")
            return await consuming

    broker = Broker(tmp_path / "data", http=f"127.0.0.1:{free_port()}").start()
    broker.create_queue("q")
    broker.kill()
    assert asyncio.run(run()) == "at last"
    broker.stop()
