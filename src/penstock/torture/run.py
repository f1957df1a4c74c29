"""One run: a broker, clients in every dialect, faults for as long as it lasts; then all queues are drained."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from penstock.torture.checker import Checker, Violation, violation
from penstock.torture.faults import KINDS, Faults
from penstock.torture.history import History
from penstock.torture.memory import Memory
from penstock.torture.process import Process, rss_bytes
from penstock.torture.traffic import DIALECTS
from penstock.torture.traffic.mqs import Mqs
from penstock.torture.traffic.push import CHANNEL, Endpoint
from penstock.torture.traffic.stage import CHANNELS, DEAD_LETTERS, DRAINED, KEPT_SECONDS, SPECIAL, WORK, Stage
from penstock.torture.traffic.wire import Http, UnexpectedAnswer
from penstock.torture.traffic.work import take_and_finish

DRAIN_SECONDS_MAX = 180.0
TICK_SECONDS = 0.5
WARM_SECONDS = 3.0  # After its start a broker has what it needs in memory.

# Small segments and a short Event Log, so that rolling, snapshots and reclaiming happen all the time.
SETTINGS = {
    "log.segment_bytes": 256 << 10,
    "log.snapshot_bytes": 512 << 10,
    "log.retention_seconds": 30,
    "push.private_addresses": "allow",  # Its endpoint is on this machine.
}
PUSHED = {"topics": ["things.*"], "max_attempts": 9}
PUSH_SECONDS = 5.0


class Options(NamedTuple):
    directory: Path
    seed: str
    minutes: float = 1.0
    dialects: tuple[str, ...] = tuple(DIALECTS)
    faults: tuple[str, ...] = tuple(KINDS)
    rate: float = 60.0  # Messages a second, all dialects together.
    every: float = 8.0  # Seconds between two faults, on average.
    faults_max: int = 0  # End after so many faults; 0: when the minutes are over.
    certificate: Path | None = None  # With it, all connections use TLS. Its key is beside it.


class Run:
    def __init__(self, options: Options) -> None:
        self.options = options
        began = time.monotonic()
        self.history = History(options.directory, lambda: round(time.monotonic() - began, 4))
        self.process = _process(options)
        self.stage = Stage(self.process, self.history, options.seed, options.rate)
        self.faults = Faults(self.stage, list(options.faults))
        self.checker = Checker(DEAD_LETTERS, KEPT_SECONDS)
        self.history.listeners.append(self.checker.observe)
        self.memory = Memory()
        self._endpoint = Endpoint(self.stage)
        self.phase = "starting"
        self._chance = self.stage.chance("run")

    @property
    def violations(self) -> list[Violation]:
        return self.checker.violations + self.faults.violations

    def is_over(self) -> bool:
        """The time is over, the faults are enough, or something is wrong."""
        enough = 0 < self.options.faults_max <= self.faults.count
        return bool(self.violations) or enough or self.stage.now > self.options.minutes * 60

    async def play(self, show: Callable[[Run], None]) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.faults.start()
            await self._make_queues()
            tasks += [asyncio.create_task(_coroutine(each)) for each in self._clients()]
            tasks.append(asyncio.create_task(self._watch(show)))
            await self._suffer(tasks)
            if not self.violations:
                await self._balance()
        finally:
            self.stage.producing, self.stage.over = False, True
            await end(tasks)
            await self.process.kill()
            self._endpoint.close()
            self.history.close()

    def _clients(self) -> list[Awaitable[None]]:
        clients = [each for name in self.options.dialects for each in DIALECTS[name](self.stage)]
        self.stage.producers = max(1, len(clients) // 2)
        return clients

    async def _make_queues(self) -> None:
        http = await Http.open(self.process)
        push = {"url": await self._endpoint.start(), "timeout": PUSH_SECONDS}
        channels = CHANNELS | {CHANNEL: PUSHED | {"push": push}}
        for kind, queues in (("queues", WORK | SPECIAL), ("channels", channels)):
            for name, settings in queues.items():
                answer = await http.ask("PUT", f"/v1/{kind}/{name}", settings)
                assert answer.status in (200, 201), answer
        http.close()

    async def _suffer(self, tasks: list[asyncio.Task[None]]) -> None:
        """Faults, one after the other, until the run is over."""
        self.phase = "faults"
        while not self.is_over():
            until = self.stage.now + self._chance.expovariate(1 / self.options.every)
            while self.stage.now < until and not self.is_over():
                await asyncio.sleep(min(TICK_SECONDS, max(0.0, until - self.stage.now)))
                _raise_from(tasks)
            if not self.is_over() and self.options.faults:
                await self.faults.strike()

    async def _balance(self) -> None:
        """No more faults and no more messages: what is left is delivered, and nothing else."""
        self.phase = "draining"
        self.stage.producing = False
        await self.process.command(clock=0.0)
        await self.faults.end()
        await self.faults.start()
        deadline = self.stage.now + DRAIN_SECONDS_MAX
        while left := await self._left():
            if self.stage.now > deadline:
                sentence = f"{left} cannot be drained"
                self.checker.violations.append(violation("nothing-lost", "broker", self.stage.now, sentence))
                return
            await self._drain(left)
        self.checker.close(self.stage.now)
        self.phase = "done"

    async def _drain(self, left: dict[str, int]) -> None:
        client = await Mqs.open(self.process)
        try:
            for queue in left.keys() & DRAINED:  # The consumers of channels know the names of copies.
                await take_and_finish(self.stage, "drain", client, queue, self._chance)
        except (OSError, UnexpectedAnswer):
            await asyncio.sleep(TICK_SECONDS)
        finally:
            client.close()

    async def _left(self) -> dict[str, int]:
        http = await Http.open(self.process)
        try:
            names = (*DRAINED, *CHANNELS, CHANNEL)
            asked = {name: (await http.ask("GET", f"/v1/queues/{name}")).json() for name in names}
        finally:
            http.close()
        counts = {name: document["status"]["messages"] for name, document in asked.items()}
        return {name: count for name, count in counts.items() if count}

    async def _watch(self, show: Callable[[Run], None]) -> None:
        while True:
            warm = self.stage.alive.is_set() and self.stage.now > self.faults.started_at + WARM_SECONDS
            self.memory.sample(self.stage.now, self.process.rss_bytes() if warm else 0, rss_bytes(os.getpid()))
            show(self)
            await asyncio.sleep(TICK_SECONDS)


def _process(options: Options) -> Process:
    settings, trust = SETTINGS, None
    if options.certificate:
        pair = {"tls.certificate": options.certificate, "tls.key": options.certificate.with_suffix(".key")}
        settings, trust = SETTINGS | pair, ssl.create_default_context(cafile=options.certificate)
    return Process(options.directory / "data", settings, options.directory / "broker.log", trust)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel again and again: a cancellation that comes together with an answer can be lost."""
    while open_tasks := [task for task in tasks if not task.done()]:
        for task in open_tasks:
            task.cancel()
        await asyncio.wait(open_tasks, timeout=TICK_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _coroutine(client: Awaitable[None]) -> None:
    await client


def _raise_from(tasks: list[asyncio.Task[None]]) -> None:
    """An error in a client of ours is ours: it ends the run."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()):
            raise error


def play(options: Options, show: Callable[[Run], None]) -> Run:
    async def run() -> Run:
        one = Run(options)
        await one.play(show)
        return one

    return asyncio.run(run())
