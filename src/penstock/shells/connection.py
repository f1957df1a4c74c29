"""The base of every connection, for any protocol: reading, time-outs, back-pressure, turns and closing.

A shell adds its protocol: what bytes mean (`data_received`, `take_turn`), whether it is busy (`_is_busy`), and how it
refuses and closes. No connection has a task, a future or a timer of its own: one sweep twice a second handles the
time-outs of all of them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Collection
from typing import ClassVar, Protocol, cast

from penstock.broker.quotas.quotas import Quotas
from penstock.broker.room import Room
from penstock.broker.turns import Turns
from penstock.dialects.wire.http import error_response
from penstock.errors import Fault
from penstock.limits import BACKLOG_MAX, PART_BODY_BYTES, PART_BODY_BYTES_CROWDED, UNREAD_BYTES_DEFAULT
from penstock.model.access import Access
from penstock.model.answers import Refused
from penstock.model.connections import ConnectionState
from penstock.shells.metered import Metered

logger = logging.getLogger(__name__)

SWEEPS_PER_SECOND = 2
_NOTE_SECONDS = 60
_UNREAD_BYTES_COUNTED = 64 << 10  # Less is only counted with every sweep.


class Limits(Protocol):
    """Those that all shells have."""

    @property
    def connections_max(self) -> int: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def slow_client_seconds(self) -> float: ...
    @property
    def buffered_bytes_max(self) -> int: ...


class Server:
    """All connections of one listening address."""

    def __init__(self, limits: Limits, turns: Turns | None, room: Room | None, quotas: Quotas | None) -> None:
        self.limits = limits
        self.quotas = quotas
        self.turns = turns or Turns()
        self.room = room or Room(UNREAD_BYTES_DEFAULT)
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0  # The `kept_bytes` of all connections.
        self.stopping = False
        self.sweeps = 1  # Connections record times as numbers of sweeps; 0 means none.
        self._sweeper: asyncio.TimerHandle | None = None
        self._unflushed: list[Flushable] = []
        self._noted_at = 0  # When a misdirected client was last logged.

    async def listen(
        self,
        host: str,
        port: int,
        backlog: int = BACKLOG_MAX,
        first: Callable[[], Connection] | None = None,
        door: socket.socket | None = None,
    ) -> asyncio.Server:
        """`first`: makes connections that later give way to those of `connect`. `door`: a socket to accept them from,
        in place of the address."""
        if self._sweeper is None:
            self._sweep()
        loop = asyncio.get_running_loop()
        if door:
            return await loop.create_server(first or self.connect, sock=door, backlog=backlog)
        return await loop.create_server(first or self.connect, host, port, backlog=backlog)

    def connect(self) -> Connection:
        """A connection that speaks the protocol of this server."""
        raise NotImplementedError

    def plain_refusal(self) -> bytes:
        """What a client without TLS gets on a port with TLS, if it does not speak HTTP."""
        return b""

    def note_misdirected(self, sentence: str) -> None:
        """Log a client that came to the wrong port: now and then, because many may come."""
        if not self._noted_at or self.sweeps - self._noted_at >= _NOTE_SECONDS * SWEEPS_PER_SECOND:
            self._noted_at = self.sweeps
            logger.warning("misdirected", extra={"reason": sentence})

    def _sweep(self) -> None:
        """The coarse clock of all connections: cheaper than a timer for each request."""
        self.sweeps += 1
        for connection in list(self.connections):
            try:
                connection.check_time()
            except Exception as error:  # The others have their time-outs all the same.
                connection.surprised(error)
        self.room.relieve()
        self._sweeper = asyncio.get_running_loop().call_later(1 / SWEEPS_PER_SECOND, self._sweep)

    def make_room(self, asking: Connection) -> bool:
        """Too much is kept of incomplete requests: the connection that keeps the most loses it. False if that is the
        connection that asks for more."""
        while self.buffered_bytes > self.limits.buffered_bytes_max:
            greediest = max(self.connections, key=lambda connection: connection.kept_bytes)
            if greediest is asking:
                return False
            greediest.drop_kept()
        return True

    def flush_soon(self, connection: Flushable) -> None:
        """Call `flush` when this turn of the event loop has ended."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            try:
                connection.flush()
            except Exception as error:  # The others have their answers all the same.
                connection.surprised(error)

    def stop(self) -> None:
        """Finish the current requests, and accept nothing new."""
        self.stopping = True
        for connection in list(self.connections):
            connection.stop()

    def expel(self, ended: Collection[Access]) -> None:
        """End what clients with these identities have under way, and identify all others again."""
        for connection in list(self.connections):
            connection.expel(ended)

    def close(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.disconnect()


class Flushable(Protocol):
    def flush(self) -> None:
        """Send all frames of this turn in one write."""

    def surprised(self, error: Exception) -> None: ...


class Connection(Metered):
    """One client's connection. It has more than 30 methods: those that all shells share, and those that each adds."""

    __slots__ = (
        "_parked",
        "_parked_at",
        "_paused",
        "_peer_address",
        "_server",
        "_since",
        "_turns",
        "_unsent",
        "begun_at",
        "choked",
        "heavy_at",
        "is_light",
        "kept_bytes",
        "opened_at",
        "transport",
        "was_cheap",
    )

    PROTOCOL: ClassVar[str] = "HTTP"  # As people call it.
    SURPRISE: ClassVar[str] = "request_failed"  # What is logged of an error that no code expects.
    # How much of what was read is handled in one turn: alone, and while others wait.
    PART_BYTES: ClassVar[int]
    PART_BYTES_CROWDED: ClassVar[int]

    _server: Server

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._turns = server.turns
        self.transport = None
        self._parked = b""  # What was read and is not handled yet, from `_parked_at` on.
        self._parked_at = 0
        self._paused = False  # Nothing is read.
        self._peer_address = ""  # Once it is asked for.
        self.was_cheap = False  # The last part that was handled took little time.
        self.is_light = True  # What comes in small reads counts as light: it sends one request after the other.
        self.heavy_at = 0  # When it last sent more.
        self.choked = False  # The client does not read what it is sent.
        self._unsent = (0, 0)  # When the client last read something, and how much was left. 0: all is sent.
        self.kept_bytes = 0  # Of a request that is not complete: part of the server's `buffered_bytes`.
        self.begun_at = 0
        self.opened_at = server.sweeps
        self._since = server.sweeps  # When the client was last active.

    @property
    def holder(self) -> Connection:
        """Of the answers to its commands."""
        return self

    @property
    def address(self) -> str:
        """Of the client, without its port. Commands for other processes ask for it each time."""
        if not self._peer_address and self.transport:
            peer = self.transport.get_extra_info("peername")
            self._peer_address = str(peer[0]) if peer else ""
        return self._peer_address

    # ── The transport's side ────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name.
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections_max:
            self._refuse_connection(None)
        elif refused := self._begin_meter():
            self._refuse_connection(refused)
        else:
            try:
                self._begin()
            except Exception as error:
                self.surprised(error)
            if self.meter is not None:  # Soon: the transport begins to read after this.
                asyncio.get_running_loop().call_soon(self._rest_after_faults)

    def _refuse_connection(self, refused: Refused | None) -> None:
        """There are too many connections; or of one client, if something is refused."""
        raise NotImplementedError

    def _begin(self) -> None:
        """The connection is accepted."""

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self._server.connections.discard(self)
        self._server.room.leave(self)
        self.end_meter()
        self._forget_parked()
        self.keep(0)
        self._leave()

    def _leave(self) -> None:
        """The connection is gone, or will be soon: drop its current requests."""
        raise NotImplementedError

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            self._read(data)
        except Exception as error:
            self.surprised(error)

    def _read(self, data: bytes) -> None:
        """Handle what came, or a first part of it."""
        raise NotImplementedError

    def take_turn(self, *, crowded: bool) -> bool:
        try:
            return self._take_part(crowded)
        except Exception as error:
            self.surprised(error)
            return False

    def _take_part(self, crowded: bool) -> bool:
        """Handle a part of what was read: see `Turns`. True: there is more that need not wait."""
        raise NotImplementedError

    def _pause(self, wanted: bool) -> None:
        """Stop or resume reading. A client that does not read its answers, or asks faster than it can be answered, is
        not read from."""
        if self.transport and wanted != self._paused:
            self._paused = wanted
            if wanted:
                self.transport.pause_reading()
            elif not self.transport.is_closing():
                self.transport.resume_reading()

    def _wait_for_turn(self, data: bytes, *, begins: bool) -> None:
        """Keep what was read for the rotation. `begins`: a first part of it may be handled now."""
        self.is_light, self.heavy_at = False, self._server.sweeps
        self._park(data)
        if not (begins and self._turns.begin(self)):
            self._pause(True)
            self._turns.join(self)

    def _park(self, data: bytes) -> None:
        self._parked = self._forget_parked() + data if self._parked else data

    def _next_part(self, crowded: bool) -> bytes:
        """Take as much of what is parked as one turn allows. What may be many requests is handled in small parts; the
        rest of one body, which only has to be kept, in a large one."""
        size = self.PART_BYTES_CROWDED if crowded else self.PART_BYTES
        missing = self._missing_bytes()
        if missing > size:
            size = max(size, min(missing, PART_BODY_BYTES_CROWDED if crowded else PART_BODY_BYTES))
        at = self._parked_at
        if at + size >= len(self._parked):
            return self._forget_parked()
        self._parked_at = at + size
        return self._parked[at : at + size]

    def _missing_bytes(self) -> int:
        """How much of one body, or one frame, must still come; 0 if that is not known."""
        return 0

    def _forget_parked(self) -> bytes:
        """What was left of it."""
        rest = self._parked[self._parked_at :]
        self._parked, self._parked_at = b"", 0
        return rest

    def keep(self, size: int) -> bool:
        """This many bytes of an incomplete request are kept now. False: too much for all connections together, and
        this one keeps the most."""
        server = self._server
        server.buffered_bytes += size - self.kept_bytes
        self.kept_bytes = size
        return server.buffered_bytes <= server.limits.buffered_bytes_max or server.make_room(self)

    def drop_kept(self) -> None:
        """Refuse the incomplete request, and keep nothing of it."""
        raise NotImplementedError

    def _end_rest(self) -> None:
        if self.begun_at:
            self.begun_at = self._server.sweeps  # The client was kept from completing its request.
        super()._end_rest()

    # ── Surprises ───────────────────────────────────────────────────────────────────────────────────────────

    def surprised(self, error: Exception) -> None:
        """Called where an error is caught that no code expects, whatever the client has sent. One that has not shown
        who it is gets what a wrong token gets, and as late: it learns nothing, and cannot do it often."""
        logger.error(self.SURPRISE, exc_info=error)
        try:
            self._refuse_surprise()
        except Exception:
            logger.exception(self.SURPRISE)
            self.abort()

    def _refuse_surprise(self) -> None:
        """Tell the client, and end the connection."""
        raise NotImplementedError

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def pause_writing(self) -> None:
        self.choked = True
        self._pause(True)
        self._note_unread(self._unread_bytes())

    def resume_writing(self) -> None:
        self.choked = False
        self._note_unread(self._unread_bytes())
        self._go_on()

    def _go_on(self) -> None:
        """There may be room for more."""
        raise NotImplementedError

    def _count_unread(self) -> None:
        """Report what the client has not read, if it is much."""
        size = self._unread_bytes()
        if self._is_unread or size > _UNREAD_BYTES_COUNTED:
            self._note_unread(size)

    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport else 0

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_time(self) -> None:
        """End a connection whose client does not read, does not complete its request, or is silent for too long."""
        if self.transport is None:
            return
        self.is_light = self.is_light or self._passed(self.heavy_at) > 0
        slow_seconds = self._server.limits.slow_client_seconds
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent[1]:
            self._unsent = (self._server.sweeps, unsent) if unsent else (0, 0)
            self._note_unread(self._unread_bytes())
        if unsent:
            if self._server.sweeps - self._unsent[0] >= slow_seconds * SWEEPS_PER_SECOND:
                self.abort()
        elif self._resting or self._is_busy():
            return
        elif self.begun_at:
            if self._passed(self.begun_at) >= slow_seconds:
                self._end_incomplete(slow_seconds)
        elif self._passed(self._since) >= self._patience():
            self._end_idle()

    def _passed(self, since: int) -> float:
        """The minimum number of seconds since a sweep."""
        return (self._server.sweeps - since - 1) / SWEEPS_PER_SECOND

    def _is_busy(self) -> bool:
        """The client waits for the broker, not the other way round."""
        raise NotImplementedError

    def _patience(self) -> float:
        """How many seconds the client may be silent."""
        return self._server.limits.idle_seconds

    def _end_incomplete(self, seconds: float) -> None:
        """The request was not complete after this time."""
        raise NotImplementedError

    def _end_idle(self) -> None:
        """The client has been silent for too long."""
        self.disconnect()

    def describe(self) -> ConnectionState:
        address = self.transport.get_extra_info("peername") if self.transport else None
        return ConnectionState(
            protocol=self.PROTOCOL,
            address="{}:{}".format(*address[:2]) if address else "",
            seconds=(self._server.sweeps - self.opened_at) / SWEEPS_PER_SECOND,
            busy=self._is_busy(),
            unsent_bytes=self.transport.get_write_buffer_size() if self.transport else 0,
        )

    # ── Closing ─────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """The broker stops: accept nothing more, and disconnect when the current requests are answered."""
        raise NotImplementedError

    def expel(self, ended: Collection[Access]) -> None:
        """End the connection, or what it waits for, if it is that of one of these identities."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection when everything is sent."""
        if self.transport:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection, and throw away what is not sent."""
        if self.transport:
            self.transport.abort()


# Clients that speak another protocol than the port that they connect to. A web page can make a browser send HTTP or
# TLS to the line port, with a body that holds JSON lines. So such a client must be recognised before its first line
# is carried out.


_OTHER = re.compile(
    rb"[A-Z][A-Z-]{1,30} "  # A method. No command begins like this: they are JSON objects.
    rb"|[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/\d"
    rb"|\x16\x03"  # As `_TLS`.
)
PLAIN_PORT = "a client uses TLS on a port without TLS: set tls.certificate and tls.key, or let it use http://"
TLS_PORT = "a client without TLS connects to a port with TLS: let it use https://"
_TLS = b"\x16\x03"  # The first record of TLS.


def http_answer(fault: Fault) -> bytes:
    """A whole answer for a client that speaks HTTP where it is not understood."""
    answer = error_response(fault)
    head = b"HTTP/1.1 400 Bad Request\r\n%bConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (answer.headers, len(answer.body)) + answer.body


def is_tls(start: bytes | bytearray) -> bool:
    """Whether a client begins with a TLS handshake."""
    return start.startswith(_TLS)


def is_misdirected(start: bytes | bytearray) -> bool:
    """Whether a client that begins like this speaks another protocol. `start`: its first line, or part of it."""
    return _OTHER.match(start) is not None
