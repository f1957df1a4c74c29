"""Leases of jobs that take long are extended, and lost ones are noticed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from penstock.client.asynchronous import AsyncClient
from penstock.client.errors import Conflict, NotFound
from penstock.worker.runtime.held import Held, State

logger = logging.getLogger("penstock.worker")

_EXTENSIONS_PER_LEASE = 3
_LOOK_SECONDS_MAX = 1.0


class Leases:
    """Watches over all jobs that a worker holds."""

    def __init__(
        self, client: AsyncClient, held: Collection[Held], shortest: float, jobs: asyncio.AbstractEventLoop
    ) -> None:
        self._client = client
        self._held = held
        self._jobs = jobs  # The event loop that they run on, which is not the one of this.
        self._pause = min(_LOOK_SECONDS_MAX, shortest / _EXTENSIONS_PER_LEASE / 4)
        self._loop = asyncio.get_running_loop()
        self._extending: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            now = time.monotonic()
            for held in [held for held in list(self._held) if self._is_due(held, now)]:
                self._renew(held, now)

    @staticmethod
    def _is_due(held: Held, now: float) -> bool:
        return not held.lost and held.until - now <= held.lease * (1 - 1 / _EXTENSIONS_PER_LEASE)

    def _renew(self, held: Held, now: float) -> None:
        if held.until <= now:
            self._lose(held, "its lease ran out, because the broker could not be reached")
        elif not held.extending:
            held.extending = True
            task = self._loop.create_task(self._extend(held))
            self._extending.add(task)
            task.add_done_callback(self._extending.discard)

    async def _extend(self, held: Held) -> None:
        asked_at = time.monotonic()
        try:
            await self._client.extend(held.message, held.lease)
            held.until = asked_at + held.lease
        except (Conflict, NotFound):
            if held.state in (State.WAITING, State.RUNNING):  # One that is being settled may be done with by now.
                self._lose(held, "the broker has taken its lease away")
        except Exception as error:
            logger.debug("lease not extended", extra={"job": held.message.id, "error": str(error)})
        finally:
            held.extending = False

    def _lose(self, held: Held, why: str) -> None:
        self._jobs.call_soon_threadsafe(held.stop, held.lose(why))
