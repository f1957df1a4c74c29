"""Threads for functions that are not `async`.

A pool of its own, because the one of the standard library does not say which thread runs a function, so that none can
be interrupted, and takes twice the processor time: here the event loop is woken once for all that has ended by then.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Work:
    __slots__ = ("context", "ended", "error", "function", "future", "result", "thread")

    def __init__(self, function: Callable[[], Any], context: Context, future: asyncio.Future[Any]) -> None:
        self.function = function
        self.context = context
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread: int | None = None  # While the function runs.
        self.ended = False


class Threads:
    """At most so many functions at a time. Threads start when they are needed, and end with the process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0
        self._busy = 0
        self._ended: deque[_Work] = deque()
        self._woken = False
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.Lock()  # Between the end of a function and an exception that is to strike it.

    async def run(self, function: Callable[[], Any], stopped: Callable[[], Exception | None]) -> Any:
        """Run a function in a thread. If this is cancelled, the reason is raised inside the function; it may take
        a while to notice, because only Python code can be interrupted."""
        work = _Work(function, copy_context(), self._loop.create_future())
        self._begin(work)
        while True:
            try:
                await asyncio.shield(work.future)
            except asyncio.CancelledError:
                reason = stopped()
                if reason is None or work.future.cancelled() or self._closed:
                    raise  # Closed: the process ends, whatever the function does.
                self._interrupt(work, type(reason))
            else:
                # Not as the error of the future, which takes no StopIteration.
                if work.error is not None:
                    raise work.error
                return work.result

    def close(self) -> None:
        self._closed = True
        for _ in range(self._started):
            self._work.put(None)

    def _begin(self, work: _Work) -> None:
        self._busy += 1
        if self._busy > self._started and self._started < self._count:
            self._started += 1
            threading.Thread(target=self._serve, name=f"penstock task {self._started}", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            while not work.ended:
                try:
                    self._perform(work)
                except BaseException as error:  # An interruption that struck just after the function had ended.
                    work.error = error if work.error is None else work.error
                    work.ended = True
            if os.getpid() != self._process:  # The function has forked, and has returned in the child too.
                os._exit(0)
            self._ended.append(work)
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # The loop is closed: the worker has stopped.
                    return

    def _perform(self, work: _Work) -> None:
        work.thread = threading.get_ident()
        try:
            work.result = work.context.run(work.function)
        except BaseException as error:
            work.error = error
        finally:
            with self._lock:
                work.thread = None
        work.ended = True

    def _interrupt(self, work: _Work, reason: type[Exception]) -> None:
        with self._lock:
            if work.thread is not None:
                _raise_in_thread(ctypes.c_ulong(work.thread), ctypes.py_object(reason))

    def _deliver(self) -> None:
        # Cleared first: what ends from now on wakes the loop again.
        self._woken = False
        while self._ended:
            work = self._ended.popleft()
            self._busy -= 1
            if not work.future.done():
                work.future.set_result(None)
