"""What a client has not taken of a large answer: in small pieces, each of which is freed when it is sent.

A transport keeps the whole of what it was given until the last byte of it is sent. Of an answer of 4 MiB of which the
client has taken all but the end, it would keep 4 MiB, and say that a little is unsent. So what the socket does not
take at once goes into an outbox, which takes the place of the transport until it is empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast

from penstock.limits import OUTBOX_PIECE_BYTES

Data = bytes | bytearray | memoryview


class Owner(Protocol):
    transport: asyncio.Transport | None


_SMALL_BYTES = 1 << 10
_TOGETHER_BYTES = 16 << 10  # To copy a larger body costs more than to write it apart from its head.


def takes_at_once(transport: asyncio.Transport, size: int) -> bool:
    """Whether so much may be given to the transport in one piece."""
    return size <= _SMALL_BYTES or (size <= _TOGETHER_BYTES and not transport.get_write_buffer_size())


def send(owner: Owner, parts: Iterable[bytes]) -> None:
    """Write the parts. What is not sent at once takes as much memory as it has bytes. The owner may have another
    transport afterwards."""
    transport = owner.transport
    assert transport is not None
    if isinstance(transport, Outbox):
        transport.writelines(parts)
        return
    if transport.is_closing():
        return
    pieces = _pieces(parts)
    while not transport.get_write_buffer_size():
        piece = next(pieces, None)
        if piece is None:
            return
        transport.write(piece)
    rest = deque(pieces)
    if rest:
        owner.transport = Outbox(owner, transport, rest)


def _pieces(parts: Iterable[Data]) -> Iterator[bytes]:
    """Small parts together, and large ones cut."""
    together = b""
    for part in parts:
        if len(together) + len(part) <= OUTBOX_PIECE_BYTES:
            together = together + bytes(part) if together else bytes(part)
            continue
        if together:
            yield together
            together = b""
        for start in range(0, len(part), OUTBOX_PIECE_BYTES):
            yield bytes(part[start : start + OUTBOX_PIECE_BYTES])
    if together:
        yield together


class Outbox(asyncio.Transport, asyncio.Protocol):
    """It stands between a connection and its transport, and is choked until it is empty. It has many methods because
    it has those of both sides."""

    def __init__(self, owner: Owner, transport: asyncio.Transport, pieces: deque[bytes]) -> None:
        super().__init__()
        self._owner = owner
        self._transport = transport
        self._pieces = pieces
        self._bytes = sum(map(len, pieces))
        self._latest = OUTBOX_PIECE_BYTES  # The size of what the transport was given last.
        self._closes = self._ends = False  # When it is empty.
        self._limits = transport.get_write_buffer_limits()
        self._protocol = cast("asyncio.Protocol", transport.get_protocol())
        transport.set_protocol(self)
        self._protocol.pause_writing()
        transport.set_write_buffer_limits(high=0)

    # ── The side of the connection ──────────────────────────────────────────────────────────────────────────

    def write(self, data: Data) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        if not (self._closes or self._ends or self._transport.is_closing()):
            for piece in _pieces(list_of_data):
                self._pieces.append(piece)
                self._bytes += len(piece)

    def get_write_buffer_size(self) -> int:
        unsent = self._transport.get_write_buffer_size()
        return self._bytes + (max(unsent, self._latest) if unsent else 0)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """For the time after it."""
        high = 64 << 10 if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ends = True

    def close(self) -> None:
        self._closes = True
        self._transport.pause_reading()

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def abort(self) -> None:
        self._drop()
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._closes:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)
        self._protocol.pause_writing()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    # ── The side of the transport ───────────────────────────────────────────────────────────────────────────

    def pause_writing(self) -> None:
        """It is choked already."""

    def resume_writing(self) -> None:
        transport, pieces = self._transport, self._pieces
        while pieces:
            piece = pieces.popleft()
            self._bytes -= len(piece)
            self._latest = len(piece)
            transport.write(piece)
            if transport.get_write_buffer_size():
                return
        self._leave()

    def _leave(self) -> None:
        """All is sent: the transport takes its place again."""
        transport, protocol = self._transport, self._protocol
        low, high = self._limits
        transport.set_write_buffer_limits(high, low)
        transport.set_protocol(protocol)
        for owner in (self._owner, protocol):
            if getattr(owner, "transport", None) is self:
                cast("Owner", owner).transport = transport
        if self._ends:
            transport.write_eof()
        if self._closes:
            transport.close()
        else:
            protocol.resume_writing()

    def _drop(self) -> None:
        self._pieces.clear()
        self._bytes = 0

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self._protocol.connection_lost(exc)
