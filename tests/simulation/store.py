"""A simulated PostgreSQL with a standby: the log of each shard, and who owns it.

A statement takes place at one moment on the primary. Its result is sent when the standby has it too. When the primary
fails, the standby goes on with what it has; what it does not have is lost, and nobody has an answer for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.errors import StoreError
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos
from penstock.storage.memory import MemorySnapshot
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.scheduler import VirtualTime

STORE = -1  # Its number in the network.
LEASE_NS = SECOND_NS
TIMEOUT_NS = LEASE_NS // 2  # When the outcome of a statement is given up as unknown.


@dataclass
class Row:
    """One shard."""

    epoch: int = 0
    owner: int | None = None
    lease_until: Nanos = 0
    batches: list[bytes] = field(default_factory=list)
    snapshot: MemorySnapshot | None = None

    def copy(self) -> Row:
        return Row(self.epoch, self.owner, self.lease_until, list(self.batches), self.snapshot)


Statement = Callable[[Row, Nanos], Any]  # Changes a row at a time. The same at the standby.
Done = Callable[[Any], None]


class Store:
    def __init__(self, time: VirtualTime, random: Random, shards: int) -> None:
        self.rows = [Row() for _ in range(shards)]  # Of the primary.
        self.safe = [Row() for _ in range(shards)]  # Of the standby.
        self.failovers = 0
        self._time = time
        self._random = random
        self._standby_ns_max = random.choice([SECOND_NS // 1000, SECOND_NS // 50])
        self._unsafe: deque[Callable[[], None]] = deque()  # What the standby does not have yet.

    def execute(self, shard: int, statement: Statement, done: Done) -> None:
        now = self._time.now
        result = statement(self.rows[shard], now)

        def repeat() -> None:
            statement(self.safe[shard], now)
            done(result)

        self._unsafe.append(repeat)
        self._time.after(self._random.randint(1, self._standby_ns_max), self._replicate)

    def _replicate(self) -> None:
        if self._unsafe:
            self._unsafe.popleft()()

    def fail_over(self) -> None:
        self.failovers += 1
        self._unsafe.clear()
        self.rows = [row.copy() for row in self.safe]


class Connection:
    """What one process sends to the store. If a connection is lost, the outcome of what was sent is unknown: it may
    have taken place, or take place later."""

    def __init__(self, store: Store, process: Process, network: Network) -> None:
        self._store = store
        self._process = process
        self._network = network
        self._waiting: dict[int, Done] = {}
        self._numbers = 0

    def run(self, shard: int, statement: Statement, done: Done) -> None:
        """`done` is called in the process with the result, or with `StoreError`."""
        number = self._numbers = self._numbers + 1
        self._waiting[number] = done
        arrives = self._network.time.now + self._network.delay() + self._network.held_up(self._process.number, STORE)
        self._network.time.at(
            arrives, lambda: self._store.execute(shard, statement, lambda it: self._return(number, it))
        )
        self._process.after(TIMEOUT_NS, lambda: self._end(number, StoreError("no answer in time")))

    def _return(self, number: int, result: Any) -> None:
        delay = self._network.delay() + self._network.held_up(self._process.number, STORE)
        self._process.at(self._network.time.now + delay, lambda: self._end(number, result))

    def _end(self, number: int, result: Any) -> None:
        if done := self._waiting.pop(number, None):
            done(result)

    def lose(self) -> None:
        for number in list(self._waiting):
            self._process.soon(lambda number=number: self._end(number, StoreError("the connection was lost")))  # type: ignore[misc]


# ── Statements. Each that changes something names the epoch of the owner ──────────────────────────────────────


def acquire(owner: int) -> Statement:
    """The new epoch, with a copy of what the shard has; None while another owner's lease runs."""

    def statement(row: Row, now: Nanos) -> Row | None:
        if row.owner not in (None, owner) and now <= row.lease_until:
            return None
        row.epoch, row.owner, row.lease_until = row.epoch + 1, owner, now + LEASE_NS
        return row.copy()

    return statement


def renew(epoch: int) -> Statement:
    def statement(row: Row, now: Nanos) -> bool:
        if row.epoch == epoch:
            row.lease_until = now + LEASE_NS
        return row.epoch == epoch

    return statement


def release(epoch: int) -> Statement:
    def statement(row: Row, _: Nanos) -> None:
        if row.epoch == epoch:
            row.owner, row.lease_until = None, 0

    return statement


def append(epoch: int, number: int, data: bytes) -> Statement:
    """Add a batch; False: another owner has the shard."""

    def statement(row: Row, _: Nanos) -> bool:
        is_ours = row.epoch == epoch and len(row.batches) == number
        if is_ours:
            row.batches.append(data)
        return is_ours

    return statement


def keep_snapshot(epoch: int, snapshot: MemorySnapshot) -> Statement:
    def statement(row: Row, _: Nanos) -> None:
        if row.epoch == epoch:
            row.snapshot = snapshot

    return statement
