"""How large the log is, how much room the disk has, and for how long that will do at today's rate."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.broker.figures.measures import Samples, one
from penstock.broker.services.contract import Service
from penstock.broker.writer.port import ServicePort
from penstock.config.config import LogConfig
from penstock.limits import SECOND_NS
from penstock.model.disk import (
    SAMPLE_SECONDS,
    SAMPLES,
    Disk,
)

_YOUNG_SECONDS = 60.0  # What a broker has written in a shorter time says nothing about a day.


class _Mark(NamedTuple):
    seconds: float
    position: int  # How much was ever written.
    free: int


class DiskService(Service):
    def __init__(self, writer: ServicePort, directory: Path, config: LogConfig) -> None:
        super().__init__(writer)
        self._directory = directory
        self._config = config
        self._usage = self._look()
        self._marks: deque[_Mark] = deque([self._mark()], maxlen=SAMPLES)

    def disk(self) -> Disk:
        log, config = self.writer.log, self._config
        size = log.end.position - log.start.position
        first, now = self._marks[0], self._mark()
        passed = now.seconds - first.seconds
        written, falls = None, None
        if passed >= _YOUNG_SECONDS:
            written = round(max(0, now.position - first.position) / passed * 86400)
            falls = round((first.free - now.free) / passed * 86400)
        return Disk(
            size,
            len(log.view().parts),
            self._usage.free,
            self._usage.total,
            written,
            config.retention_seconds,
            config.retention_bytes,
            round(passed),
            falls,
        )

    def _mark(self) -> _Mark:
        return _Mark(self.writer.now() / SECOND_NS, self.writer.log.end.position, self._usage.free)

    def _look(self) -> shutil._ntuple_diskusage:
        """Of the directory, or of where it will be."""
        there = next(each for each in (self._directory, *self._directory.absolute().parents) if each.exists())
        return shutil.disk_usage(there)

    async def run(self) -> None:
        while True:
            self._usage = await asyncio.to_thread(self._look)  # A network file system may take its time.
            if self._mark().seconds - self._marks[-1].seconds >= SAMPLE_SECONDS - 1:
                self._marks.append(self._mark())
            await self.rest(SAMPLE_SECONDS)

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_disk_free_bytes", one(self._usage.free)
        yield "penstock_disk_bytes", one(self._usage.total)
