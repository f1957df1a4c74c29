"""A store with several shards over several workers, all in one thread beside the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec.structs import replace

from penstock.broker.identities import Identities
from penstock.broker.metrics import Metrics
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.recovery import recover
from penstock.broker.services.backups import Backups
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.loans import connect_loans
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import ClientPort
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.cluster.links.mesh import Mesh, owner_of
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.ports import CountedPort, OwnPort
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.shared_quotas import SharedQuotas
from penstock.config.config import AuditConfig, Config
from penstock.ids import ID_KEY_BYTES
from penstock.model.metrics import ReadMetrics
from penstock.server.app import Application
from penstock.server.assembly import assemble
from penstock.server.clock import Clock
from penstock.server.shard import FORMS
from penstock.shells.http_server import HttpServer
from penstock.storage.directory import DataDirectory
from penstock.storage.shards import SHARDS_FORMAT, Shards, open_shards, shard_directory
from tests.support.http_client import Connection, Response
from tests.support.live_loop import until


class Shard:
    """One shard, with its services."""

    def __init__(
        self, config: Config, directory: DataDirectory, shards: ShardMap, turns: Turns, identities: Identities
    ) -> None:
        self.config, self.directory, self.identities = config, directory, identities
        self.identity = directory.open()
        recovered = recover(directory, config, home=shards.of_name)
        scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self.loop = Loop(recovered.engine, recovered.log, Clock(), scheduler)
        self.metrics = Metrics(self.loop)
        self.history_writes = HistoryWrites(self.loop, recovered.history)
        backups = partial(Backups, directory=directory, identity=self.identity, history=self.history_writes)
        config = replace(config, log=config.log.of_shard(self.identity.shard, self.identity.shards))
        self.services = assemble(self.loop, config, self.identity, turns, backups, identities, FORMS)
        self.loop.ask = self.services.questions.take
        self.services.questions.answers[ReadMetrics] = self.metrics.read
        self.loop.gate.auditor = self.services.audit
        self.metrics.parts += [*self.services, self.history_writes]

    def start(self, clients: ClientPort) -> None:
        self.services.redrives.all_queues = clients
        for service in (*self.services, self.history_writes):
            service.start()

    def application(self, clients: ClientPort) -> Application:
        return Application(self.config, self.identity, self.loop, self.services, self.identities, clients)

    def port(self) -> OwnPort:
        services = self.services
        return OwnPort(self.loop, services.courier_source, services.recalls, services.borrower, services.lender)

    async def close(self) -> None:
        for service in (*self.services, self.history_writes):
            await service.close()
        self.loop.log.close()
        self.directory.close()


class Worker:
    """One worker, with its HTTP server."""

    def __init__(self, number: int, store: Store) -> None:
        config = store.config
        self.turns = Turns()
        self.identities = Identities(config.auth.tokens, Clock())
        self.shards = {
            shard: Shard(config, shard_directory(config.data, shard), store.map, self.turns, self.identities)
            for shard in range(store.shards)
            if owner_of(shard, store.workers) == number
        }
        own = {number: shard.port() for number, shard in self.shards.items()}
        self.mesh = Mesh(number, store.workers, store.shards, UnixWires(store.folder), own)
        for at, shard in self.shards.items():
            others = {source: port for source, port in enumerate(self.mesh.ports) if source != at}
            services = shard.services
            services.courier_source.connect(at, store.map)
            services.courier.connect(others)
            connect_loans(services.borrower, services.lender, services.courier, at, store.map, self.mesh.ports)
        router = Router(store.map, self.mesh.ports)
        if 0 in self.shards:
            self.shards[0].services.staged_batches.spread(store.map.of_name, self.mesh.ports)
        for shard in self.shards.values():
            shard.start(router)
        first = self.shards[min(self.shards)]
        self.application = first.application(router)

        def exists(name: str) -> bool:
            own = self.shards.get(store.map.of_name(name))
            return own is None or own.loop.engine.queue(name) is not None

        quotas = Quotas(config.quota, exists)
        if store.workers > 1:
            SharedQuotas(quotas, self.mesh, number, store.workers)
            self.mesh.served = {each: CountedPort(port, quotas, exists) for each, port in own.items()}
        self.http = HttpServer(self.application, config.http, self.turns, None, quotas)
        first.services.connections.servers.append(self.http)
        first.metrics.parts += [self.http, quotas]
        for each in self.shards.values():
            each.metrics.shows_process = each is first

    async def start(self) -> int:
        await self.mesh.start()
        self.listener = await self.http.listen("127.0.0.1", 0)
        port: int = self.listener.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self.listener.close()
        self.http.close()
        self.mesh.stop()
        self.application.close()
        for shard in self.shards.values():
            await shard.close()


class Store:
    """All workers of a store, each used in turn. One with one shard and one worker is like any broker."""

    def __init__(self, config: Config, folder: Path, shards: int, workers: int, elsewhere: dict[str, int]) -> None:
        self.config, self.folder, self.shards = config, folder, shards
        self.workers, self.map = workers, ShardMap(shards, elsewhere)
        self.ports: list[int] = []
        self.all: list[Worker] = []
        self._running = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._running.run_forever, daemon=True)
        self._turn = 0

    def start(self) -> None:
        self._thread.start()
        self.run(self._start())

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Run this beside the test, and wait for it."""
        return asyncio.run_coroutine_threadsafe(what, self._running).result(100)

    def until(self, condition: Callable[[], bool]) -> None:
        self.run(until(condition))

    async def _start(self) -> None:
        self.config.data.mkdir()
        known = Shards(SHARDS_FORMAT, self.shards, "5e" * ID_KEY_BYTES)  # All stores have the same ids.
        (self.config.data / "shards.json").write_bytes(msgspec.json.encode(known))
        open_shards(self.config.data, self.shards)
        self.all = [Worker(number, self) for number in range(self.workers)]
        self.ports = [await worker.start() for worker in self.all]
        await until(lambda: all(worker.mesh.is_complete for worker in self.all))

    def connect(self, worker: int | None = None) -> Connection:
        self._turn += 1
        chosen = self._turn % self.workers if worker is None else worker
        return Connection(("127.0.0.1", self.ports[chosen]))

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        worker: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """The answer of one of the workers: of each in turn, unless it is named."""
        with self.connect(worker) as connection:
            return connection.request(method, target, headers, body)

    def stop(self) -> None:
        self.run(self._stop())
        self._running.call_soon_threadsafe(self._running.stop)
        self._thread.join()

    async def _stop(self) -> None:
        for worker in self.all:
            await worker.close()
        await asyncio.sleep(0)


@contextmanager
def a_store(
    folder: Path, shards: int, workers: int, elsewhere: dict[str, int] | None = None, **settings: Any
) -> Iterator[Store]:
    """Without audit records, unless the settings ask for them."""
    folder.mkdir()
    settings = {"audit": AuditConfig(enabled=False), **settings}
    store = Store(Config(data=folder / "data", **settings), folder, shards, workers, elsewhere or {})
    store.start()
    try:
        yield store
    finally:
        store.stop()
