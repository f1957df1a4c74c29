"""The line shell: JSON over plain TCP, one command a line. All of it without tasks or futures.

A read is split into its lines at once, and all of them go to the conversation in one loop; everything that is sent in
one turn of the event loop leaves in one write. What a connection may hold in memory is bounded everywhere: the line
that is not complete, the commands under way, the replies that the client does not read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from penstock.dialects.wire.conversation import Conversation, Peer
from penstock.limits import (
    BACKLOG_MAX,
    BODY_BYTES_MAX,
    LIGHT_BYTES_MAX,
    LINES_PART_BYTES,
    LINES_PART_BYTES_CROWDED,
    LINES_PER_TURN_CROWDED_MAX,
    LINES_PER_TURN_MAX,
    LINES_REPLY_BYTES_MAX,
    LINES_UNSENT_BYTES_HIGH,
    REFUSED_LOGIN_SECONDS,
    UNREAD_BYTES_DEFAULT,
)
from penstock.server.shells.misdirected import HTTP_ANSWER, is_misdirected
from penstock.server.shells.pausing import Pausing
from penstock.server.shells.peer import LoopPeer
from penstock.server.shells.turns import Turns
from penstock.server.shells.unread import Unread
from penstock.server.writer.port import ClientPort

logger = logging.getLogger(__name__)

_TOO_LARGE = "TOO_LARGE"
_BUSY = "UNAVAILABLE"
_KEEPALIVE_PROBES = 3
_SWEEPS_PER_SECOND = 2
_LINGER_SWEEPS = 1  # How long a client may take to close after its last reply.
_FORGET_BITS = 4  # How fast large replies are forgotten: to a sixteenth with each write.

Line = bytes | str  # A whole line, or the error that answers one which could not be kept.


class LineConversation(Conversation, Protocol):
    """What this shell needs to know beyond what every shell does."""

    @property
    def under_way(self) -> int:
        """Commands that are not answered yet."""

    @property
    def asleep(self) -> bool:
        """The client waits to be woken, for as long as it takes."""

    @property
    def guest(self) -> bool:
        """The client has not shown yet that it may come in."""

    def refuse(self, error: str) -> None:
        """Answer a line that could not be kept."""

    def settle(self) -> None:
        """What came together has come."""


class LineLimits(Protocol):
    @property
    def connections_max(self) -> int: ...
    @property
    def line_bytes_max(self) -> int: ...
    @property
    def commands_max(self) -> int: ...
    @property
    def buffered_bytes_max(self) -> int: ...
    @property
    def unsent_bytes_max(self) -> int: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def slow_client_seconds(self) -> float: ...
    @property
    def keepalive_seconds(self) -> int: ...


class LineServer:
    """All connections of one listening address."""

    def __init__(
        self,
        loop: ClientPort,
        limits: LineLimits,
        converse: Callable[[Peer], LineConversation],
        refusal: Callable[[str], bytes],
        turns: Turns | None = None,
        unread: Unread | None = None,
    ) -> None:
        self.turns = turns or Turns()
        self.unread = unread or Unread(UNREAD_BYTES_DEFAULT)
        self.loop = loop
        self.limits = limits
        self.converse = converse
        self.refusal = refusal  # An error in the dialect's form, where there is no conversation to tell it.
        self.connections: set[LineConnection] = set()
        self.buffered_bytes = 0  # Of lines that are not complete yet.
        self.lines_received = 0
        self.stopping = False
        self.sweeps = 0
        self._unflushed: list[LineConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, backlog: int = BACKLOG_MAX) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        self._sweep()
        return await loop.create_server(lambda: LineConnection(self), host, port, backlog=backlog)

    def _sweep(self) -> None:
        """A coarse clock for all connections: cheaper than a timer for each."""
        self.sweeps += 1
        for connection in list(self.connections):
            connection.check_time(self.sweeps)
        self._sweeper = asyncio.get_running_loop().call_later(1 / _SWEEPS_PER_SECOND, self._sweep)

    def flush_soon(self, connection: LineConnection) -> None:
        """Send what a connection has to say when this turn has ended."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    def stop(self) -> None:
        """Finish what is in flight, take nothing new."""
        self.stopping = True
        for connection in list(self.connections):
            connection.stop()

    def close(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()


class LineConnection(LoopPeer, Pausing, asyncio.Protocol):
    __slots__ = (
        "_backlog",
        "_begun",
        "_begun_at",
        "_choked_since",
        "_conversation",
        "_ended",
        "_finished_at",
        "_flush_is_due",
        "_is_new",
        "_out",
        "_parked",
        "_parked_at",
        "_paused",
        "_reply_bytes",
        "_server",
        "_since",
        "_skipping",
        "_taken",
        "_transport",
        "_writable",
    )

    def __init__(self, server: LineServer) -> None:
        super().__init__(server.loop)
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._conversation: LineConversation | None = None  # None: not taken, or over.
        self._is_new = True  # Its first line is not complete.
        self._begun = bytearray()  # A line that is not complete.
        self._begun_at = 0  # The sweep when it began.
        self._skipping = False  # The line that is not complete is not kept.
        self._parked = b""
        self._parked_at = 0
        self._backlog: deque[Line] = deque()  # Lines that wait for room; they come before what is parked.
        self._taken: list[Line] = []  # Lines that are being handed to the conversation.
        self._out: list[bytes] = []  # Frames that this turn sends.
        self._flush_is_due = False
        self._reply_bytes = BODY_BYTES_MAX  # Of a reply lately: those under way may be as large.
        self._writable = True
        self._paused = False
        self._ended = False  # The client has said that it sends no more.
        self._choked_since = (0, 0)  # Sweep, and bytes unsent, when the client last read some.
        self._since = server.sweeps
        self._finished_at = 0  # The sweep when nothing was left to be said.

    # ── The transport's side ────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name.
        self._transport.set_write_buffer_limits(high=LINES_UNSENT_BYTES_HIGH)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections_max:
            self._out.append(server.refusal("TOO_MANY_CONNECTIONS"))
            self._finish()
            return
        _find_dead_peers(self._transport.get_extra_info("socket"), server.limits.keepalive_seconds)
        self._conversation = server.converse(self)
        self._conversation.opened()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        self._server.unread.note(self, 0)
        self._leave()

    def data_received(self, data: bytes) -> None:
        if self._conversation is None:
            if len(data) > LIGHT_BYTES_MAX:
                self._pause(True)  # It is over: what still comes is thrown away, as slowly as it would be handled.
                self._server.turns.join(self)
            return
        self._since = self._server.sweeps
        turns = self._server.turns
        if len(data) <= LIGHT_BYTES_MAX and not (self._backlog or self._parked):
            turns.light += 1
            self._park(data)
            if self.take_turn(crowded=True):
                turns.join(self)
        else:
            self._park(data)
            turns.begin(self)

    def take_turn(self, *, crowded: bool) -> bool:
        """Take lines that were read, if there is room; read on when none are left."""
        conversation = self._conversation
        if conversation is None:
            self._pause(False)
            return False
        room = self._room(conversation, LINES_PER_TURN_CROWDED_MAX if crowded else LINES_PER_TURN_MAX)
        if room and self._waits:
            self._flush_is_due = True  # In a moment, by us.
            lines = self._next_lines(room, LINES_PART_BYTES_CROWDED if crowded else LINES_PART_BYTES)
            if self._is_new and self._turn_away(lines):
                return False
            self._take(lines)
        self._pause_if_needed()
        self.flush()
        return room > 0 and self._may_go_on()

    def _pause_if_needed(self) -> None:
        if self._conversation is not None:
            self._pause(self._waits or not self._writable or self._server.stopping)

    @property
    def _waits(self) -> bool:
        """There are lines that had to wait."""
        return bool(self._backlog or self._parked)

    def _may_go_on(self) -> bool:
        """There are lines that had to wait, and need not any more."""
        conversation = self._conversation
        return conversation is not None and self._waits and self._room(conversation, 1) > 0

    def _turn_away(self, lines: list[Line]) -> bool:
        """End a connection whose first line shows that it speaks another protocol, before anything is carried out."""
        first = lines[0] if lines else self._begun
        self._is_new = not lines
        if isinstance(first, str) or not is_misdirected(first):
            return False
        if self._transport and first[:1].isalpha():
            self._transport.write(HTTP_ANSWER)
        self.close("the client speaks another protocol")
        return True

    def eof_received(self) -> bool:
        """A client may close its side and still wait for its replies. A line without an end is no command."""
        self._ended = True
        conversation = self._conversation
        return conversation is not None and bool(conversation.under_way or self._waits)

    def pause_writing(self) -> None:
        self._writable = False
        self._pause(True)
        self._count_unread()

    def _count_unread(self) -> None:
        if self._transport:
            self._server.unread.note(self, self._transport.get_write_buffer_size())

    def give_up_on_client(self) -> None:
        self.abort()

    def resume_writing(self) -> None:
        self._writable = True
        self._server.unread.note(self, 0)
        self._pause_if_needed()
        if self._may_go_on():
            self._server.turns.join(self)

    # ── Lines ───────────────────────────────────────────────────────────────────────────────────────────────

    def _split(self, data: bytes) -> list[Line]:
        """The lines that are complete now."""
        lines: list[Line] = data.split(b"\n")  # type: ignore[assignment]
        rest = cast("bytes", lines.pop())
        if lines:
            if self._skipping:
                self._skipping = False
                del lines[0]
            elif self._begun:
                lines[0] = bytes(self._begun) + cast("bytes", lines[0])
                self._forget_begun()
            largest = self._server.limits.line_bytes_max
            if len(data) > largest or (lines and len(lines[0]) > largest):
                lines = [_TOO_LARGE if len(line) > largest else line for line in lines]
        if rest and not self._skipping:
            self._keep(rest, lines)
        return lines

    def _keep(self, rest: bytes, lines: list[Line]) -> None:
        """Keep the beginning of a line. One that gets too long is answered now, and dropped as it comes."""
        server, begun = self._server, self._begun
        if not begun:
            self._begun_at = server.sweeps
        begun += rest
        server.buffered_bytes += len(rest)
        too_large = len(begun) > server.limits.line_bytes_max
        if too_large or server.buffered_bytes > server.limits.buffered_bytes_max:
            lines.append(_TOO_LARGE if too_large else _BUSY)
            self._skipping = True
            self._forget_begun()

    def _forget_begun(self) -> None:
        self._server.buffered_bytes -= len(self._begun)
        self._begun = bytearray()

    def _next_lines(self, most: int, part_bytes: int) -> list[Line]:
        backlog = self._backlog
        if backlog:
            return [backlog.popleft() for _ in range(min(most, len(backlog)))]
        lines = self._split(self._next_part(part_bytes))
        self._server.lines_received += len(lines)
        if len(lines) > most:
            backlog.extend(lines[most:])
            del lines[most:]
        return lines

    def _take(self, lines: list[Line]) -> None:
        """Hand lines to the conversation."""
        conversation = self._conversation
        assert conversation is not None
        received = conversation.received
        self._taken = lines  # Whoever ends the connection clears it, and so this loop.
        try:
            for line in lines:
                if type(line) is bytes:
                    received(line)
                else:
                    conversation.refuse(cast("str", line))
            conversation.settle()
            lines.clear()  # A large one is not to be kept while the connection rests.
        except Exception:
            logger.exception("line_failed")
            self._out.append(self._server.refusal("INTERNAL"))
            self._finish()

    def _room(self, conversation: LineConversation, most: int) -> int:
        """How many lines may be taken now, of so many: the larger the replies have been lately, the fewer."""
        if not self._writable:
            return 0
        limits = self._server.limits
        at_once = min(limits.commands_max, LINES_REPLY_BYTES_MAX // self._reply_bytes)
        return min(most, max(0, max(1, at_once) - conversation.under_way))

    # ── Replies ─────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        assert not binary, "a line is text"
        self._out.append(frame)
        if not self._flush_is_due:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flush_is_due = True
        self._server.flush_soon(self)

    def flush(self) -> None:
        """Send everything that was said in this turn, in one write; then go on with what had to wait."""
        self._flush_is_due = False
        conversation = self._conversation
        if conversation is None:
            self._out.clear()  # It is over: nobody listens.
            return
        if self._out:
            self._write()
        if self._may_go_on():
            self._server.turns.join(self)
        if (self._ended or self._server.stopping) and not (conversation.under_way or self._waits):
            self._finish()

    def _write(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        out.append(b"")
        data = b"\n".join(out)
        self._reply_bytes = max(len(data) // len(out), self._reply_bytes >> _FORGET_BITS) + 1
        self._since = self._server.sweeps
        transport.write(data)
        if transport.get_write_buffer_size() > self._server.limits.unsent_bytes_max:
            transport.abort()
        elif not self._writable:
            self._count_unread()

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        """Refuse the client: take nothing more, and answer in a moment, so that guessing tokens takes long."""
        logger.debug("line_closed", extra={"reason": reason})
        last, self._out = self._out, []
        self._leave()
        self._pause(True)
        self._finished_at = self._server.sweeps
        asyncio.get_running_loop().call_later(REFUSED_LOGIN_SECONDS, self._finish_with, last)

    def _finish_with(self, last: list[bytes]) -> None:
        self._out = last
        self._finish()

    def stop(self) -> None:
        """Let what is under way be answered, and take nothing more."""
        conversation = self._conversation
        if conversation is None:
            return
        self._backlog.clear()
        self._forget_parked()
        self._pause(True)
        if not conversation.under_way:
            self._finish()

    def _finish(self) -> None:
        """Say what is left to be said and that it was all; then wait a moment for the client to close.

        Closed with something unread, a connection is reset, and the client may lose replies that are on their way.
        """
        if self._out:
            self._write()
        self._leave()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._ended:
            transport.close()
            return
        self._finished_at = self._server.sweeps
        transport.write_eof()
        self._pause(False)

    def _leave(self) -> None:
        conversation, self._conversation = self._conversation, None
        self._taken.clear()
        self._backlog.clear()
        self._forget_parked()
        self._forget_begun()
        if conversation:
            conversation.closed()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_time(self, sweeps: int) -> None:
        """Close a connection that rests too long, or whose line or reading takes too long."""
        transport, conversation, limits = self._transport, self._conversation, self._server.limits
        if transport is None:
            return
        if transport.get_write_buffer_size():
            self._check_reading(sweeps)
        elif conversation is None:
            if sweeps - self._finished_at > _LINGER_SWEEPS:
                transport.close()
        elif conversation.under_way:
            return
        elif self._begun or self._skipping:
            if self._passed(self._begun_at) >= limits.slow_client_seconds:
                self._out.append(self._server.refusal("TIMEOUT"))
                self._finish()
        elif not conversation.asleep:
            patience = limits.slow_client_seconds if conversation.guest else limits.idle_seconds
            if self._passed(self._since) >= patience:
                self._finish()

    def _passed(self, since: int) -> float:
        return (self._server.sweeps - since - 1) / _SWEEPS_PER_SECOND

    def _check_reading(self, sweeps: int) -> None:
        """A client that reads nothing of what it is sent loses its place."""
        assert self._transport is not None
        since, unsent = self._choked_since
        left = self._transport.get_write_buffer_size()
        if not since or left != unsent:
            self._choked_since = (sweeps, left)
        elif (sweeps - since) / _SWEEPS_PER_SECOND >= self._server.limits.slow_client_seconds:
            self._transport.abort()


def _find_dead_peers(connection: socket.socket, seconds: int) -> None:
    """A sleeper may be silent for days: let the kernel ask whether it is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // _KEEPALIVE_PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
