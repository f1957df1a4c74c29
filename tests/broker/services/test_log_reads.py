"""Work in threads beside the event loop: its result, its rest while the broker is at work, and its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

import pytest

from penstock.broker.services.log_reads import LogReads
from penstock.model.commands import CreateQueue
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask


def test_the_result_comes_back_and_so_does_an_error() -> None:
    async def story() -> None:
        reads = LogReads(a_loop(MemoryLog()))
        assert await reads.in_thread(lambda: threading.current_thread().name != "MainThread")
        with pytest.raises(ZeroDivisionError):
            await reads.in_thread(lambda: 1 // 0)
        await reads.close()

    asyncio.run(story())


def test_whoever_is_cancelled_goes_on_when_the_thread_is_done() -> None:
    began, end, closed = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        end.wait(20)
        closed.append("thread")

    async def read(reads: LogReads) -> None:
        try:
            await reads.in_thread(work)
        finally:
            closed.append("reader")

    async def story() -> None:
        reads = LogReads(a_loop(MemoryLog()))
        reading = asyncio.create_task(read(reads))
        await asyncio.to_thread(began.wait, 20)
        reading.cancel()
        await asyncio.sleep(0)
        assert closed == []
        end.set()
        await asyncio.wait([reading])
        assert reading.cancelled()
        await reads.close()

    asyncio.run(story())
    assert closed == ["thread", "reader"]


def work() -> None:
    """Some hundredths of a second of the processor, however busy that is."""
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass


class Sleeps(asyncio.SelectorEventLoop):
    """Notes how long tasks mean to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.slept.append(delay)
        return super().call_later(delay, callback, *args, context=context)


@pytest.mark.parametrize("at_work", [True, False])
def test_readers_rest_while_the_broker_is_at_work(at_work: bool) -> None:
    """How long they mean to rest, not how long it takes: another program may have the processor."""

    async def story() -> None:
        loop = a_loop(MemoryLog())
        reads = LogReads(loop)
        await reads.in_thread(work)
        if at_work:
            await ask(loop, CreateQueue("work", QueueSettings()))
        await reads.in_thread(lambda: None)
        await reads.close()

    with asyncio.Runner(loop_factory=Sleeps) as runner:
        runner.run(story())
        slept = cast("Sleeps", runner.get_loop()).slept
    assert (sum(slept) > 0.05) == at_work, slept


@pytest.mark.parametrize(("spent", "rests"), [(0.0, False), (10.0, True)])
def test_who_looks_at_one_message_does_not_wait_for_the_rest_of_others_within_a_budget(
    spent: float, rests: bool
) -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        reads = LogReads(loop)
        await reads.in_thread(work)
        reads._haste -= spent
        reads._haste_at = asyncio.get_running_loop().time()
        await ask(loop, CreateQueue("work", QueueSettings()))
        await reads.in_thread(lambda: None, at_once=True)
        await reads.close()

    with asyncio.Runner(loop_factory=Sleeps) as runner:
        runner.run(story())
        slept = cast("Sleeps", runner.get_loop()).slept
    assert (sum(slept) > 0.05) == rests, slept


def test_names_of_queues_are_known_after_they_are_gone() -> None:
    async def story() -> str | None:
        loop = a_loop(MemoryLog())
        reads = LogReads(loop)
        await ask(loop, CreateQueue("work", QueueSettings()))
        del loop.engine.queues[1]
        name = reads.queues.name(1)
        await reads.close()
        return name

    assert asyncio.run(story()) == "work"
