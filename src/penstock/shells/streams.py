"""Responses that are sent piece by piece, at the pace of the client."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Protocol

from penstock.dialects.wire.http import Stream
from penstock.shells import outbox
from penstock.shells.exchanges import Exchange

_RESET = struct.pack("ii", 1, 0)  # struct linger: close at once, and throw away what was not sent.


class Outlet(Protocol):
    """The connection that a stream is sent on."""

    transport: asyncio.Transport | None
    choked: bool

    def end_stream(self) -> None:
        """The stream is complete."""


class Flow:
    """A stream whose turn it is. It is asked for one piece at a time, and for the next when the client has taken that
    one."""

    __slots__ = ("_asked", "_connection", "_exchange", "_length", "_over", "endless", "source")

    def __init__(self, connection: Outlet, exchange: Exchange, stream: Stream) -> None:
        self._connection = connection
        self._exchange = exchange
        self.source = stream.source
        self.endless = stream.endless
        self._length = stream.length
        self._asked = False
        self._over = False

    @property
    def held_bytes(self) -> int:
        """What the next pieces are made of, if it is in memory."""
        return getattr(self.source, "held_bytes", 0)

    def framing(self) -> bytes:
        """The header lines that say how the body ends."""
        exchange, length = self._exchange, self._length
        if length is not None:
            framing = b"Content-Length: %d\r\n" % length
        elif exchange.chunked:
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            framing = b""  # The end of the connection is the end of the body.
            exchange.keep_alive = False
        exchange.chunked = exchange.chunked and length is None
        return framing if exchange.keep_alive else framing + b"Connection: close\r\n"

    def begin(self, *, finish: bool) -> None:
        """`finish`: end the stream now if it would not end by itself."""
        if self._exchange.method == b"HEAD":
            self._exchange.chunked = False
            self.end()
            return
        ending = finish and self.endless
        if ending:
            self.source.finish()
        if ending or not self._connection.choked:
            self.pull()

    def pull(self) -> None:
        if not self._asked and not self._over:
            self._asked = True
            self.source.pull(self)

    def give(self, data: bytes) -> None:
        self._asked = False
        transport = self._connection.transport
        if self._over or transport is None or transport.is_closing():
            return
        if data:
            outbox.send(self._connection, self._framed(data))
        if not self._connection.choked:
            self.pull()

    def _framed(self, data: bytes) -> tuple[bytes, ...]:
        return (b"%x\r\n" % len(data), data, b"\r\n") if self._exchange.chunked else (data,)

    def end(self) -> None:
        if not self._over:
            self.close()
            if self._connection.transport and self._exchange.chunked:
                self._connection.transport.write(b"0\r\n\r\n")
            self._connection.end_stream()

    def fail(self) -> None:
        """End the connection so that the client notices that something is missing."""
        transport = self._connection.transport
        if self._over or transport is None:
            return
        if self._exchange.chunked or self._length is not None:
            transport.close()
        else:
            # Where the end of the connection is the end of the body, only a reset shows that it is not.
            link = transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    def cut_off(self) -> None:
        if self._connection.transport:
            self._connection.transport.abort()

    def close(self) -> None:
        self._over = True
        self.source.close()
