"""A thread with an event loop, on which blocking callers run coroutines.

Callers of many threads share one loop, so what they publish at the same time goes out together. A wake-up of the loop
serves all callers that have come by then.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from penstock.client.pages import Pages

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")


class _Waiter:
    """A thread that waits for a coroutine."""

    __slots__ = ("coroutine", "error", "result", "task", "wake")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.task: asyncio.Task[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.error = asyncio.CancelledError()
        else:
            self.error = task.exception()
            self.result = None if self.error else task.result()
        self.wake.release()


class Runner:
    """Started on first use; `stop` ends the thread."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._calls: deque[_Waiter] = deque()
        self._woken = False
        self.stopped = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. If the wait is interrupted, the coroutine is cancelled."""
        if self.stopped:
            coroutine.close()
            raise RuntimeError("the client is closed")
        waiter = _Waiter(coroutine)
        self._calls.append(waiter)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._begin)
        try:
            waiter.wake.acquire()
        except BaseException:
            self._loop.call_soon_threadsafe(self._cancel, waiter)
            raise
        if waiter.error is not None:
            try:
                raise waiter.error
            finally:
                del waiter  # The traceback would keep the error in a cycle.
        return cast("T", waiter.result)

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _begin(self) -> None:
        # Cleared first: who comes from now on wakes the loop again.
        self._woken = False
        while self._calls:
            waiter = self._calls.popleft()
            waiter.task = self._loop.create_task(waiter.coroutine)
            waiter.task.add_done_callback(waiter.finish)

    def _cancel(self, waiter: _Waiter) -> None:
        if waiter.task is not None:
            waiter.task.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # It is not made for every system.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Blocking(Generic[A]):
    """The blocking face of an asynchronous object."""

    def __init__(self, asynchronous: A, runner: Runner) -> None:
        self._asynchronous = asynchronous
        self._runner = runner


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """The same method, with the same arguments, for those who cannot await."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(method(self._asynchronous, *args, **kwargs))

    return call


def iterating(method: Callable[Concatenate[A, P], Pages[T]]) -> Callable[Concatenate[Blocking[A], P], Iterator[T]]:
    """The same loop, with the same arguments, for those who cannot await. It ends when it is left."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterate(self._runner, method(self._asynchronous, *args, **kwargs).pages)

    return call


def _iterate(runner: Runner, pages: AsyncGenerator[list[T], None]) -> Iterator[T]:
    try:
        while page := runner.run(_next(pages)):
            yield from page
    finally:
        if not runner.stopped:
            runner.run(pages.aclose())


async def _next(pages: AsyncGenerator[list[T], None]) -> list[T]:
    """The next page; an empty one at the end."""
    return await anext(pages, [])
