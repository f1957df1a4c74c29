"""The life of a broker: its shards, its servers, its signals, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from penstock.broker.figures.measures import Measured
from penstock.broker.identities import Identities
from penstock.broker.jwt_identities import jwts_of
from penstock.broker.own_addresses import found_at
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.recovery import Recovered
from penstock.broker.room import Room
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ClientPort
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.cluster.links.link_state import state_alone
from penstock.cluster.workers.lookout import Lookout
from penstock.config.config import Address, Config
from penstock.dialects.etzel.conversation import Etzel
from penstock.errors import ConfigError, StoreError
from penstock.limits import SECOND_NS
from penstock.model.cluster import ClusterState
from penstock.model.settings import QueueSettings
from penstock.server.app import ids_of
from penstock.server.clock import Clock
from penstock.server.exposure import check_exposure
from penstock.server.logs import set_up
from penstock.server.open_files import available, plan
from penstock.server.reloading import Reloading
from penstock.server.servers import Servers
from penstock.server.shard import Shard, until
from penstock.server.standby import Standby
from penstock.shells.handler import Handler
from penstock.shells.tls import Tls
from penstock.storage import open_store
from penstock.storage.directory import DataDirectory

if TYPE_CHECKING:  # Only a broker that uses a store needs its library.
    from penstock.cluster.nodes.member import Member
    from penstock.storage.postgres.store import PostgresStore

logger = logging.getLogger(__name__)

AGAIN = -1  # In place of an exit code: another broker owns the log, and a new one may wait for it.
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_FOLLOW_CLOCK_SECONDS = 5.0


class Broker:
    """One broker from start to stop. One that is `embedded` leaves the signals and the garbage collector to the
    program that it is part of, which may do everything with the secret `owner`."""

    def __init__(
        self,
        config: Config,
        *,
        embedded: bool = False,
        owner: str = "",
        insecure: bool = False,
        lookout: Lookout | None = None,
    ) -> None:
        """`insecure`: other machines may connect without a token. `lookout`: for the other processes that listen on
        the same addresses, if there are some."""
        self._lookout = lookout
        self.reloading: Reloading | None = None  # How to read the settings again when somebody asks for it.
        self._embedded = embedded
        self._insecure = insecure
        self._owner = owner
        self.config, self._backlog = plan(config, available())
        self._address = config.http.address  # Where it listens, once it does.
        self._clock = Clock()
        self._stop = asyncio.Event()
        self._tls = Tls(config.tls) if config.tls.certificate else None
        self._is_asked_to_stop = False
        self._hands_over = False  # Another node is to have the shard.
        self._member: Member | None = None
        self.shards = self._make_shards()
        for shard in self.shards:
            shard.on_end = self._stop.set

    def _make_shards(self) -> list[Shard]:
        return [Shard(self.config, DataDirectory(self.config.data), self._clock, _store_of(self.config))]

    @property
    def served(self) -> list[Shard]:
        """All shards that are served now."""
        return self.shards

    def stop(self) -> None:
        self._is_asked_to_stop = True
        self._stop.set()

    async def run(self, when_listening: Callable[[Address], None] = lambda _: None) -> int:
        """Serve until it is stopped; the exit code. `when_listening` gets the address of the HTTP server."""
        shards = self.shards
        try:
            for shard in shards:
                shard.take()
            if not await self._own_stored():
                return 0
            self.assemble([shard.recover() for shard in shards])
            rounds = await self._start(when_listening)
            await self._stop.wait()
            for each in rounds:
                each.cancel()
            is_written = await self._shut_down()
            is_replaced = self._hands_over or any(shard.is_deposed for shard in shards)
            if is_replaced and not self._is_asked_to_stop:
                return AGAIN
            for shard in shards:
                shard.check_loss()
            return 0 if is_written else 1
        finally:
            if self._member:
                await asyncio.to_thread(self._member.leave)
            for shard in shards:
                shard.let_go()

    def _heed_signals(self) -> None:
        for number in () if self._embedded else _STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    def _heed_reloads(self) -> None:
        """From now on there is something that can have other settings."""
        if self.reloading:
            reload = partial(self.reloading.reload, self.config, self._use_live)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)

    def _use_live(self, config: Config) -> None:
        """Have settings take effect that can change while the broker serves."""
        if bool(config.tls.certificate) != bool(self._tls):
            raise ConfigError("tls.certificate cannot be set or unset while the broker serves: restart it")
        has_tokens = bool(config.auth.tokens) or self._identities.is_guarded_without_settings
        check_exposure(config, has_tokens=has_tokens, insecure=self._insecure)
        if self._tls:
            self._tls.use_settings(config.tls)
        self._identities.use_settings(config.auth.tokens)
        self._quotas.use_settings(config.quota)
        set_up(config.logging.level, config.logging.format)

    async def _own_stored(self) -> bool:
        """Wait until every log in a store is ours. False: the broker is to stop."""
        for shard in self.shards:
            if shard.store and not await self._own(shard, shard.store):
                return False
        return True

    async def _own(self, shard: Shard, store: PostgresStore) -> bool:
        if shard.identity.shards > 1:
            raise StoreError(
                f"the store has {shard.identity.shards} shards, which brokers share: give each of them the address"
                " at which the others reach it, with --advertise HOST:PORT"
            )
        log_durability(store)
        running = asyncio.get_running_loop()

        def on_lost(error: BaseException) -> None:
            running.call_soon_threadsafe(shard.fail, error)

        from penstock.cluster.nodes.member import Member

        store.on_lost = on_lost
        self._member = Member(store, shard.directory)
        standby = Standby(self.config, self._tls.context if self._tls else None)
        self._heed_signals()
        try:
            return await standby.until(self._member.acquire, self._stop)
        finally:
            for number in () if self._embedded else _STOPPING:
                running.remove_signal_handler(number)  # Until it listens, a signal ends the process at once.

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def assemble(self, recovered: list[Recovered]) -> None:
        """Make everything that uses the logs of the shards. What belongs to no shard is counted with the first."""
        config, first = self.config, self.shards[0]
        turns = Turns(lambda: any(not shard.loop.idle for shard in self.served), decide=self._decide_collected)
        self._identities = Identities(config.auth.tokens, self._clock.wall, self._owner, jwts_of(config.auth))
        self._commits = Rounds(AsyncioScheduler(asyncio.get_running_loop()))
        self._room = Room(config.unread_bytes_max)
        self._room.turns = turns
        for shard, each in zip(self.shards, recovered, strict=True):
            shard.assemble(each, turns, self._identities, self._commits, self._room)
        quotas = self._quotas = Quotas(config.quota, self._has_queue)
        handler, writer = self._offer(turns, quotas)
        login, identify = first.services.audit.login, self._identities.of_token
        etzel = Etzel(ids_of(first.identity), QueueSettings())
        self.servers = Servers(
            config,
            handler,
            writer,
            lambda peer: etzel.converse(peer, partial(login, peer, identify)),
            turns,
            self._room,
            quotas,
            self._identities,
        )
        first.services.connections.servers += self.servers.all
        self._process_parts: list[Measured] = [self.servers.http, self.servers.lines, quotas]
        self._process_parts += [self._tls] if self._tls else []
        first.metrics.parts += self._process_parts

    def _decide_collected(self) -> None:
        for shard in self.served:
            shard.loop.decide_collected()

    def _offer(self, _: Turns, __: Quotas) -> tuple[Handler, ClientPort]:
        """What HTTP requests and the commands of lines go to."""
        return self.shards[0].offer(cluster=self.cluster), self.shards[0].loop

    def cluster(self) -> ClusterState:
        """Who serves what, as this process sees it."""
        if self._member is None:
            return state_alone(str(self._address))
        from penstock.cluster.nodes.cluster_state import state_of_nodes

        return state_of_nodes(self._member.known, self._member.name, [self.shards[0].identity.shard])

    def _has_queue(self, name: str) -> bool:
        return self.shards[0].loop.engine.queue(name) is not None

    async def _start(self, when_listening: Callable[[Address], None]) -> list[asyncio.Task[None]]:
        """Serve clients. Returns what is done while they are served."""
        await self._prepare()
        if not self._embedded:
            gc.freeze()  # What was recovered stays for long: the collector need not look at it.
        lookout = self._lookout
        http, lines = await self.servers.listen(self._tls, self._backlog, lookout.door if lookout else None)
        self._address = http
        self._heed_signals()
        self._heed_reloads()
        facts = {"http": str(http), "lines": str(lines), "data": str(self.config.data)}
        logger.info("worker_listening" if lookout else "listening", extra=facts)
        for shard in self.shards:
            shard.start()
        when_listening(http)
        rounds = [self._follow_clock(), *([self._tls.watch()] if self._tls else []), *self._more_rounds()]
        rounds += [lookout.run(self.servers.accept_at)] if lookout else []
        return [asyncio.create_task(each) for each in rounds]

    def _more_rounds(self) -> list[Coroutine[Any, Any, None]]:
        return [self._follow_placement(self._member)] if self._member else []

    async def _prepare(self) -> None:
        """What has to be done before it listens."""
        if not self._embedded:
            check_exposure(self.config, has_tokens=self._identities.is_guarded, insecure=self._insecure)

    async def _follow_clock(self) -> None:
        """Log once if the system clock was set, and let the clocks of the shards adjust to it."""
        is_right = True
        while True:
            await asyncio.sleep(_FOLLOW_CLOCK_SECONDS)
            error = self._clock.follow()
            for shard in self.served:
                shard.follow_clock(was_set=error != 0)
            if abs(error) > SECOND_NS and is_right:
                logger.warning("clock_set", extra={"seconds": error / SECOND_NS})
            is_right = not error

    async def _follow_placement(self, member: Member) -> None:
        """Stop serving when another node is to have the shard."""
        while True:
            await asyncio.sleep(member.look_seconds)
            try:
                node = await asyncio.to_thread(member.placed_elsewhere)
            except StoreError:
                continue  # The lease decides how long to serve.
            if node:
                logger.info("handing_over", extra={"to": node})
                self._hands_over = True
                self._stop.set()
                return

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _shut_down(self) -> bool:
        """False if something cannot be written."""
        logger.info("stopping")
        shards, servers = self.shards, self.servers
        servers.stop()
        await self._when_refusing()
        for shard in shards:
            await shard.begin_stop()
        await until(lambda: servers.is_empty and all(each.is_quiet for each in shards), self.config.stop_seconds)
        servers.close()
        await self._when_finished()
        for shard in shards:
            await shard.close_services()
        return all(await asyncio.gather(*[shard.close() for shard in shards]))

    async def _when_refusing(self) -> None:
        """No new requests are accepted."""

    async def _when_finished(self) -> None:
        """All requests are answered."""


def log_durability(store: PostgresStore) -> None:
    durability = store.durability()
    for warning in durability.warnings():
        logger.warning("store_not_safe", extra={"reason": warning})
    logger.info("store", extra={"store": store.display, "durability": str(durability)})


def _store_of(config: Config) -> PostgresStore | None:
    if not config.store:
        return None
    return open_store(config.store, str(found_at(config)), config.store_lease_seconds)


def tune() -> None:
    """Set the interpreter up for a process that only serves."""
    sys.setswitchinterval(0.0005)  # The thread of the log needs the interpreter soon after each sync.
    gc.set_threshold(50_000, 20, 100)


def serve(reloading: Reloading, *, insecure: bool = False) -> int:
    tune()

    async def run() -> int:
        while (code := await _broker(reloading, insecure=insecure).run()) == AGAIN:
            gc.unfreeze()
        return code

    return uvloop.run(run())


def _broker(reloading: Reloading, *, insecure: bool) -> Broker:
    broker = Broker(reloading.config, insecure=insecure)
    broker.reloading = reloading
    return broker
