"""Keeps the leases of all shards that a process owns: one thread renews them with one statement, and another one ends
what could not be renewed for too long. With its lease, the store learns how far a shard lags behind others.

A lease is for liveness: it decides when another broker may try. What is safe does not depend on any clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.errors import StoreError
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.shard import Shard

logger = logging.getLogger(__name__)

_RENEW = 1 / 3  # Of the lease: renewed this often.
_SERVE = 2 / 3  # Of the lease: how long to serve after the last good renewal.
assert _RENEW < _SERVE < 1

_RENEW_ALL = """
UPDATE penstock.shard SET lease_until = clock_timestamp() + make_interval(secs => %s), lag_seconds = lag
FROM unnest(%s::int[], %s::bigint[], %s::float[]) AS held (number, owned, lag)
WHERE id = number AND epoch = owned RETURNING id
"""

Lost = Callable[[BaseException], None]
Lag = Callable[[], float | None]  # None: not known.


def now() -> float:
    """Seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class _Held:
    """A shard that is owned."""

    def __init__(self, shard: Shard, acquired_at: float, on_lost: Lost, lag_seconds: Lag) -> None:
        self.shard = shard
        self.renewed_at = acquired_at
        self.on_lost = on_lost
        self.lag_seconds = lag_seconds


class Leases:
    """For any thread."""

    def __init__(self, connect: Callable[[], Connection], lease_seconds: float) -> None:
        self._connect = connect
        self._lease_seconds = lease_seconds
        self._held: dict[int, _Held] = {}  # By number.
        self._lock = threading.Lock()
        self._over = threading.Event()  # Set: no thread is needed.
        self._over.set()

    def hold(self, shard: Shard, acquired_at: float, on_lost: Lost, lag_seconds: Lag = lambda: None) -> None:
        """Renew the lease of a shard until it is let go or lost. `on_lost` is called once. Both are called in threads
        of this object."""
        with self._lock:
            self._held[shard.number] = _Held(shard, acquired_at, on_lost, lag_seconds)
            if self._over.is_set():
                self._over = threading.Event()
                for work in (self._renew, self._watch):
                    threading.Thread(target=work, args=(self._over,), name="lease", daemon=True).start()

    def let_go(self, number: int) -> None:
        """Stop renewing. The lease runs on in the store."""
        with self._lock:
            self._remove(number)

    def _remove(self, number: int) -> _Held | None:
        held = self._held.pop(number, None)
        if not self._held:
            self._over.set()
        return held

    def _renew(self, over: threading.Event) -> None:
        connection: Connection | None = None
        while not over.wait(_RENEW * self._lease_seconds):
            try:
                connection = connection or self._connect()
                self._renew_all(connection)
            except StoreError as error:
                logger.warning("lease_not_renewed", extra={"reason": str(error)})
                connection = None
        if connection:
            connection.close()

    def _renew_all(self, connection: Connection) -> None:
        began, held = now(), list(self._held.values())
        numbers, epochs = [each.shard.number for each in held], [each.shard.epoch for each in held]
        lags = [each.lag_seconds() for each in held]
        facts = (self._lease_seconds, numbers, epochs, lags)
        renewed = {number for (number,) in connection.rows(_RENEW_ALL, facts)}
        for each in held:
            if each.shard.number in renewed:
                each.renewed_at = began
            else:
                self._lose(each, each.shard.fenced())

    def _watch(self, over: threading.Event) -> None:
        serve_seconds = _SERVE * self._lease_seconds
        while True:
            held = list(self._held.values())
            for each in held:
                if now() >= each.renewed_at + serve_seconds:
                    self._lose(each, StoreError(f"the lease could not be renewed for {serve_seconds:.0f} s"))
            first = min((each.renewed_at for each in held), default=now())
            if over.wait(max(0.01, first + serve_seconds - now())):
                return

    def _lose(self, held: _Held, error: BaseException) -> None:
        with self._lock:
            if self._held.get(held.shard.number) is not held:
                return  # It was let go meanwhile.
            self._remove(held.shard.number)
        held.on_lost(error)
