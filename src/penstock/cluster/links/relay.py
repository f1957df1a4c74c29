"""WebSockets that go on in another process: a glovebox session stays in the process that has begun it.

The number of a session names that process. A connection which continues the session elsewhere is passed on to it:
first who the client is and what it has asked for, then all bytes in both directions. If it cannot be reached, the
session is gone, and the client has a new one here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import cast

from penstock.broker.quotas.meter import Meter
from penstock.cluster.links.codec import LENGTH_BYTES, Frames, Introduce, PassOn, encode, frame
from penstock.dialects.wire.http import Headers, Request
from penstock.limits import LINK_SILENCE_SECONDS_MAX, SESSION_ID_MAX, SESSION_PLACES
from penstock.model.access import Access

Receive = Callable[[asyncio.Transport, Headers, Access, bytes], None]
"""Continue with a connection: its headers, its identity, and what its client has sent since."""

Connect = Callable[[int, Callable[[], asyncio.Protocol]], Awaitable[None]]
"""To the relay of another process. Raises `OSError` if it does not listen."""


class Relay:
    receive: Receive  # Set before others can connect.

    def __init__(self, process: int, connect: Connect) -> None:
        """`process`: the number of this one. If it is too large for the number of a session, its sessions go on only
        here."""
        self._process = process % SESSION_PLACES
        self._connect = connect
        self._passing: set[asyncio.Task[None]] = set()

    def arrival(self) -> asyncio.Protocol:
        """For a connection from another relay."""
        return _Arrival(self.receive)

    def new_session(self) -> int:
        """A number that cannot be guessed, and names this process."""
        return secrets.randbelow((SESSION_ID_MAX + 1) // SESSION_PLACES) * SESSION_PLACES + self._process

    def elsewhere(self, headers: Headers) -> int | None:
        """The other process that has the session which these headers continue."""
        wanted = headers.get(b"reconnect-as", b"")
        if not wanted.isdigit() or len(wanted) > len(str(SESSION_ID_MAX)):
            return None
        process = int(wanted) % SESSION_PLACES
        return None if process == self._process else process

    def pass_on(
        self,
        process: int,
        request: Request,
        transport: asyncio.Transport,
        rest: bytes,
        meter: Meter | None,
        otherwise: Callable[[], None],
    ) -> None:
        """Let another process continue with the connection of a client. `otherwise`: it cannot be reached."""
        transport.pause_reading()
        near = _Near(meter)
        transport.set_protocol(near)
        facts = Introduce(1, request.access, request.address, "glovebox")
        wanted = PassOn(request.headers)
        far = _Far(near, transport, frame([encode(facts), encode(wanted)]) + rest, otherwise)
        task = asyncio.create_task(self._reach(process, far))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _reach(self, process: int, far: _Far) -> None:
        try:
            async with asyncio.timeout(LINK_SILENCE_SECONDS_MAX):
                await self._connect(process, lambda: far)
        except OSError:  # Also if that took too long.
            far.connection_lost(None)


class _Half(asyncio.Protocol):
    """One of two connections that are one: what it receives, the other sends."""

    other: asyncio.Transport | None = None

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "nothing is read before there is another"
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other:
            self.other.close()


class _Near(_Half):
    """The connection of the client. It is not read until the other process can be written to."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter

    def connection_lost(self, error: Exception | None) -> None:
        if self._meter is not None:
            self._meter.close()
        super().connection_lost(error)


class _Far(_Half):
    """The connection to the other process."""

    def __init__(self, near: _Near, client: asyncio.Transport, start: bytes, otherwise: Callable[[], None]) -> None:
        self.other = client
        self._near = near
        self._start = start
        self._otherwise = otherwise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self.other is not None
        self._near.other = far = cast("asyncio.Transport", transport)
        far.write(self._start)
        if self.other.is_closing():
            far.close()
        else:
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        assert self.other is not None
        if self._near.other or self.other.is_closing():
            super().connection_lost(error)
        else:
            self.other.resume_reading()
            self._otherwise()


class _Arrival(asyncio.Protocol):
    """A connection that another process passes on, until it is known whose it is."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._start = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._start += data
        end = LENGTH_BYTES + int.from_bytes(self._start[:LENGTH_BYTES])
        if len(self._start) < max(end, LENGTH_BYTES):
            return
        facts, wanted = Frames().receive(self._start[:end])
        assert isinstance(facts, Introduce)
        assert isinstance(wanted, PassOn)
        assert self._transport is not None
        self._receive(self._transport, wanted.headers, facts.access, self._start[end:])
