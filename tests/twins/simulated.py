"""Twins in virtual time: the broker's own processes, with everything but sockets, clocks and disks.

Both live in one simulation, so that time passes for both. What a client sends is handed to the connection of a shell,
and what that writes to the client.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, NamedTuple, cast

import msgspec

from penstock.ids import ID_KEY_BYTES
from penstock.limits import SECOND_NS
from penstock.server.broker import Broker
from penstock.server.clock import Clock
from penstock.server.config import AuditConfig, AuthConfig, Config, HttpConfig, WsConfig
from penstock.server.lookout import Lookout
from penstock.server.recovery import Recovered, recover
from penstock.server.shard import Shard
from penstock.server.shells.connection import Server
from penstock.server.worker import Post, Worker
from penstock.storage.directory import DataDirectory
from penstock.storage.memory import MemoryLog
from penstock.storage.postgres.store import PostgresStore
from penstock.storage.shards import SHARDS_FORMAT, Shards, open_shards
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.scheduler import VirtualTime
from tests.support.http_client import Connection
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient
from tests.twins.player import MARKS
from tests.twins.programs import ADMIN, SCOPES

_LOG = logging.getLogger("penstock")
_BEGIN = 1_800_000_000 * SECOND_NS
_BOSS = "boss"
_DAY_SECONDS = 86_400.0
_ANSWER_NS_MAX = 100 * SECOND_NS
_PATIENCE_NS = 3 * SECOND_NS
_LOOK_NS = SECOND_NS // 20
_RAM = Path("/dev/shm")


class _Memory:
    """In place of a store: logs that are on no disk."""

    @staticmethod
    def open_log(_: DataDirectory, **__: Any) -> MemoryLog:
        return MemoryLog()


def _in_memory(shard: Shard) -> Recovered:
    return recover(shard.directory, shard._config, cast("PostgresStore", _Memory()), shard._home)


class _Simulated:
    """A process of the broker, in a simulated one."""

    def __init__(self, process: Process, broker: Broker) -> None:
        self.process, self.broker = process, broker

    def begin(self) -> None:
        for shard in self.broker.shards:
            shard.take()
        self.broker.assemble([_in_memory(shard) for shard in self.broker.shards])
        self._starting = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        await self.broker._prepare()
        for server in self.broker.servers.all:
            server._sweep()
        for shard in self.broker.shards:
            shard.start()

    @property
    def is_ready(self) -> bool:
        if self._starting.done():
            self._starting.result()
        return self._starting.done()

    def end(self) -> None:
        self.process.end()
        for shard in self.broker.shards:
            shard.history_writes.history.close()
            shard.directory.close()


class _Lookout(NamedTuple):
    """Of a worker that never hangs: a `server.lookout.Lookout` with nothing to do."""

    worker: int
    when_silent: list[Any]

    def silence(self, _: int) -> float:
        return 0.0


def _clocked(kind: type[Any], time: VirtualTime) -> type[Any]:
    """A broker that has the simulated clock."""

    class Clocked(kind):  # type: ignore[misc]
        def _make_shards(self) -> list[Shard]:
            self._clock = Clock(time, time)
            return cast("list[Shard]", super()._make_shards())

    return Clocked


class Pipe(asyncio.Transport):
    """The way between a client and the connection of a shell, both ways."""

    def __init__(self, twin: SimulatedTwin, process: Process, server: Server) -> None:
        super().__init__()
        self._twin, self._process = twin, process
        self._protocol: Any = server.connect()
        self._sent = bytearray()  # By the client, while nothing is read.
        self._received = bytearray()  # By the client.
        self._is_paused = self._is_closing = False
        self.is_closed = False
        process.run(lambda: self._protocol.connection_made(self))

    # The client's side, a socket

    family = socket.AF_UNIX

    def sendall(self, data: bytes) -> None:
        self._sent += data
        self._process.soon(self._deliver)

    def _deliver(self) -> None:
        if self._sent and not self._is_paused and not self._is_closing:
            data = bytes(self._sent)
            self._sent.clear()
            self._protocol.data_received(data)

    def recv(self, _: int) -> bytes:
        self._twin.world.run_until(lambda: self.has_data, _ANSWER_NS_MAX)
        if not self.has_data:
            raise TimeoutError
        data = bytes(self._received)
        self._received.clear()
        return data

    @property
    def has_data(self) -> bool:
        return bool(self._received) or self.is_closed

    def settimeout(self, _: float | None) -> None:
        """Nothing takes long."""

    def fileno(self) -> int:
        return -1 if self.is_closed else 0

    def hang_up(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._process.soon(self._lose)

    def _lose(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._protocol.connection_lost(None)

    # The shell's side, a transport

    def write(self, data: Any) -> None:
        self._received += data

    def writelines(self, several: Any) -> None:
        self._received += b"".join(several)

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        self.hang_up()

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._process.soon(self._deliver)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Clients read at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "socket": self}.get(name, default)

    def setsockopt(self, *_: Any) -> None:
        """There is no network in between."""


class Simulation:
    """The time of all twins."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.time = VirtualTime(self.random, _BEGIN)

    def run_until(self, condition: Callable[[], bool], limit: int) -> None:
        end = self.time.now + limit
        while not condition() and self.time.now < end:
            assert self.time.step(), "nothing will ever happen again"

    def pass_time(self, duration: int) -> None:
        reached: list[bool] = []
        self.time.after(duration, lambda: reached.append(True))
        self.run_until(lambda: bool(reached), 2 * duration + SECOND_NS)


