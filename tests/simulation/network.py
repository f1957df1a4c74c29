"""Connections between simulated processes: streams of bytes that are delayed, cut into pieces, held up, and lost.

A connection that breaks does so for its two ends at different times: one of them may go on for a while, and its bytes
reach nobody. What was on its way may still arrive, up to some byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.limits import SECOND_NS
from penstock.model.values import Nanos
from tests.simulation.process import Process
from tests.simulation.scheduler import VirtualTime

STALL_NS_MAX = 3 * SECOND_NS
NOTICED_NS_MAX = 2 * SECOND_NS  # How long an end may take to see that the connection is broken.


class Network:
    def __init__(self, time: VirtualTime, random: Random) -> None:
        self.time = time
        self.random = random
        self.delay_ns_max = random.choice([SECOND_NS // 100_000, SECOND_NS // 1000, SECOND_NS // 20])
        self.splits = random.choice([0, 0.3])  # How likely what is written arrives in two pieces.
        self.slow = random.choice([0, 0.5])  # How likely nothing passes at the beginning of a connection.
        self.wires: list[Wire] = []
        self.lost = 0
        self._listeners: dict[str, Listener] = {}
        self._apart: dict[frozenset[int], Nanos] = {}  # Pairs of processes that do not reach each other, until when.

    def delay(self) -> Nanos:
        return self.random.randint(1, self.delay_ns_max)

    def listen(self, process: Process, address: str, factory: Callable[[], asyncio.Protocol]) -> Listener:
        listener = self._listeners[address] = Listener(process, factory)
        return listener

    def connect(
        self, process: Process, address: str, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[End, asyncio.Protocol]:
        listener = self._listeners.get(address)
        if listener is None or listener.is_closed or not listener.process.alive:
            raise ConnectionRefusedError(address)
        if self.held_up(process.number, listener.process.number):
            raise TimeoutError(address)
        wire = Wire(self, (process, factory()), (listener.process, listener.factory()))
        self.wires.append(wire)
        if self.random.random() < self.slow:
            wire.stall(self.random.randint(0, STALL_NS_MAX))
        return wire.ends[0], wire.ends[0].protocol

    def lose_any(self) -> None:
        """Often the newest, whose beginning may be on its way."""
        if self.wires:
            self.random.choice([self.random.choice(self.wires), self.wires[-1]]).lose()

    def stall_any(self) -> None:
        if self.wires:
            self.random.choice(self.wires).stall(self.random.randint(0, STALL_NS_MAX))

    def part(self, one: int, other: int, duration: Nanos) -> None:
        """Let two processes not reach each other. Their connections stall until then, or break."""
        self._apart[frozenset((one, other))] = self.time.now + duration
        for wire in [wire for wire in self.wires if {each.number for each in wire.processes} == {one, other}]:
            wire.stall(duration)
            if self.random.random() < 0.5:
                wire.lose()

    def held_up(self, one: int, other: int) -> Nanos:
        """How long two processes will not reach each other."""
        return max(0, self._apart.get(frozenset((one, other)), 0) - self.time.now)

    def heal(self) -> None:
        self._apart.clear()

    def end_of(self, process: Process) -> None:
        """The kernel closes the connections of a process that has died."""
        for wire in [wire for wire in self.wires if process in wire.processes]:
            wire.lose()


class Listener:
    def __init__(self, process: Process, factory: Callable[[], asyncio.Protocol]) -> None:
        self.process = process
        self.factory = factory
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Wire:
    """A connection."""

    def __init__(
        self,
        network: Network,
        near: tuple[Process, asyncio.Protocol],
        far: tuple[Process, asyncio.Protocol],
    ) -> None:
        self.network = network
        self.processes = (near[0], far[0])
        self.is_lost = False
        self.ends = (End(self, *near), End(self, *far))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        for end in self.ends:
            end.open()

    def stall(self, duration: Nanos) -> None:
        """What is sent meanwhile, in both directions, arrives afterwards."""
        for end in self.ends:
            end.free_at = max(end.free_at, self.network.time.now + duration)

    def lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self.network.lost += 1
        self.network.wires.remove(self)
        for end in self.ends:
            end.lose()


class End(asyncio.Transport):
    """One end of a connection, with what is on its way to it."""

    other: End

    def __init__(self, wire: Wire, process: Process, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._wire = wire
        self._process = process
        self.protocol = protocol
        self.free_at: Nanos = 0  # When the last of what is on its way arrives, or later.
        self._coming: deque[bytes] = deque()
        self._is_made = self._is_closing = self._is_over = False

    def open(self) -> None:
        self._process.soon(self._make)

    def _make(self) -> None:
        """Before anything else: a process that stood still has all of it to do at once, in any order."""
        if not self._is_made:
            self._is_made = True
            self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self._is_closing or self._wire.is_lost:
            return
        random, pieces = self._wire.network.random, [bytes(data)]
        if random.random() < self._wire.network.splits:
            cut = random.randrange(len(data))
            pieces = [bytes(data[:cut]), bytes(data[cut:])]
        for piece in pieces:
            self.other.expect(piece)

    def expect(self, piece: bytes) -> None:
        self._coming.append(piece)
        time, delay = self._wire.network.time, self._wire.network.delay()
        self.free_at = max(self.free_at, time.now + delay)
        self._process.at(self.free_at, self._arrive)

    def _arrive(self) -> None:
        if self._coming and not self._is_over:
            self._make()
            self.protocol.data_received(self._coming.popleft())

    def lose(self) -> None:
        """What is on its way arrives up to some byte; some time after that the end sees that it is alone."""
        random, time = self._wire.network.random, self._wire.network.time
        for _ in range(random.randint(0, len(self._coming))):
            self._coming.pop()
        if self._coming and random.random() < 0.5:
            self._coming[-1] = self._coming[-1][: random.randint(0, len(self._coming[-1]))]
        noticed = max(self.free_at if self._coming else 0, time.now)
        noticed += random.choice([0, self._wire.network.delay(), random.randint(0, NOTICED_NS_MAX)])
        self._process.at(noticed, self._over)

    def _over(self) -> None:
        if not self._is_over:
            self._make()
            self._is_closing = self._is_over = True
            self.protocol.connection_lost(None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._coming.clear()
            self._wire.lose()
            self._process.soon(self._over)

    close = abort

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0
