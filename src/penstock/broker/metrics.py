"""The metrics of a shard, read from its parts at each scrape.

The parts count what they need anyway; metrics add next to nothing to the path of a message. Only durations are
recorded as they happen: of each commit, once for all messages in it, and of one command in some.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from penstock import __version__
from penstock.broker.figures.measures import Measured, needs_consumers
from penstock.broker.figures.waits import Histogram
from penstock.broker.services.contract import Service
from penstock.broker.writer.loop import Loop
from penstock.engine.queue import Queue
from penstock.limits import QUEUES_PER_PART, SECOND_NS
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.client import Client
from penstock.model.health import GREEN, RED, YELLOW, Health, ReadHealth
from penstock.model.metrics import OTHER_QUEUES, QUEUES_SHOWN_MAX, ProcessFigure, ReadMetrics, Samples
from penstock.model.metrics import Metrics as Found

_STATES = ("ready", "leased", "delayed", "kept", "damaged")

Part = TypeVar("Part")
Counts = tuple[int, ...]  # Messages of a queue, by state.


class Metrics:
    """The metrics of one shard. Its shells and services are added to `parts`."""

    def __init__(self, loop: Loop) -> None:
        self.commit_seconds = Histogram()
        self.parts: list[Measured] = [loop]
        self._loop = loop
        self.shows_process = True  # Of several shards in a process, one does.
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def read(self, client: Client, _: ReadMetrics) -> Found:
        """In parts, because a thousand queues take some milliseconds."""
        steps = self.scrape(client.access)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                found: Found = stop.value
                return found
            await asyncio.sleep(0)

    def scrape(self, access: Access = EVERYTHING) -> Generator[None, Any, Found]:
        samples: dict[str, Samples] = {"penstock_build_info": [((__version__, platform.python_version()), 1)]}
        for name, found in (sample for part in self.parts for sample in part.state()):
            samples[name] = [(labels, float(value)) for labels, value in found]
        by_dialect = sorted(self._loop.gate.latencies.by_dialect.items())
        durations = {
            "penstock_commit_seconds": [self.commit_seconds.value()],
            "penstock_command_seconds": [each.value(dialect) for dialect, each in by_dialect],
        }
        yield
        queues = yield from self._queues_seen_by(access)
        samples["penstock_queue_messages"] = yield from _queue_messages(queues)
        samples |= yield from self._queue_figures(queues[:QUEUES_SHOWN_MAX])
        return Found(samples, durations, list(self._of_process()) if self.shows_process else [])

    def _of_process(self) -> Iterator[ProcessFigure]:
        for metric in self._process.collect():
            for sample in metric.samples:
                yield ProcessFigure(sample.name, metric.type, metric.documentation, float(sample.value))

    def _queues_seen_by(self, access: Access) -> Generator[None, Any, list[Queue]]:
        queues = list(self._loop.engine.queues.values())
        if access.sees_all:
            return queues
        seen: list[Queue] = []
        for part in _parts(queues, QUEUES_PER_PART):
            seen += [queue for queue in part if access.sees(queue.name)]
            yield
        return seen

    def _queue_figures(self, queues: list[Queue]) -> Generator[None, Any, dict[str, Samples]]:
        now = self._loop.now()
        found: list[Samples] = [[] for _ in _FIGURES]
        for part in _parts(queues, QUEUES_PER_PART):
            for queue in part:
                since = queue.ready_since if needs_consumers(queue) else None
                age = max(0, now - since) / SECOND_NS if since is not None else 0
                figures = (queue.last_sequence, queue.left, age, self._loop.waiting(queue.name))
                for samples, value in zip(found, figures, strict=True):
                    samples.append(((queue.name,), value))
            yield
        return dict(zip(_FIGURES, found, strict=True))


_FIGURES = (
    "penstock_queue_entered_total",
    "penstock_queue_left_total",
    "penstock_queue_oldest_seconds",
    "penstock_queue_waiting_receives",
)


def _parts(whole: Sequence[Part], size: int) -> Iterator[Sequence[Part]]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def _queue_messages(queues: list[Queue]) -> Generator[None, Any, Samples]:
    shown: dict[str, Counts] = {}
    for part in _parts(queues[:QUEUES_SHOWN_MAX], QUEUES_PER_PART):
        shown |= {queue.name: _counts(queue) for queue in part}
        yield
    if others := queues[QUEUES_SHOWN_MAX:]:
        sums = shown.get(OTHER_QUEUES, (0,) * len(_STATES))  # A queue may have that name.
        for part in _parts(others, QUEUES_PER_PART):
            sums = tuple(map(sum, zip(sums, *map(_counts, part), strict=True)))
            yield
        shown[OTHER_QUEUES] = sums
    samples: Samples = []
    for name, counts in shown.items():
        samples += [((name, state), count) for state, count in zip(_STATES, counts, strict=True)]
    return samples


def _counts(queue: Queue) -> Counts:
    return queue.ready, queue.leases.live, queue.delayed.live, queue.kept, queue.damaged


class HealthService(Service):
    async def health(self, client: Client, _: ReadHealth) -> Health:
        """The reason of a failure may name files: if there are tokens, only clients that show one see it."""
        if failure := self.writer.failure:
            return Health(RED, "the log cannot be written" + ("" if client.access is NOBODY else f": {failure}"))
        if damaged := self.writer.engine.damaged:
            return Health(YELLOW, f"{damaged} damaged messages are set aside: see /v1/search?state=damaged")
        return Health(GREEN)