class SimulatedTwin:
    def __init__(self, world: Simulation, folder: Path, workers: int, shards: int) -> None:
        """With no workers it is one process with one shard."""
        self.world = world
        network = Network(world.time, world.random)
        network.delay_ns_max, network.splits, network.slow = SECOND_NS // 10_000, 0, 0
        config = Config(
            data=folder / "data",
            audit=AuditConfig(enabled=False),
            auth=AuthConfig(tokens=(_BOSS,)),
            http=HttpConfig(idle_seconds=_DAY_SECONDS),
            ws=WsConfig(ping_seconds=_DAY_SECONDS),
        )
        self.processes: list[_Simulated] = []
        store = _new_store(config, shards) if workers else None
        for number in range(workers or 1):
            lookout = cast("Lookout", _Lookout(number, []))
            post = Post(lookout, workers, store, folder) if store else None
            process = Process(number, world.time, world.random, network)
            process.run(partial(self._begin, process, config, post))
        world.run_until(lambda: all(each.is_ready for each in self.processes), _ANSWER_NS_MAX)
        self._turn = 0
        self.tokens = {ADMIN: _BOSS}
        self._prepare()

    def _begin(self, process: Process, config: Config, post: Post | None) -> None:
        time = self.world.time
        broker = _clocked(Worker, time)(config, post) if post else _clocked(Broker, time)(config)
        simulated = _Simulated(process, broker)
        self.processes.append(simulated)
        simulated.begin()

    def _prepare(self) -> None:
        headers = {"Authorization": f"Bearer {_BOSS}"}
        with self.connect() as connection:
            assert connection.request("PUT", f"/v1/queues/{MARKS}", headers).status == 201
            for who, scopes in SCOPES.items():
                body = msgspec.json.encode({"scopes": scopes})
                self.tokens[who] = connection.request("PUT", f"/v1/tokens/{who}", headers, body).json()["token"]

    def _pipe(self, server: int) -> Any:
        """To each process in turn."""
        self._turn += 1
        chosen = self.processes[self._turn % len(self.processes)]
        return Pipe(self, chosen.process, chosen.broker.servers.all[server])

    def connect(self) -> Connection:
        return Connection.over(self._pipe(0))

    def connect_lines(self) -> LineClient:
        return LineClient.over(self._pipe(1))

    def connect_websocket(self, path: str, token: str) -> WsClient:
        return WsClient.over(self._pipe(0), path, Authorization=f"Bearer {token}")

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(int(seconds * SECOND_NS))

    def has_come(self, socket: Any) -> bool:
        return bool(socket.has_data)

    def until(self, condition: Callable[[], bool]) -> None:
        end = self.world.time.now + _PATIENCE_NS
        while not condition() and self.world.time.now < end:
            self.world.pass_time(_LOOK_NS)

    def end(self) -> None:
        for each in self.processes:
            each.end()


def _new_store(config: Config, shards: int) -> Shards:
    config.data.mkdir(parents=True)
    store = Shards(SHARDS_FORMAT, shards, "5e" * ID_KEY_BYTES)
    (config.data / "shards.json").write_bytes(msgspec.json.encode(store))
    open_shards(config.data, shards)
    return store


SIMULATED = {"simulated2": (2, 4), "simulated3": (3, 6)}
"""How many workers and shards."""


@contextmanager
def simulated(seed: str, workers: int, shards: int) -> Iterator[tuple[SimulatedTwin, SimulatedTwin]]:
    """One process, and so many workers. They log only what nobody should see."""
    level = _LOG.level
    _LOG.setLevel(logging.ERROR)
    folder = Path(mkdtemp(dir=_RAM if _RAM.is_dir() else None))
    world = Simulation(seed)
    twins: list[SimulatedTwin] = []
    try:
        twins.append(SimulatedTwin(world, folder / "one", 0, 1))
        twins.append(SimulatedTwin(world, folder / "several", workers, shards))
        yield twins[0], twins[1]
    finally:
        for each in twins:
            each.end()
        shutil.rmtree(folder)
        _LOG.setLevel(level)
