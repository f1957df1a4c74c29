"""What looks after a worker from a thread of its own, because a function may block the event loop.

It extends leases, says by what the loop is blocked, and ends a process that does not stop in time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Collection

from penstock.worker.app import App
from penstock.worker.runtime.background import Background
from penstock.worker.runtime.held import Held
from penstock.worker.runtime.leases import Leases

logger = logging.getLogger("penstock.worker")

_LOOK_SECONDS = 0.5
_LOOKS_BLOCKED = 4  # So many looks in a row, and nothing has run on the event loop. A machine that stops counts once.
_FRAMES_SHOWN = 5


class Watch:
    """Made on the event loop of a worker, for the jobs that it holds."""

    def __init__(self, app: App, held: Collection[Held], shortest_lease: float) -> None:
        self._app = app
        self._held = held
        self._shortest_lease = shortest_lease
        self._watched = asyncio.get_running_loop()
        self._watched_thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = threading.Event()
        self._ended = asyncio.Event()  # Of the other loop.
        self._gone = asyncio.Event()
        self._missed = 0  # Looks since the last sign of life.
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def exit_within(self, seconds: float) -> None:
        """End the process after this time, if it has not ended by itself. Signal handlers may call this."""
        self._deadline = time.monotonic() + seconds

    async def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            await self._gone.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        finally:
            self._watched.call_soon_threadsafe(self._gone.set)

    async def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        background = Background()
        leases = Leases(self._app.broker.client(), self._held, self._shortest_lease, self._watched)
        background.keep("leases", leases.keep)
        background.keep("watch", self._look)
        await self._ended.wait()
        await background.end()
        await self._app.broker.aclose()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._deadline is not None and time.monotonic() > self._deadline:
                logger.warning("the event loop is blocked; exiting", extra={"at": self._where()})
                os._exit(0)
            if self._missed == _LOOKS_BLOCKED:
                logger.warning("the event loop is blocked by a function that is async", extra={"at": self._where()})
            if self._missed == 0:
                self._watched.call_soon_threadsafe(self._sign_of_life)
            self._missed += 1

    def _sign_of_life(self) -> None:
        if self._missed > _LOOKS_BLOCKED:
            logger.warning("the event loop runs again", extra={"seconds": self._missed * _LOOK_SECONDS})
        self._missed = 0

    def _where(self) -> list[str]:
        """What the event loop is at, the innermost call last."""
        frame = sys._current_frames().get(self._watched_thread)  # noqa: SLF001 - It has no other name.
        return [
            f"{each.filename}:{each.lineno} in {each.name}"
            for each in traceback.extract_stack(frame)[-_FRAMES_SHOWN:]
        ]
