"""A thread with an event loop, on which blocking callers run coroutines.

Callers of many threads share one loop, so what they publish at the same time goes out together. A wake-up of the loop
serves all callers that have come by then.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from penstock.client.errors import ClientError
from penstock.client.pages import Pages

T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")

_CANCEL_SECONDS_MAX = 5.0
_INTERRUPT_SECONDS = 0.5  # Ctrl-C does not wake a thread that is about to wait: then it is seen so much later.


class _Waiter:
    """A thread that waits for a coroutine."""

    __slots__ = ("context", "coroutine", "error", "finished", "result", "task", "wake")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.context = copy_context()  # The coroutine runs in that of its caller, not of the one who woke the loop.
        self.task: asyncio.Task[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.error = ClientError("the client was closed")
        else:
            self.error = task.exception()
            self.result = None if self.error else task.result()
        self.finished = True
        self.wake.release()


class Runner:
    """Its thread starts with the first call, and ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._calls: deque[_Waiter] = deque()
        self._woken = False
        self.stopped = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. If the wait is interrupted, the coroutine is cancelled."""
        waiter = _Waiter(coroutine)
        loop = self._loop or self._start(coroutine)
        self._calls.append(waiter)
        if not self._woken:
            self._woken = True
            loop.call_soon_threadsafe(self._begin)
        try:
            while not waiter.wake.acquire(timeout=_INTERRUPT_SECONDS):
                pass
        except BaseException:
            loop.call_soon_threadsafe(self._cancel, waiter)
            if not waiter.finished:
                # Until it has ended, what it uses cannot be closed.
                waiter.wake.acquire(timeout=_CANCEL_SECONDS_MAX)
            raise
        if waiter.error is not None:
            try:
                raise waiter.error
            finally:
                del waiter  # The traceback would keep the error in a cycle.
        return cast("T", waiter.result)

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        with self._starting:
            loop, self._loop, self.stopped = self._loop, None, True
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self.stopped:
                coroutine.close()
                raise ClientError("the client is closed; make a new one")
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            self._begin()  # Those that came too late are cancelled with the rest.
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _begin(self) -> None:
        # Cleared first: who comes from now on wakes the loop again.
        self._woken = False
        loop = asyncio.get_event_loop()
        while self._calls:
            waiter = self._calls.popleft()
            waiter.task = loop.create_task(waiter.coroutine, context=waiter.context)
            waiter.task.add_done_callback(waiter.finish)

    def _cancel(self, waiter: _Waiter) -> None:
        if waiter.task is not None:
            waiter.task.cancel()


def new_loop() -> asyncio.AbstractEventLoop:
    """The faster one, if there is one."""
    try:
        import uvloop
    except ImportError:  # It is not made for every system.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Blocking(Generic[A_co]):
    """The blocking face of an asynchronous object."""

    def __init__(self, asynchronous: A_co, runner: Runner) -> None:
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
