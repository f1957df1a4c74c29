"""Functions of an app that run when a worker starts and stops, and around every job."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

from penstock.worker.errors import TaskError

F = TypeVar("F", bound=Callable[..., Any])

Event = Literal["start", "stop", "before", "after", "failure"]

logger = logging.getLogger("penstock.worker")


class Functions:
    """Functions in the order in which they were added. Those that are not `async` block the event loop: be quick."""

    def __init__(self) -> None:
        self._functions: list[Callable[..., Any]] = []

    def add(self, function: F) -> F:
        self._functions.append(function)
        return function

    def __bool__(self) -> bool:
        return bool(self._functions)

    async def call(self, *args: Any) -> None:
        """Call them all. The first error ends it."""
        for function in self._functions:
            result = function(*args)
            if inspect.isawaitable(result):
                await result

    async def notify(self, *args: Any) -> None:
        """Call them all. An error is logged, and changes nothing."""
        for function in self._functions:
            try:
                result = function(*args)
                if inspect.isawaitable(result):
                    await result
            except BaseException:  # SystemExit too: what follows a hook is not its business.
                logger.exception("hook failed", extra={"hook": getattr(function, "__name__", repr(function))})


class Hooks:
    """The functions of an app, by the event that they are for."""

    def __init__(self) -> None:
        self.start, self.stop = Functions(), Functions()
        self.before, self.after, self.failure = Functions(), Functions(), Functions()

    def of(self, event: Event) -> Functions:
        if event not in get_args(Event):
            raise TaskError(f"an app has no event {event}; it has {', '.join(get_args(Event))}")
        functions: Functions = getattr(self, event)
        return functions
