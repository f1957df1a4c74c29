"""Child processes for functions that keep a processor busy. One that dies fails only the job that it ran."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable

from penstock.worker.context import Progress
from penstock.worker.errors import ChildDied
from penstock.worker.outcome import Outcome
from penstock.worker.runtime import frames

_END_SECONDS_MAX = 5.0


class _Child:
    """One process and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def run(self, order: frames.Order, report: Callable[[Progress], None]) -> Outcome:
        try:
            self._writer.write(frames.frame(order))
            await self._writer.drain()
            while not isinstance(answer := await self._read(), frames.Ended):
                if isinstance(answer, frames.Report):
                    report(answer.progress)
                else:
                    logging.getLogger(answer.logger).log(answer.level, "%s", answer.text)
            return answer.outcome
        except (ConnectionError, asyncio.IncompleteReadError):
            raise ChildDied(await self._how_it_ended()) from None
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def _read(self) -> frames.Answer:
        length = int.from_bytes(await self._reader.readexactly(frames.LENGTH_BYTES), "big")
        answer: frames.Answer = frames.decode_answer(await self._reader.readexactly(length))
        return answer

    async def _how_it_ended(self) -> str:
        code = await self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"the process {self._process.pid} that ran the job was ended {how}"

    async def kill(self) -> None:
        if self.alive:
            self._process.kill()
        await self._process.wait()
        self._writer.close()

    async def end(self) -> None:
        """Let it finish: it ends when nothing more can come."""
        self._writer.close()
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            await self.kill()


class Children:
    """At most so many child processes, started when they are needed."""

    def __init__(self, count: int, target: str) -> None:
        self._target = target  # MODULE:APP, which each child imports.
        self._free = asyncio.Semaphore(count)
        self._idle: list[_Child] = []

    async def run(
        self, order: frames.Order, report: Callable[[Progress], None], begin: Callable[[], None]
    ) -> Outcome:
        """Run a job when a child is free. `begin` is called then."""
        async with self._free:
            child = await self._take()
            begin()
            try:
                return await child.run(order, report)
            finally:
                if child.alive:
                    self._idle.append(child)

    async def close(self) -> None:
        await asyncio.gather(*[child.end() for child in self._idle])
        self._idle.clear()

    async def _take(self) -> _Child:
        while self._idle:
            if (child := self._idle.pop()).alive:
                return child
        return await self._start()

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = (sys.executable, "-m", "penstock.worker.runtime.child", self._target)
            level = str(logging.getLogger().level)
            process = await asyncio.create_subprocess_exec(*command, str(number), level, pass_fds=[number])
        return _Child(process, *await asyncio.open_connection(sock=ours))
