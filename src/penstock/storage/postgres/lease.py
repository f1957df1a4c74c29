"""Keeps the lease of a shard: one thread renews it, and another one ends everything when that fails for too long.

The lease is for liveness: it decides when another broker may try. What is safe does not depend on any clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.errors import FencedError, StoreError
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.shard import Shard

logger = logging.getLogger(__name__)

_RENEW = 1 / 3  # Of the lease: renewed this often.
_SERVE = 2 / 3  # Of the lease: how long to serve after the last good renewal.
assert _RENEW < _SERVE < 1

Lost = Callable[[BaseException], None]


def now() -> float:
    """Seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Lease:
    """The lease of an owner, from its acquisition until it is stopped or lost."""

    def __init__(self, connect: Callable[[], Connection], shard: Shard, acquired_at: float, on_lost: Lost) -> None:
        """`on_lost` is called once, in a thread of the lease."""
        self._connect = connect
        self._shard = shard
        self._on_lost = on_lost
        self._renewed_at = acquired_at
        self._renew_seconds, self._serve_seconds = _RENEW * shard.lease_seconds, _SERVE * shard.lease_seconds
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=target, name=f"lease-{target.__name__}", daemon=True)
            for target in (self._renew, self._watch)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()

    def _renew(self) -> None:
        connection: Connection | None = None
        while not self._over.wait(self._renew_seconds):
            began = now()
            try:
                connection = connection or self._connect()
                self._shard.on(connection).renew()
                self._renewed_at = began
            except FencedError as error:
                self._lose(error)
            except StoreError as error:
                logger.warning("lease_not_renewed", extra={"reason": str(error)})
                connection = None
        if connection:
            connection.close()

    def _watch(self) -> None:
        while not self._over.wait(max(0.01, self._renewed_at + self._serve_seconds - now())):
            if now() >= self._renewed_at + self._serve_seconds:
                self._lose(StoreError(f"the lease could not be renewed for {self._serve_seconds:.0f} s"))

    def _lose(self, error: BaseException) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
        self._on_lost(error)
