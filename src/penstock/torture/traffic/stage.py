"""What all clients share: where the broker is, what they record, how fast they go, and which queues there are."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, Protocol, TypeVar

from penstock.torture.history import History, Unexpected
from penstock.torture.process import Process
from penstock.torture.traffic.wire import UnexpectedAnswer

LEASE_SECONDS = 5.0  # The shortest that every dialect allows.
KEPT_SECONDS = 180.0
BRIEF_SECONDS = 3.0
BATCH_MAX = 9
PAUSE_SECONDS = 0.3  # Before a client connects again.

_LEASE = {"lease": LEASE_SECONDS}
WORK: dict[str, dict[str, Any]] = {
    "work": _LEASE,
    "dead": _LEASE,
    "frail": _LEASE | {"redrive_policy": {"max_receives": 2, "dead_letter_queue": "dead"}},
    "late": _LEASE | {"message_delay": 1.0},
    "brief": _LEASE | {"retention_timeout": BRIEF_SECONDS},
}
SPECIAL: dict[str, dict[str, Any]] = {
    "unique": _LEASE | {"message_deduplication": True},
    "kept": {"keep": "all", "retention_timeout": KEPT_SECONDS},
    "things": _LEASE | {"detect_unchanged": True},
}
CHANNELS: dict[str, dict[str, Any]] = {"watch": _LEASE | {"topics": ["things.*"], "max_attempts": 9}}
DEAD_LETTERS = {"frail": "dead"}
SENT_TO = [name for name in WORK if name != "dead"]
DRAINED = [*WORK, "unique", "things"]


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Stage:
    """The broker and its lives, as clients see them. They wait here while it is dead."""

    def __init__(self, process: Process, history: History, seed: str, rate: float) -> None:
        self.process = process
        self.history = history
        self.seed = seed
        self.rate = rate
        self.producers = 1
        self.alive = asyncio.Event()
        self.producing = True
        self.over = False
        self.operations: Counter[str] = Counter()  # Answered requests, by dialect.
        self.cut = 0  # Connections that broke, and requests that the broker could not carry out.

    @property
    def now(self) -> float:
        return self.history.clock()

    def chance(self, by: str) -> random.Random:
        return random.Random(f"{self.seed}:{by}")

    async def pace(self, chance: random.Random, messages: int = 1 + BATCH_MAX // 2) -> None:
        """Think for as long as keeps all producers together at the rate."""
        await asyncio.sleep(chance.expovariate(self.rate / self.producers / messages))

    async def visit(
        self, by: str, connect: Callable[[Process], Awaitable[C]], work: Callable[[C], Awaitable[None]]
    ) -> None:
        """Work on a connection until the work is done; on a new one whenever it breaks."""
        while not self.over:
            await self.alive.wait()
            client: C | None = None
            try:
                client = await connect(self.process)
                await work(client)
                return
            except OSError:
                self.cut += 1
            except UnexpectedAnswer as error:
                self.history.record(Unexpected(self.now, by, str(error)))
            finally:
                if client is not None:
                    client.close()
            await asyncio.sleep(PAUSE_SECONDS)

    def answered(self, dialect: str, requests: int = 1) -> None:
        self.operations[dialect] += requests


def names(producer: str) -> Iterator[str]:
    return (f"{producer}.{number}" for number in count(1))


def body_of(name: str) -> str:
    """A body of 20 to 600 bytes that follows from the name, with what JSON must escape in it."""
    digest = zlib.crc32(name.encode())
    return f'{name} "\\\n\tß☃' + f"{digest:08x}" * (digest % 70)


def name_of(body: str) -> str:
    return body.partition(" ")[0]
