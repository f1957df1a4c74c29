"""One HTTP/1.1 connection to the broker: requests leave in order, and their answers arrive in that order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import NamedTuple, Protocol, cast

import httptools

_STREAM_BYTES_HIGH = 1 << 20  # Unread bytes of a stream at which the broker has to wait.
# A network that has gone silent is noticed after about a minute, whether something is on its way or not.
_SILENCE = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 60_000),
)


class LostError(Exception):
    """The connection ended before the answer was complete."""


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]  # Names in lower case.
    body: bytes


class _Exchange(Protocol):
    """A request that waits for its answer."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, error: Exception) -> None: ...


class Connection(asyncio.Protocol):
    """Made by `asyncio.create_connection`. Once it is closed, it stays closed."""

    def __init__(self) -> None:
        self.closed = False
        self._exchanges: deque[_Exchange] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._reason: Exception | None = None
        self._transport: asyncio.Transport | None = None

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Write a request. The future gets its answer, or a `LostError`."""
        exchange = _Whole()
        self._begin(request, exchange)
        return exchange.answer

    def stream(self, request: bytes) -> Stream:
        """Write a request whose answer is read while it arrives."""
        assert self._transport is not None
        exchange = Stream(self._transport)
        self._begin(request, exchange)
        return exchange

    def close(self) -> None:
        """Also fails what still waits for an answer."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> bool:
        """Tell the broker that no more is wanted: it answers at once what waits. False if that cannot be told."""
        if self.closed or self._transport is None or not self._transport.can_write_eof():
            return False
        self.closed = True
        self._transport.write_eof()
        return True

    @property
    def idle(self) -> bool:
        return not self._exchanges

    def _begin(self, request: bytes, exchange: _Exchange) -> None:
        if self.closed or self._transport is None:
            exchange.lost(LostError("the connection is closed"))
            return
        self._exchanges.append(exchange)
        self._transport.write(request)

    # ── Called by asyncio ───────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # That of uvloop is one by its methods only.
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _SILENCE:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._reason = LostError(f"the answer is not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        error = self._reason or LostError(str(exc) if exc else "the broker closed the connection")
        error.__cause__ = exc
        while self._exchanges:
            self._exchanges.popleft().lost(error)

    # ── Called by the parser ────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._exchanges:
            self._exchanges[0].head(self._parser.get_status_code(), self._headers)

    def on_body(self, data: bytes) -> None:
        if self._exchanges:
            self._exchanges[0].body(data)

    def on_message_complete(self) -> None:
        if not self._exchanges:  # An answer to nothing, such as "too many connections".
            self.close()
            return
        closes = self._headers.get(b"connection", b"").lower() == b"close"
        self._exchanges.popleft().end()
        if closes:
            self.close()


class _Whole:
    """An answer that is wanted as a whole."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers

    def body(self, data: bytes) -> None:
        self._pieces.append(data)

    def end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, self._headers, b"".join(self._pieces)))

    def lost(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Stream:
    """An answer that is read while it arrives. If nobody reads, the broker has to wait."""

    def __init__(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[tuple[int, dict[bytes, bytes]]] = loop.create_future()
        self._transport = transport
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    async def read(self) -> bytes:
        """What has arrived since the last call; empty at the end. Raises `LostError` if the end is missing."""
        if not (self._pieces or self._ended):
            self._arrived.clear()
            await self._arrived.wait()
        data, self._pieces, self._bytes = b"".join(self._pieces), [], 0
        if not data and self._error:
            raise self._error
        self._transport.resume_reading()
        return data

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if not self.begun.done():
            self.begun.set_result((status, headers))

    def body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._bytes += len(data)
        self._arrived.set()
        if self._bytes > _STREAM_BYTES_HIGH:
            self._transport.pause_reading()

    def end(self) -> None:
        self._ended = True
        self._arrived.set()

    def lost(self, error: Exception) -> None:
        self._error = error
        if not self.begun.done():
            self.begun.set_exception(error)
        self.end()
