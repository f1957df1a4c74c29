"""The life of a broker: its shard, its servers, its signals, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from penstock.dialects.etzel.conversation import Etzel
from penstock.errors import StoreError
from penstock.limits import SECOND_NS
from penstock.model.settings import QueueSettings
from penstock.server.app import ids_of
from penstock.server.clock import Clock
from penstock.server.config import Address, Config
from penstock.server.descriptors import available, plan
from penstock.server.exposure import check_exposure
from penstock.server.identities import Identities
from penstock.server.jwt_identities import jwts_of
from penstock.server.quotas.quotas import Quotas
from penstock.server.recovery import Recovered
from penstock.server.servers import Servers
from penstock.server.shard import Shard, until
from penstock.server.shells.turns import Turns
from penstock.server.standby import Standby
from penstock.server.tls import Tls
from penstock.storage import open_store
from penstock.storage.directory import DataDirectory

if TYPE_CHECKING:
    from penstock.storage.postgres.store import PostgresStore

logger = logging.getLogger(__name__)

AGAIN = -1  # In place of an exit code: another broker owns the log, and a new one may wait for it.
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_FOLLOW_CLOCK_SECONDS = 5.0


class Broker:
    """One broker from start to stop. One that is `embedded` leaves the signals and the garbage collector to the
    program that it is part of, which may do everything with the secret `owner`."""

    def __init__(self, config: Config, *, embedded: bool = False, owner: str = "", insecure: bool = False) -> None:
        """`insecure`: other machines may connect without a token."""
        self._embedded = embedded
        self._insecure = insecure
        self._owner = owner
        self.config, self._backlog = plan(config, available())
        self._clock = Clock()
        self._stop = asyncio.Event()
        self._tls = Tls(config.tls) if config.tls.certificate else None
        self._is_asked_to_stop = False
        self.shard = Shard(self.config, DataDirectory(config.data), self._clock, _store_of(config))
        self.shard.on_end = self._stop.set

    def stop(self) -> None:
        self._is_asked_to_stop = True
        self._stop.set()

    async def run(self, when_listening: Callable[[Address], None] = lambda _: None) -> int:
        """Serve until it is stopped; the exit code. `when_listening` gets the address of the HTTP server."""
        shard = self.shard
        shard.take()
        if shard.store and shard.identity.shards > 1:
            raise StoreError(
                f"the store has {shard.identity.shards} shards, and a broker serves one; use another store"
            )
        try:
            if shard.store and not await self._own(shard.store):
                return 0
            self.assemble(shard.recover())
            rounds = await self._start(when_listening)
            await self._stop.wait()
            for each in rounds:
                each.cancel()
            is_written = await self._shut_down()
            if shard.is_deposed and not self._is_asked_to_stop:
                return AGAIN
            shard.check_loss()
            return 0 if is_written else 1
        finally:
            shard.let_go()

    def _heed_signals(self) -> None:
        for number in () if self._embedded else _STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _own(self, store: PostgresStore) -> bool:
        """Wait until the log in the store is ours. False: the broker is to stop."""
        for warning in store.durability().warnings():
            logger.warning("store_not_safe", extra={"reason": warning})
        logger.info("store", extra={"store": store.display, "durability": str(store.durability())})
        running = asyncio.get_running_loop()

        def on_lost(error: BaseException) -> None:
            running.call_soon_threadsafe(self.shard.fail, error)

        store.on_lost = on_lost
        standby = Standby(self.config, self._tls.context if self._tls else None)
        self._heed_signals()
        try:
            return await standby.until(partial(store.acquire, self.shard.directory), self._stop)
        finally:
            for number in () if self._embedded else _STOPPING:
                running.remove_signal_handler(number)  # Until it listens, a signal ends the process at once.

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def assemble(self, recovered: Recovered) -> None:
        config, shard = self.config, self.shard
        turns = Turns(lambda: not shard.loop.idle)
        self._identities = Identities(config.auth.tokens, self._clock, self._owner, jwts_of(config.auth))
        shard.assemble(recovered, turns, self._identities)
        quotas = Quotas(config.quota, lambda name: shard.loop.engine.queue(name) is not None)
        login, identify = shard.services.audit.login, self._identities.of_token
        etzel = Etzel(ids_of(shard.identity), QueueSettings())
        self.servers = Servers(
            config,
            shard.application,
            shard.loop,
            lambda peer: etzel.converse(peer, partial(login, peer, identify)),
            turns,
            quotas,
            self._identities,
        )
        shard.services.connections.servers += self.servers.all
        shard.metrics.parts += [self.servers.http, self.servers.lines, quotas, *([self._tls] if self._tls else [])]

    async def _start(self, when_listening: Callable[[Address], None]) -> list[asyncio.Task[None]]:
        """Serve clients. Returns what is done while they are served."""
        if not self._embedded:
            check_exposure(self.config, has_tokens=self._identities.is_guarded, insecure=self._insecure)
            gc.freeze()  # What was recovered stays for long: the collector need not look at it.
        http, lines = await self.servers.listen(self._tls, self._backlog)
        self._heed_signals()
        logger.info("listening", extra={"http": str(http), "lines": str(lines), "data": str(self.config.data)})
        self.shard.start()
        when_listening(http)
        rounds = [self._follow_clock(), *([self._tls.watch()] if self._tls else [])]
        return [asyncio.create_task(each) for each in rounds]

    async def _follow_clock(self) -> None:
        """Log once if the system clock was set, and keep timers right while our clock adjusts to it."""
        is_right = True
        while True:
            await asyncio.sleep(_FOLLOW_CLOCK_SECONDS)
            error = self._clock.follow()
            if error:
                self.shard.loop.rearm()
            if abs(error) > SECOND_NS and is_right:
                logger.warning("clock_set", extra={"seconds": error / SECOND_NS})
            is_right = not error

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _shut_down(self) -> bool:
        """False if something cannot be written."""
        logger.info("stopping")
        shard, servers = self.shard, self.servers
        servers.stop()
        await shard.begin_stop()
        await until(lambda: servers.is_empty and shard.is_quiet, self.config.stop_seconds)
        servers.close()
        await shard.close_services()
        return await shard.close()


def _store_of(config: Config) -> PostgresStore | None:
    if not config.store:
        return None
    return open_store(config.store, str(config.http.address), config.store_lease_seconds)


def serve(config: Config, *, insecure: bool = False) -> int:
    sys.setswitchinterval(0.0005)  # The thread of the log needs the interpreter soon after each sync.
    gc.set_threshold(50_000, 20, 100)

    async def run() -> int:
        while (code := await Broker(config, insecure=insecure).run()) == AGAIN:
            gc.unfreeze()
        return code

    return uvloop.run(run())
