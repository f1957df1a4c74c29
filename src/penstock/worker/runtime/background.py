"""The loops that a worker needs for as long as it lives: one that ends by an error is logged, and begins again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.worker.errors import described

logger = logging.getLogger("penstock.worker")

_PAUSE_SECONDS = 1.0


class Background:
    """Loops that run until they have done their work, or until `end`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    def keep(self, name: str, run: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[None]:
        """Run a loop."""
        task = asyncio.get_running_loop().create_task(self._kept(name, run))
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        """Cancel them all, and wait for them."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _kept(self, name: str, run: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        while True:
            try:
                await run()
                return
            except asyncio.CancelledError as error:
                if self._ending:
                    raise
                logger.warning("loop of the worker ended", extra={"loop": name, "error": described(error)})
            except Exception:
                logger.exception("loop of the worker ended", extra={"loop": name})
            await asyncio.sleep(_PAUSE_SECONDS)
