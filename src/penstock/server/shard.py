"""The life of a shard: its data directory, recovery, services, failure and revival, and how it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.broker.identities import Identities
from penstock.broker.metrics import Metrics
from penstock.broker.recovery import Home, Recovered, recover
from penstock.broker.room import Room
from penstock.broker.services.backups import Backups
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.loans import connect_loans
from penstock.broker.services.snapshots import Snapshots
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import ClientPort
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.cluster.links.link_state import state_alone
from penstock.cluster.links.relay import Relay
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.cluster.routing.ports import OwnPort
from penstock.config.config import Config, LogConfig
from penstock.dialects.native.event_text import EventWriter
from penstock.dialects.native.spark.arrow import staged_rows
from penstock.errors import DataDirectoryError, DeposedError, LeaseHeldError, PenstockError, StoreError
from penstock.limits import (
    CLOCK_OFF_SECONDS,
    CLOCK_SLOWNESS,
    LOG_PER_SNAPSHOT_BYTE,
    NEVER_NS,
    SECOND_NS,
    STORED_LOG_PER_SNAPSHOT_BYTE,
    STORED_SNAPSHOT_BYTES,
)
from penstock.model.cluster import ClusterState
from penstock.model.metrics import ReadMetrics
from penstock.server.app import Application
from penstock.server.assembly import Forms, assemble
from penstock.server.clock import Clock
from penstock.storage.directory import DataDirectory, Identity

if TYPE_CHECKING:
    from penstock.storage.postgres.store import PostgresStore

logger = logging.getLogger(__name__)

FORMS = Forms(EventWriter, staged_rows)
_REVIVE_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_AFTER_LOSS = (
    "The broker has stopped; what it acknowledged in its last second may be lost. Put the directory back, make sure"
    " that nothing removes files from it, and start the broker again"
)


class Shard:
    """One engine and one log, with everything that keeps and serves them.

    take ──► recover, assemble, offer ──► start ──► begin_stop ──► close_services ──► close ──► let_go
    """

    loop: Loop

    def __init__(
        self,
        config: Config,
        directory: DataDirectory,
        clock: Clock,
        store: PostgresStore | None = None,
        home: Home | None = None,
    ) -> None:
        """`store`: where the log is, if it is not in the directory. `home`: the shard of a queue, if there are
        several."""
        self._config = config
        self._clock = clock.another()  # Not that of other shards: it goes on where the log of this one ends.
        self.directory = directory
        self.store = store
        self._home = home
        self._application: Application | None = None
        self.on_end: Callable[[], None] = lambda: None  # Called when the shard cannot be served any more.
        self.is_deposed = False  # Another process owns the log, or has owned it since.
        self._failed_epoch = 0  # In which the log has failed, if it is in a store.
        self._lost: str | None = None  # Why the data directory cannot be used any more.
        self._reviving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping: list[asyncio.Task[None]] = []

    @property
    def _log_config(self) -> LogConfig:
        """Whoever takes over a log in a store replays what comes after its newest snapshot, and clients wait."""
        log = self._config.log.of_shard(self.identity.shard, self.identity.shards)
        return replace(log, snapshot_bytes=min(log.snapshot_bytes, STORED_SNAPSHOT_BYTES)) if self.store else log

    @property
    def has_tokens(self) -> bool:
        """Whether it is the one that logs the tokens of the store."""
        return self.identity.shard == ADMINISTRATION

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def take(self) -> None:
        """Take the directory for this process."""
        self.identity: Identity = self.directory.open(self.store.identity() if self.store else None)

    def recover(self) -> Recovered:
        return recover(self.directory, self._config, self.store, self._home)

    def assemble(
        self, recovered: Recovered, turns: Turns, identities: Identities, rounds: Rounds, room: Room
    ) -> None:
        """Make everything that uses the log."""
        config, identity = replace(self._config, log=self._log_config), self.identity
        scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self._go_on(recovered)
        wall = self._clock.wall
        self.loop = Loop(recovered.engine, recovered.log, self._clock, scheduler, rounds, wall, room)
        self.loop.on_failure = self._on_failure
        self.loop.doubt_ns = round(config.ask_again_seconds * SECOND_NS)
        self.loop.on_commit.append(turns.after_commit)
        self.metrics = Metrics(self.loop)
        self.loop.commit.on_seconds = self.metrics.commit_seconds.observe
        self.history_writes = HistoryWrites(self.loop, recovered.history)
        backups = partial(
            Backups,
            directory=self.directory,
            identity=identity,
            history=self.history_writes,
            is_stored=self.store is not None,
        )
        self.services = assemble(
            self.loop,
            config,
            identity,
            turns,
            backups,
            identities,
            FORMS,
            has_tokens=self.has_tokens,
            commit_seconds=self.metrics.commit_seconds,
        )
        self.loop.ask = self.services.questions.take
        self.services.questions.answers[ReadMetrics] = self.metrics.read
        self.loop.gate.auditor = self.services.audit
        self.snapshots = Snapshots(
            self.loop,
            config.log,
            self.history_writes,
            is_pinned=lambda: self.services.backups.pinned,
            kept_from=self.services.courier_source.kept_from,
            log_per_byte=STORED_LOG_PER_SNAPSHOT_BYTE if self.store else LOG_PER_SNAPSHOT_BYTE,
        )
        self.metrics.parts += [*self.services, self.history_writes, self.snapshots]
        self._identities = identities

    def offer(
        self,
        clients: ClientPort | None = None,
        relay: Relay | None = None,
        cluster: Callable[[], ClusterState] = state_alone,
    ) -> Application:
        """Make the application of the process, with what it needs if there are other shards."""
        facts = (self._config, self.identity, self.loop, self.services, self._identities)
        self._application = Application(*facts, clients, relay, cluster)
        return self._application

    def port(self) -> OwnPort:
        """This shard, for the others and for clients of all of them."""
        services = self.services
        return OwnPort(self.loop, services.courier_source, services.recalls, services.borrower, services.lender)

    def connect(self, shards: ShardMap, ports: Sequence[ClientPort], clients: ClientPort) -> None:
        """Let it send to the other shards: `ports` has one for each shard, in their order; `clients` goes to all."""
        number, services = self.identity.shard, self.services
        services.redrives.all_queues = clients
        services.courier_source.connect(number, shards)
        services.courier.connect({each: port for each, port in enumerate(ports) if each != number})
        services.staged_batches.spread(shards.of_name, ports)
        connect_loans(services.borrower, services.lender, services.courier, number, shards, ports)
        if self.store:
            self.store.lag_seconds = services.courier.lag_seconds

    def start(self) -> None:
        self._start_services()
        self._watching = asyncio.create_task(self._watch_directory())

    def _start_services(self) -> None:
        for service in (*self.services, self.history_writes, self.snapshots):
            service.start()

    def _go_on(self, recovered: Recovered) -> None:
        """Let time go on where the log ends, even if the clock of this machine is behind it."""
        ahead = self._clock.go_on_after(recovered.engine.time)
        if ahead > CLOCK_OFF_SECONDS * SECOND_NS:
            facts = {"shard": self.identity.shard, "seconds": ahead / SECOND_NS}
            logger.warning("clock_behind_log", extra=facts | {"agrees_in": ahead * CLOCK_SLOWNESS / SECOND_NS})

    # ── While it runs ───────────────────────────────────────────────────────────────────────────────────────

    def follow_clock(self, *, was_set: bool) -> None:
        """Keep timers right while the clock adjusts to that of the machine."""
        if self._clock.follow() or was_set:
            self.loop.rearm()
        if was_set:
            self.services.token_changes.wake()

    async def _watch_directory(self) -> None:
        """End if the directory is no longer ours: acknowledged messages could be lost, and another broker's files
        overwritten."""
        while not (lost := self.directory.lost()):  # noqa: ASYNC110 - The file system sends no such event.
            await asyncio.sleep(_WATCH_SECONDS)
        self._lost = lost
        logger.critical("data_directory_lost", extra={"reason": lost})
        self.fail(DataDirectoryError(lost))
        self.on_end()

    def fail(self, error: BaseException) -> None:
        """The log must not be written. Nothing happens if it has failed already, or is not recovered yet."""
        if hasattr(self, "loop") and not self.loop.failure:
            self.loop.fail(error)

    def _on_failure(self, _: BaseException) -> None:
        self.snapshots.cancel()
        self._failed_epoch = self.store.epoch if self.store else 0
        if self._lost:
            self.loop.end_doubt()
        if self._lost or (self._reviving and not self._reviving.done()):
            return
        self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """As soon as the disk can be written: cut off what was not acknowledged, replay the rest, and continue."""
        while self.loop.failure:
            await asyncio.sleep(_REVIVE_SECONDS)
            if self.directory.lost():
                self.loop.end_doubt()
                return
            try:
                await self._reopen()
            except (DeposedError, LeaseHeldError) as error:
                logger.warning("deposed", extra={"reason": str(error)})
                self.is_deposed = True
                await self._settle_doubt()
                self.on_end()
                return
            except (OSError, PenstockError) as error:
                self.loop.commit.failure = f"it cannot be reopened: {error}"
                logger.error("revival_failed", extra={"reason": str(error)})

    async def _settle_doubt(self) -> None:
        """The next owner has what was committed in the last epoch, and nothing is added to that. One batch may be
        there that this process was not told of."""
        if self.store and self.loop.failure:
            with suppress(OSError, PenstockError):
                end = self.loop.log.end.offset
                is_longer = await asyncio.to_thread(self.store.had_batch, self._failed_epoch, end)
                self.loop.settle_doubt(NEVER_NS if is_longer else end)
        self.loop.end_doubt()

    async def _reopen(self) -> None:
        await self.history_writes.close()
        await asyncio.to_thread(self.loop.log.abandon)
        if self.store:
            await asyncio.to_thread(self.store.acquire, self.directory)
        recovered = await asyncio.to_thread(self.recover)
        self._go_on(recovered)
        self.loop.revive(recovered.engine, recovered.log)
        self.history_writes.history = recovered.history
        self._start_services()
        logger.warning("revived", extra={"offset": recovered.log.end.offset})

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin_stop(self) -> None:
        """Begin nothing new, and answer everyone who waits."""
        if self._watching:
            self._watching.cancel()
        self._stopping = [asyncio.create_task(service.stop()) for service in self.services]
        await asyncio.sleep(0)
        self.loop.release_waiters()

    @property
    def is_quiet(self) -> bool:
        """Whether the services have ended what they had begun."""
        return all(each.done() for each in self._stopping)

    async def close_services(self) -> None:
        for each, service in zip(self._stopping, self.services, strict=True):
            each.cancel()
            await service.close()
        if self._application:
            self._application.close()

    async def close(self, *, takes_snapshot: bool = True) -> bool:
        """Write everything, and close the log. False if something cannot be written. The last snapshot stops
        everything else in this process."""
        await until(lambda: self.loop.idle or bool(self.loop.failure), self._config.stop_seconds)
        if self._reviving:
            self._reviving.cancel()
        await self._settle_doubt()
        log = self.loop.log
        is_written = await self._write_everything(takes_snapshot=takes_snapshot)
        await self.snapshots.close()
        await self.history_writes.close()
        log.close()
        if self.store:
            await asyncio.to_thread(_release, self.store)
        logger.info("stopped", extra={"offset": log.end.offset})
        return is_written

    async def hand_over(self) -> None:
        """Let another process have the shard, while this one serves others. It is not asked for anything new."""
        try:
            await self.begin_stop()
            await until(lambda: self.is_quiet, self._config.stop_seconds)
            await self.close_services()
            await self.close(takes_snapshot=False)
            self.loop.commit.leave()
            self.let_go()
        finally:
            self.loop.dismiss()

    async def _write_everything(self, *, takes_snapshot: bool) -> bool:
        """Write the Object History and the last snapshot. False if they, or the log, cannot be written."""
        if self.loop.failure or not self.loop.idle:
            return False
        await self.history_writes.stop()
        if self.history_writes.failure:
            return False
        if takes_snapshot:
            await self.snapshots.stop()
        return True

    def give_up(self) -> None:
        """Let another process have a shard that could not be recovered."""
        if self.store:
            _release(self.store)
        self.let_go()

    def let_go(self) -> None:
        """Let another process have the directory, and the log in the store when the lease has ended."""
        if self.store:
            self.store.drop()
        self.directory.close()

    def check_loss(self) -> None:
        """Raises `DataDirectoryError` if the directory was lost while the shard was served."""
        if self._lost:
            raise DataDirectoryError(f"{self._lost}. {_AFTER_LOSS}")


def _release(store: PostgresStore) -> None:
    try:
        store.release()
    except StoreError as error:
        logger.warning("shard_not_released", extra={"reason": str(error)})


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition at the end of a broker's life, at most this long."""
    running = asyncio.get_running_loop()
    deadline = running.time() + seconds
    while not condition() and running.time() < deadline:  # noqa: ASYNC110 - Once, at the very end.
        await asyncio.sleep(0.01)
