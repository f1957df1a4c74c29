"""A broker that waits until it owns the log: it listens where it will serve, and answers that it cannot serve yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable

import msgspec

from penstock.config.config import Address, Config
from penstock.dialects.etzel.codec import refusal
from penstock.errors import LeaseHeldError, Reason, StoreError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_READ_SECONDS_MAX = 10.0
_WHY = "another broker owns the log, and this one waits"
_LINE = refusal(Reason.UNAVAILABLE.name, reason=_WHY) + b"\n"


class Standby:
    def __init__(self, config: Config, context: ssl.SSLContext | None) -> None:
        self._config = config
        self._context = context
        self._listeners: list[asyncio.Server] = []
        self._busy: set[asyncio.Task[None]] = set()

    async def until(self, acquire: Callable[[], None], stop: asyncio.Event) -> bool:
        """Wait until the log is ours. False: the broker is to stop."""
        try:
            while not stop.is_set():
                try:
                    await asyncio.to_thread(acquire)
                    return True
                except LeaseHeldError as error:
                    await self._listen(str(error))
                except StoreError as error:
                    if not self._listeners:
                        raise
                    logger.warning("store_unreachable", extra={"reason": str(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await stop.wait()
            return False
        finally:
            for listener in self._listeners:
                listener.close()
            for task in self._busy:
                task.cancel()

    async def _listen(self, reason: str) -> None:
        if self._listeners:
            return
        for address, answer in (
            (self._config.http.address, self._answer_http),
            (self._config.lines.address, self._answer_lines),
        ):
            self._listeners.append(await asyncio.start_server(answer, *address, ssl=self._context))
        http = Address(*self._listeners[0].sockets[0].getsockname()[:2])
        logger.info("standing_by", extra={"http": str(http), "reason": reason})

    async def _answer_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._answer(reader, writer, b"\r\n\r\n", _response)

    async def _answer_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._answer(reader, writer, b"\n", lambda _: _LINE)

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        end: bytes,
        answer: Callable[[bytes], bytes],
    ) -> None:
        """Answer the first request of a connection, and close it."""
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            async with asyncio.timeout(_READ_SECONDS_MAX):
                writer.write(answer(await reader.readuntil(end)))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # Nobody to answer.
        finally:
            self._busy.discard(task)
            writer.close()


def _response(head: bytes) -> bytes:
    if head.split(b" ")[1:2] == [b"/health"]:
        kind, body = "text/plain", f"red: {_WHY}".encode()
    else:
        error = Reason.UNAVAILABLE
        kind, body = "application/json", msgspec.json.encode({"error": error.explain(_WHY), "code": error.code})
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    return b"HTTP/1.1 503 Service Unavailable\r\n" + fields.encode() + body
