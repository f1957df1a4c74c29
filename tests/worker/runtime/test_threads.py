"""Functions in threads: their results come back, and they can be interrupted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.worker.errors import TimeLimit
from penstock.worker.runtime.threads import Threads

NAME: ContextVar[str] = ContextVar("NAME")


def never() -> None:
    return None


def run(count: int, main: Callable[[Threads], Any]) -> Any:
    async def serve() -> Any:
        threads = Threads(count)
        try:
            return await main(threads)
        finally:
            threads.close()

    return asyncio.run(serve())


def test_results_and_errors_come_back() -> None:
    async def main(threads: Threads) -> None:
        assert await threads.run(lambda: 3, never) == 3
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0, never)

    run(1, main)


def test_no_more_functions_run_at_once_than_there_are_threads() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def count() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    async def main(threads: Threads) -> None:
        await asyncio.gather(*[threads.run(count, never) for _ in range(40)])

    run(3, main)
    assert most == 3


def test_a_function_sees_the_context_of_its_caller() -> None:
    async def main(threads: Threads) -> str:
        NAME.set("job 1")
        return str(await threads.run(NAME.get, never))

    assert run(1, main) == "job 1"


def test_a_function_is_interrupted_with_the_reason_and_its_thread_goes_on() -> None:
    begun = threading.Event()

    def loop() -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    async def main(threads: Threads) -> None:
        task = asyncio.ensure_future(threads.run(loop, lambda: TimeLimit("late")))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(TimeLimit):
            await task
        assert await threads.run(lambda: "next", never) == "next"

    run(1, main)


@pytest.mark.parametrize("pause", [0.0, 0.0005, 0.001])
def test_an_interruption_that_comes_too_late_strikes_no_other_function(pause: float) -> None:
    """The function ends at about the time at which it is interrupted."""

    async def main(threads: Threads) -> None:
        for _ in range(200):
            task = asyncio.ensure_future(threads.run(lambda: time.sleep(0.001), lambda: TimeLimit("late")))
            await asyncio.sleep(pause)
            task.cancel()
            try:
                await task
            except (TimeLimit, asyncio.CancelledError):
                pass
            assert await threads.run(lambda: sum(range(50)), never) == 1225

    run(1, main)
