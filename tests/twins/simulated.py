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
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import msgspec

from penstock.broker.quotas.quotas import Quotas
from penstock.broker.recovery import Recovered, recover
from penstock.broker.room import Room
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.cluster.links.mesh import owner_of
from penstock.cluster.workers.board import Board
from penstock.cluster.workers.doors import Door, Doors
from penstock.cluster.workers.lookout import Lookout
from penstock.config.config import AuditConfig, AuthConfig, Config, HttpConfig, WsConfig
from penstock.ids import ID_KEY_BYTES
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos
from penstock.server.broker import Broker
from penstock.server.clock import Clock
from penstock.server.shard import Shard
from penstock.server.worker import Post, Worker
from penstock.shells.connection import Server
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
from tests.twins.programs import ADMIN, SCOPES, Hang

_LOG = logging.getLogger("penstock")
_BEGIN = 1_800_000_000 * SECOND_NS
_BOSS = "boss"
_DAY_SECONDS = 86_400.0
_START_NS_MAX = 100 * SECOND_NS
_ANSWER_NS_MAX = 25 * SECOND_NS  # Also if a process stands still.
_LINKED_SECONDS = 8.0  # Until all processes are linked again.
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
        if lookout := self.broker._lookout:
            self._watching = asyncio.ensure_future(lookout.run(_accept_nobody))

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


class _Board:
    """When each worker was last alive: a `server.board.Board` in virtual time."""

    def __init__(self, time: VirtualTime, workers: int) -> None:
        self.workers = workers
        self._time = time
        self._beats: dict[int, Nanos] = {}

    def beat(self, worker: int) -> None:
        self._beats[worker] = self._time.now

    def leave(self, worker: int) -> None:
        self._beats.pop(worker, None)

    def silence(self, worker: int) -> float:
        now = self._time.now
        return (now - self._beats.get(worker, now)) / SECOND_NS


class _Door(NamedTuple):
    """Where nobody knocks."""

    def close(self) -> None:
        """It is never open."""


async def _accept_nobody(_: Any) -> list[asyncio.Server]:
    return []


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
        self._workers, self._map = workers, ShardMap(shards)
        self._hung: int | None = None  # The process that stands still.
        self._hangs_until: Nanos = 0
        board = cast("Board", _Board(world.time, workers))
        doors = Doors(config.http.address, config.http.address, cast("list[Door]", [_Door()] * workers))
        for number in range(workers or 1):
            post = Post(Lookout(number, board, doors), workers, store, folder) if store else None
            process = Process(number, world.time, world.random, network)
            process.run(partial(self._begin, process, config, post))
        world.run_until(lambda: all(each.is_ready for each in self.processes), _START_NS_MAX)
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
        """To each process in turn that does not stand still."""
        open_ones = [each for number, each in enumerate(self.processes) if number != self._hung]
        self._turn += 1
        chosen = open_ones[self._turn % len(open_ones)]
        return Pipe(self, chosen.process, chosen.broker.servers.all[server])

    def connect(self) -> Connection:
        return Connection.over(self._pipe(0))

    def connect_lines(self) -> LineClient:
        return LineClient.over(self._pipe(1))

    def connect_websocket(self, path: str, token: str) -> WsClient:
        return WsClient.over(self._pipe(0), path, Authorization=f"Bearer {token}")

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(int(seconds * SECOND_NS))

    def hang(self, step: Hang) -> None:
        if self._workers:
            self._hung = owner_of(self._map.of_name(step.queue), self._workers)
            time, process = self.world.time, self.processes[self._hung].process
            began = time.now + int(step.after * SECOND_NS)
            self._hangs_until = began + int(step.seconds * SECOND_NS)
            time.at(began, partial(process.stop, self._hangs_until))

    def is_away(self, queue: str) -> bool:
        return self._hung is not None and owner_of(self._map.of_name(queue), self._workers) == self._hung

    def back(self) -> None:
        if self._hung is not None:
            self._hung = None
            self.pass_time(max(0, self._hangs_until - self.world.time.now) / SECOND_NS + _LINKED_SECONDS)

    def has_come(self, socket: Any) -> bool:
        return bool(socket.has_data)

    def until(self, condition: Callable[[], bool]) -> None:
        end = self.world.time.now + _PATIENCE_NS
        while not condition() and self.world.time.now < end:
            self.world.pass_time(_LOOK_NS)

    def end(self) -> None:
        for each in self.processes:
            each.end()


_CLOCKED = (Turns, Quotas, Room)


@contextmanager
def _virtual_clocks(time: VirtualTime) -> Iterator[None]:
    """What measures how long something takes finds that it takes no time: what a machine is doing beside changes
    nothing."""

    def seconds() -> float:
        return time.now / SECOND_NS

    with ExitStack() as stack:
        for name in ("monotonic", "perf_counter", "thread_time"):
            stack.enter_context(patch(f"time.{name}", seconds))
        for kind in _CLOCKED:
            stack.enter_context(patch.object(kind, "__init__", partialmethod(kind.__init__, clock=seconds)))
        yield


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
        with _virtual_clocks(world.time):
            twins.append(SimulatedTwin(world, folder / "one", 0, 1))
            twins.append(SimulatedTwin(world, folder / "several", workers, shards))
            yield twins[0], twins[1]
    finally:
        for each in twins:
            each.end()
        shutil.rmtree(folder)
        _LOG.setLevel(level)
