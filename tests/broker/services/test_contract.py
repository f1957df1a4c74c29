"""The contract of services: they start, rest, are woken, fail, stop and start again in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.services import contract
from penstock.broker.services.contract import Service, accepted, durable
from penstock.errors import Reason, RequestError
from penstock.model.commands import CreateQueue, DescribeQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop

Work = Callable[["Counting"], Awaitable[None]]


class Counting(Service):
    """Counts how often its work begins and ends."""

    begun = ended = 0

    def __init__(self, work: Work) -> None:
        super().__init__(a_loop(MemoryLog()))
        self._work = work
        self.has_begun = asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        self.has_begun.set()
        try:
            await self._work(self)
        finally:
            self.ended += 1


async def rest_forever(service: Counting) -> None:
    await service.rest()


def test_a_rest_ends_when_its_time_is_over_or_when_it_is_woken() -> None:
    async def story() -> list[bool]:
        service = Service(a_loop(MemoryLog()))
        rested = [await service.rest(0.001)]
        service.wake()
        rested.append(await service.rest())
        return [*rested, await service.rest(0.001)]

    assert asyncio.run(story()) == [False, True, False]


@pytest.mark.parametrize("way", ["stop", "close"])
def test_a_service_that_stops_or_closes_has_ended_its_work(way: str) -> None:
    async def story() -> tuple[int, int]:
        service = Counting(rest_forever)
        service.start()
        await service.has_begun.wait()
        await getattr(service, way)()
        return service.begun, service.ended

    assert asyncio.run(story()) == (1, 1)


def test_a_second_start_replaces_the_first() -> None:
    async def story() -> tuple[int, int]:
        service = Counting(rest_forever)
        service.start()
        await service.has_begun.wait()
        service.has_begun.clear()
        service.start()
        await service.has_begun.wait()
        return service.begun, service.ended

    assert asyncio.run(story()) == (2, 1)


def test_a_service_that_fails_says_so_and_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_once(service: Counting) -> None:
        if service.begun == 1:
            service.has_begun.clear()
            raise RuntimeError("a defect")
        await service.rest()

    async def story() -> int:
        service = Counting(fail_once)
        service.start()
        await asyncio.sleep(0)
        await service.has_begun.wait()
        await service.close()
        return service.begun

    monkeypatch.setattr(contract, "_AFTER_FAILURE_SECONDS", 0.0)
    assert asyncio.run(story()) == 2
    assert [record.message for record in caplog.records] == ["service_failed"]


def test_a_refused_command_raises_its_reason() -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        await accepted(loop, CreateQueue("there", QueueSettings()))
        assert (await accepted(loop, DescribeQueue("there"))).name == "there"
        with pytest.raises(RequestError) as refused:
            await accepted(loop, DescribeQueue("gone"))
        assert refused.value.error is Reason.NO_QUEUE
        assert str(refused.value) == Reason.NO_QUEUE.explain("gone")

    asyncio.run(story())


def test_what_was_decided_is_durable_when_that_is_awaited() -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        loop.submit(Publish("work", [NewMessage(b"x")], QueueSettings()), lambda _: None)
        loop.decide_collected()
        assert loop.log.collecting
        await durable(loop)
        assert not loop.log.collecting

    asyncio.run(story())


def test_an_answer_that_nobody_awaits_any_more_does_no_harm() -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        asking = asyncio.create_task(accepted(loop, CreateQueue("work", QueueSettings())))
        await asyncio.sleep(0)
        asking.cancel()
        await accepted(loop, DescribeQueue("work"))

    asyncio.run(story())
