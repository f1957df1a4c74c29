"""How the writer is called later: at the end of a turn of the event loop, or after a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.client import Cancelable
from penstock.model.values import Nanos


class Scheduler(Protocol):
    """The event loop, or a simulated one."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call when this turn has ended."""

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Call in the writer's thread; may be called from any thread."""

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Cancelable:
        """Call when this much time has passed."""


class AsyncioScheduler:
    """The event loop of asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def from_thread(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Cancelable:
        return self._loop.call_later(delay_ns / SECOND_NS, callback)


class Deadline:
    """One timer by the broker's clock, to be set again and again."""

    __slots__ = ("_callback", "_clock", "_scheduler", "_timer", "at")

    def __init__(self, clock: Callable[[], Nanos], scheduler: Scheduler, callback: Callable[[], None]) -> None:
        self.at: Nanos = NEVER_NS
        self._clock = clock
        self._scheduler = scheduler
        self._callback = callback
        self._timer: Cancelable | None = None

    def set(self, at: Nanos) -> None:
        """Call back at this time, and at no other; `NEVER_NS`: not at all."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.at = at
        if at != NEVER_NS:
            self._timer = self._scheduler.after(max(0, at - self._clock()), self._reached)

    def _reached(self) -> None:
        self._timer = None
        self.at = NEVER_NS
        self._callback()
