"""Reads the lake for the console: in a child process, so that the broker waits for no file, with a limit on time."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

import msgspec

from penstock.broker.services.contract import Service
from penstock.broker.writer.port import ServicePort
from penstock.errors import Fault, RequestError
from penstock.model.lake import MinutesQuery

READERS_MAX = 2
REQUESTS_MAX = 10
"""So many may be read, or wait for it."""
SECONDS_MAX = 30.0
_READER = (sys.executable, "-m", "penstock.pipeline.lake.minute_rows")


class LakeReads(Service):
    def __init__(self, writer: ServicePort, directory: str) -> None:
        super().__init__(writer)
        self._directory = str(directory)  # Encoders know no other kind of text.
        self._requests = 0
        self._readers = asyncio.Semaphore(READERS_MAX)

    async def minutes(self, query: MinutesQuery) -> dict[str, Any]:
        if not self._directory:
            raise RequestError(Fault.NO_LAKE)
        if self._requests >= REQUESTS_MAX:
            raise RequestError(Fault.LAKE_LIMIT, str(REQUESTS_MAX))
        question = {"lake": self._directory, **msgspec.to_builtins(query)}
        self._requests += 1
        try:
            async with self._readers:
                answer = msgspec.json.decode(await _asked(msgspec.json.encode(question)))
        finally:
            self._requests -= 1
        if "error" in answer:
            raise RequestError(Fault.LAKE_UNREADABLE, answer["error"])
        return {"queue": query.queue, "step": query.step, "rows": answer["rows"]}


async def _asked(question: bytes) -> bytes:
    """The answer of a child process. The process ends with the request, whatever happens."""
    child = await asyncio.create_subprocess_exec(*_READER, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            answer, _ = await child.communicate(question)
    except TimeoutError:
        raise RequestError(Fault.LAKE_UNREADABLE, f"it took more than {SECONDS_MAX:g} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        raise RequestError(Fault.LAKE_UNREADABLE, f"the reader ended with exit code {child.returncode}")
    return answer
