"""The contract of all background services: how the broker starts, stops and measures them.

    start ──► run ──► stop ──► close
      ▲        │
      └────────┘ the log has failed and was replaced

A service does its work in one coroutine, `run`. It waits in `rest`, continues early if something calls `wake`, and
ends when its task is cancelled. A service that only answers requests has no `run` of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from penstock.broker.figures.measures import Samples
from penstock.broker.writer.port import ClientPort, ServicePort
from penstock.errors import RequestError
from penstock.model.answers import Answer, Refused
from penstock.model.commands import Command
from penstock.model.values import Stage
from penstock.storage.port import BeingFetchedError

T = TypeVar("T")
logger = logging.getLogger(__name__)

_AFTER_FAILURE_SECONDS = 5.0


class Service:
    """One background service of the broker."""

    def __init__(self, writer: ServicePort) -> None:
        self.writer = writer
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Begin. Called again when a failed log was replaced by another."""
        self.cancel()
        self._task = asyncio.create_task(self._run())

    async def run(self) -> None:
        """Work until cancelled."""

    async def stop(self) -> None:
        """Begin nothing new, and return when the current work has ended."""
        await self._end()

    async def close(self) -> None:
        """Cancel the current work, and release everything."""
        await self._end()

    def state(self) -> Iterable[tuple[str, Samples]]:
        """The metrics of the service: names and values."""
        return ()

    async def _run(self) -> None:
        """Run, and begin again if an error ends the work."""
        while True:
            try:
                await self.run()
                return
            except Exception:
                logger.critical("service_failed", exc_info=True)
            await asyncio.sleep(_AFTER_FAILURE_SECONDS)

    # ── For the coroutine ───────────────────────────────────────────────────────────────────────────────────

    async def rest(self, seconds: float | None = None) -> bool:
        """Wait until `wake` is called, at most this long. Returns whether it was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self) -> None:
        self._woken.set()

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()
            self._task = None

    async def _end(self) -> None:
        """Cancel the task, and wait until it has ended."""
        if task := self._task:
            self.cancel()
            await asyncio.wait([task])

    async def ask(self, command: Command) -> Any:
        """Submit a command in a turn of its own, so that clients do not wait. Returns the answer when it is
        durable."""
        await asyncio.sleep(0)
        return await answer_to(self.writer, command)


def answer_to(writer: ClientPort, command: Command) -> asyncio.Future[Any]:
    """Submit a command now. The future has its answer when that is durable."""
    answered = asyncio.get_running_loop().create_future()
    writer.submit(command, partial(resolve, answered))
    return answered


def durable(writer: ClientPort) -> asyncio.Future[Any]:
    """A future for when everything decided so far is durable: `Done`, or `Refused` if the log fails first."""
    reached = asyncio.get_running_loop().create_future()
    writer.reach(Stage.SYNC, partial(resolve, reached))
    return reached


async def accepted(writer: ClientPort, command: Command) -> Any:
    """The answer to a command. Raises `RequestError` if it is refused."""
    return unrefused(await answer_to(writer, command))


def unrefused(answer: Any) -> Any:
    if isinstance(answer, Refused):
        raise RequestError(answer.reason, answer.detail, answer.retry_seconds)
    return answer


async def in_thread(work: Callable[[], T], threads: Executor | None = None) -> T:
    """Run a function that waits for a disk or another machine. A cancelled caller continues only when the thread has
    finished, so that it can close what the thread was using."""
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def when_fetched(read: Callable[[], T]) -> T:
    """What `read` returns, when everything that it reads is on this machine."""
    while True:
        try:
            return read()
        except BeingFetchedError as error:
            with contextlib.suppress(FileNotFoundError):  # It was removed meanwhile; `read` finds out.
                await asyncio.wrap_future(error.fetch)


def resolve(future: asyncio.Future[Any], answer: Answer | None) -> None:
    """Set the answer that a coroutine awaits."""
    if not future.done():  # It is done if the waiting coroutine was cancelled.
        future.set_result(answer)
