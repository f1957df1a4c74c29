"""The life of a broker: recovery, listening, failure and revival, and the order in which everything stops."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from penstock.dialects.etzel.codec import refusal
from penstock.dialects.etzel.conversation import Etzel
from penstock.errors import (
    ConfigError,
    DataDirectoryError,
    DeposedError,
    InUseError,
    LeaseHeldError,
    PenstockError,
    StoreError,
)
from penstock.limits import SECOND_NS
from penstock.model.settings import QueueSettings
from penstock.server.app import Application, ids_of
from penstock.server.clock import Clock
from penstock.server.config import Address, Config
from penstock.server.descriptors import available, plan
from penstock.server.exposure import check_exposure
from penstock.server.identities import Identities
from penstock.server.jwt_identities import jwts_of
from penstock.server.listening import listening_process
from penstock.server.metrics import Metrics
from penstock.server.quotas.quotas import Quotas
from penstock.server.recovery import Recovered, recover
from penstock.server.services.assembly import assemble
from penstock.server.services.backups import Backups
from penstock.server.services.history_writes import HistoryWrites
from penstock.server.services.snapshots import Snapshots
from penstock.server.shells.http_server import HttpServer
from penstock.server.shells.lines import LineServer
from penstock.server.shells.secure import listen as listen_securely
from penstock.server.shells.turns import Turns
from penstock.server.shells.unread import Unread
from penstock.server.standby import Standby
from penstock.server.tls import Tls
from penstock.server.writer.loop import Loop
from penstock.server.writer.scheduler import AsyncioScheduler
from penstock.storage import open_store
from penstock.storage.directory import DataDirectory, Identity

if TYPE_CHECKING:
    from penstock.storage.postgres.store import PostgresStore

logger = logging.getLogger(__name__)

AGAIN = -1  # In place of an exit code: another broker owns the log, and a new one may wait for it.
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_REVIVE_SECONDS = 1.0
_FOLLOW_CLOCK_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_AFTER_LOSS = (
    "The broker has stopped; what it acknowledged in its last second may be lost. Put the directory back, make sure"
    " that nothing removes files from it, and start the broker again"
)


class Broker:
    """One broker from start to stop. One that is `embedded` leaves the signals and the garbage collector to the
    program that it is part of, which may do everything with the secret `owner`."""

    def __init__(self, config: Config, *, embedded: bool = False, owner: str = "", insecure: bool = False) -> None:
        """`insecure`: other machines may connect without a token."""
        self._embedded = embedded
        self._insecure = insecure
        self._owner = owner
        self.config, self._backlog = plan(config, available())
        self.directory = DataDirectory(config.data)
        self._clock = Clock()
        self._stop = asyncio.Event()
        self._tls = Tls(config.tls) if config.tls.certificate else None
        self._reviving: asyncio.Task[None] | None = None
        self._lost: str | None = None  # Why the data directory cannot be used any more.
        self._is_asked_to_stop = False
        self._is_deposed = False  # Another broker owns the log, or has owned it since.
        self.store = (
            open_store(config.store, str(config.http.address), config.store_lease_seconds) if config.store else None
        )

    def stop(self) -> None:
        self._is_asked_to_stop = True
        self._stop.set()

    async def run(self, when_listening: Callable[[Address], None] = lambda _: None) -> int:
        """Serve until it is stopped; the exit code. `when_listening` gets the address of the HTTP server."""
        identity = self.directory.open(self.store.identity() if self.store else None)
        try:
            if self.store and not await self._own(self.store):
                return 0
            self._assemble(identity, recover(self.directory, self.config, self.store))
            if not self._embedded:
                check_exposure(self.config, has_tokens=self.identities.is_guarded, insecure=self._insecure)
                gc.freeze()  # What was recovered stays for long: the collector need not look at it.
            listeners = [
                await self._listen(self.http, self.config.http.address),
                await self._listen(self.lines, self.config.lines.address),
            ]
            self._heed_signals()
            http, lines = (Address(*each.sockets[0].getsockname()[:2]) for each in listeners)
            logger.info("listening", extra={"http": str(http), "lines": str(lines), "data": str(self.config.data)})
            self._start_services()
            when_listening(http)
            rounds = [asyncio.create_task(self._follow_clock()), asyncio.create_task(self._watch_directory())]
            rounds += [asyncio.create_task(self._tls.watch())] if self._tls else []
            await self._stop.wait()
            for each in rounds:
                each.cancel()
            code = await self._shut_down(listeners)
            if self._is_deposed and not self._is_asked_to_stop:
                return AGAIN
            if self._lost:
                raise DataDirectoryError(f"{self._lost}. {_AFTER_LOSS}")
            return code
        finally:
            if self.store:
                self.store.drop()
            self.directory.close()

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
            running.call_soon_threadsafe(self._on_lease_lost, error)

        store.on_lost = on_lost
        standby = Standby(self.config, self._tls.context if self._tls else None)
        self._heed_signals()
        try:
            return await standby.until(partial(store.acquire, self.directory), self._stop)
        finally:
            for number in () if self._embedded else _STOPPING:
                running.remove_signal_handler(number)  # Until it listens, a signal ends the process at once.

    def _on_lease_lost(self, error: BaseException) -> None:
        if hasattr(self, "loop") and not self.loop.failure:
            self.loop.fail(error)

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def _assemble(self, identity: Identity, recovered: Recovered) -> None:
        config, scheduler = self.config, AsyncioScheduler(asyncio.get_running_loop())
        self.loop = Loop(recovered.engine, recovered.log, self._clock, scheduler)
        self.loop.on_failure = self._on_failure
        self.metrics = Metrics(self.loop)
        self.loop.commit.on_seconds = self.metrics.commit_seconds.observe
        turns, unread = Turns(lambda: not self.loop.idle), Unread(config.unread_bytes_max)
        self.loop.on_commit.append(turns.after_commit)
        self.quotas = Quotas(config.quota, lambda name: self.loop.engine.queue(name) is not None)
        self.history_writes = HistoryWrites(self.loop, recovered.history)
        backups = partial(Backups, directory=self.directory, identity=identity, history=self.history_writes)
        self.identities = Identities(config.auth.tokens, self._clock, self._owner, jwts_of(config.auth))
        self.services = assemble(self.loop, config, partial(ids_of, identity), turns, backups, self.identities)
        self.loop.gate.auditor = self.services.audit
        self.snapshots = Snapshots(
            self.loop, config.log, self.history_writes, is_pinned=lambda: self.services.backups.pinned
        )
        application = Application(config, identity, self.loop, self.metrics, self.services, self.identities)
        self.http = HttpServer(application, config.http, turns, unread, self.quotas)
        self.lines = self._line_server(identity, turns, unread)
        self.services.connections.servers += [self.http, self.lines]
        self.identities.on_change += [self.http.expel, self.lines.expel]
        self.metrics.parts += [*self.services, self.history_writes, self.snapshots, self.http, self.lines]
        self.metrics.parts += [self.quotas, *([self._tls] if self._tls else [])]

    def _line_server(self, identity: Identity, turns: Turns, unread: Unread) -> LineServer:
        etzel = Etzel(ids_of(identity), QueueSettings())
        identities = self.identities
        return LineServer(
            self.loop,
            self.config.lines,
            lambda peer: etzel.converse(peer, partial(self.services.audit.login, peer, identities.of_token)),
            refusal,
            turns,
            unread,
            self.quotas,
            identities.of_certificate,
        )

    async def _listen(self, server: HttpServer | LineServer, address: Address) -> asyncio.Server:
        try:
            if self._tls:
                return await listen_securely(server, self._tls, *address, self._backlog)
            return await server.listen(*address, self._backlog)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InUseError(
                    f"cannot listen on {address}: {listening_process(address.port)} listens there."
                    " Stop it, or choose another address: --http HOST:PORT, --lines HOST:PORT"
                ) from None
            raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None

    # ── While it runs ───────────────────────────────────────────────────────────────────────────────────────

    def _start_services(self) -> None:
        for service in (*self.services, self.history_writes, self.snapshots):
            service.start()

    async def _watch_directory(self) -> None:
        """Stop if the directory is no longer ours: acknowledged messages could be lost, and another broker's files
        overwritten."""
        while not (lost := self.directory.lost()):  # noqa: ASYNC110 - The file system sends no such event.
            await asyncio.sleep(_WATCH_SECONDS)
        self._lost = lost
        logger.critical("data_directory_lost", extra={"reason": lost})
        if not self.loop.failure:
            self.loop.fail(DataDirectoryError(lost))
        self._stop.set()

    async def _follow_clock(self) -> None:
        """Log once if the system clock was set, and keep timers right while our clock adjusts to it."""
        is_right = True
        while True:
            await asyncio.sleep(_FOLLOW_CLOCK_SECONDS)
            error = self._clock.follow()
            if error:
                self.loop.rearm()
            if abs(error) > SECOND_NS and is_right:
                logger.warning("clock_set", extra={"seconds": error / SECOND_NS})
            is_right = not error

    def _on_failure(self, _: BaseException) -> None:
        self.snapshots.cancel()
        if self._lost or (self._reviving and not self._reviving.done()):
            return
        self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """As soon as the disk can be written: cut off what was not acknowledged, replay the rest, and continue."""
        while self.loop.failure:
            await asyncio.sleep(_REVIVE_SECONDS)
            if self.directory.lost():
                return
            try:
                await self.history_writes.close()
                await asyncio.to_thread(self.loop.log.abandon)
                if self.store:
                    await asyncio.to_thread(self.store.acquire, self.directory)
                recovered = await asyncio.to_thread(recover, self.directory, self.config, self.store)
            except (DeposedError, LeaseHeldError) as error:
                logger.warning("deposed", extra={"reason": str(error)})
                self._is_deposed = True
                self._stop.set()
                return
            except (OSError, PenstockError) as error:
                self.loop.commit.failure = f"it cannot be reopened: {error}"
                logger.error("revival_failed", extra={"reason": str(error)})
                continue
            self.loop.revive(recovered.engine, recovered.log)
            self.history_writes.history = recovered.history
            self._start_services()
            logger.warning("revived", extra={"offset": recovered.log.end.offset})

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _shut_down(self, listeners: list[asyncio.Server]) -> int:
        logger.info("stopping")
        for listener in listeners:
            listener.close()
        self.http.stop()
        self.lines.stop()
        stopping = [asyncio.create_task(service.stop()) for service in self.services]
        await asyncio.sleep(0)
        self.loop.release_waiters()
        await self._until(
            lambda: not (self.http.connections or self.lines.connections) and all(each.done() for each in stopping),
            self.config.stop_seconds,
        )
        self.http.close()
        self.lines.close()
        for each, service in zip(stopping, self.services, strict=True):
            each.cancel()
            await service.close()
        await self._until(lambda: self.loop.idle or bool(self.loop.failure), self.config.stop_seconds)
        if self._reviving:
            self._reviving.cancel()
        log = self.loop.log
        failed = not await self._write_everything()
        await self.snapshots.close()
        await self.history_writes.close()
        log.close()
        if self.store:
            await asyncio.to_thread(self._release, self.store)
        logger.info("stopped", extra={"offset": log.end.offset})
        return 1 if failed else 0

    def _release(self, store: PostgresStore) -> None:
        try:
            store.release()
        except StoreError as error:
            logger.warning("shard_not_released", extra={"reason": str(error)})

    async def _write_everything(self) -> bool:
        """Write the Object History and the last snapshot. False if they, or the log, cannot be written."""
        if self.loop.failure or not self.loop.idle:
            return False
        await self.history_writes.stop()
        if self.history_writes.failure:
            return False
        await self.snapshots.stop()
        return True

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        running = asyncio.get_running_loop()
        deadline = running.time() + seconds
        while not condition() and running.time() < deadline:  # noqa: ASYNC110 - Once, at the very end.
            await asyncio.sleep(0.01)


def serve(config: Config, *, insecure: bool = False) -> int:
    sys.setswitchinterval(0.0005)  # The thread of the log needs the interpreter soon after each sync.
    gc.set_threshold(50_000, 20, 100)

    async def run() -> int:
        while (code := await Broker(config, insecure=insecure).run()) == AGAIN:
            gc.unfreeze()
        return code

    return uvloop.run(run())
