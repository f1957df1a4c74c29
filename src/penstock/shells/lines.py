"""The line shell: JSON over plain TCP, one command per line. No tasks, no futures.

A read is split into its lines at once, and all of them go to the conversation in one loop. What a connection may hold
in memory is limited everywhere: the incomplete line, the unanswered commands, the replies that the client
does not read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from math import inf
from typing import Protocol, cast

from penstock.broker.figures.measures import Samples, one
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.room import Room
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ClientPort
from penstock.dialects.wire.conversation import Conversation, Peer
from penstock.errors import Fault
from penstock.limits import (
    BODY_BYTES_MAX,
    GUEST_BYTES_MAX,
    LINES_PART_BYTES,
    LINES_PART_BYTES_CROWDED,
    LINES_PER_TURN_CROWDED_MAX,
    LINES_PER_TURN_MAX,
    LINES_REPLY_BYTES_MAX,
    LINES_UNSENT_BYTES_HIGH,
    LOGIN_SECONDS_MAX,
    REFUSED_LOGIN_SECONDS,
)
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Refused
from penstock.shells.connection import (
    PLAIN_PORT,
    SWEEPS_PER_SECOND,
    Connection,
    Limits,
    Server,
    http_answer,
    is_misdirected,
    is_tls,
)
from penstock.shells.peer import PeerConnection
from penstock.shells.secure import certificate_name

logger = logging.getLogger(__name__)

_TOO_LARGE = "TOO_LARGE"
_BUSY = "UNAVAILABLE"
_KEEPALIVE_PROBES = 3
_FORGET_BITS = 4  # How fast large replies are forgotten: to a sixteenth with each write.
_LINGER_SECONDS = 0.5  # How long a client may take to close after its last reply.

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
        """The client has not shown a valid token yet."""

    def refuse(self, error: str) -> None:
        """Answer a line that could not be kept."""


class LineLimits(Limits, Protocol):
    @property
    def line_bytes_max(self) -> int: ...
    @property
    def commands_max(self) -> int: ...
    @property
    def unsent_bytes_max(self) -> int: ...
    @property
    def keepalive_seconds(self) -> int: ...


class LineServer(Server):
    """All connections of one listening address."""

    limits: LineLimits

    def __init__(
        self,
        writer: ClientPort,
        limits: LineLimits,
        converse: Callable[[Peer], LineConversation],
        refusal: Callable[..., bytes],
        turns: Turns | None = None,
        room: Room | None = None,
        quotas: Quotas | None = None,
        anonymous: Callable[[str], Access] = lambda _: EVERYTHING,
    ) -> None:
        """`anonymous`: the access of a client that has shown no token, by the name in its certificate."""
        super().__init__(limits, turns, room, quotas)
        self.anonymous = anonymous
        self.writer = writer
        self.converse = converse
        self.refusal = refusal  # An error in the dialect's form, for clients without a conversation.
        self.lines_received = 0

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_lines_connections", one(len(self.connections))
        yield "penstock_lines_buffered_bytes", one(self.buffered_bytes)
        yield "penstock_lines_received_total", one(self.lines_received)

    def connect(self) -> LineConnection:
        return LineConnection(self)

    def plain_refusal(self) -> bytes:
        return self.refusal("TLS_REQUIRED") + b"\n"

    def make_room(self, asking: Connection) -> bool:  # noqa: ARG002 - The line that does not fit is refused.
        return False


class LineConnection(PeerConnection):
    """One connection. It has more than 30 methods because lines, replies and the end decide together what is read."""

    __slots__ = (
        "_begun",
        "_conversation",
        "_ended",
        "_is_new",
        "_reply_bytes",
        "_skipping",
        "_taken",
    )

    PROTOCOL = "lines"
    SURPRISE = "line_failed"
    PART_BYTES = LINES_PART_BYTES
    PART_BYTES_CROWDED = LINES_PART_BYTES_CROWDED

    _server: LineServer
    _backlog: deque[Line]

    dialect = "etzel"

    def __init__(self, server: LineServer) -> None:
        super().__init__(server, server.writer)
        self._conversation: LineConversation | None = None  # None: not begun, or over.
        self._is_new = True  # Its first line is not complete.
        self._begun = bytearray()  # The line that is not complete.
        self._skipping = False  # That line is not kept.
        self._backlog = deque()
        self._reply_bytes = BODY_BYTES_MAX  # The size of a recent reply: the next ones may be as large.
        self._taken: list[Line] = []  # Lines that are being handed to the conversation.
        self._ended = False  # The client has closed its side.

    def _refuse_connection(self, refused: Refused | None) -> None:
        refusal = self._server.refusal
        if refused:
            self._finish(refusal(refused.reason.name, detail=refused.sentence))
        else:
            self._finish(refusal("TOO_MANY_CONNECTIONS"))

    def _begin(self) -> None:
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=LINES_UNSENT_BYTES_HIGH)
        _find_dead_peers(self.transport.get_extra_info("socket"), self._server.limits.keepalive_seconds)
        self.access = self._server.anonymous(certificate_name(self.transport))
        self._conversation = self._server.converse(self)
        self._conversation.opened()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, data: bytes) -> bool:
        self._park(data)
        return self._take_part(crowded=True)

    def _take_part(self, crowded: bool) -> bool:
        conversation = self._conversation
        if conversation is None:  # Further input is discarded, as slowly as it would be handled.
            more = bool(self._forget_parked())
            self._pause(more)
            return more
        self._since = self._server.sweeps
        room = self._room(conversation, LINES_PER_TURN_CROWDED_MAX if crowded else LINES_PER_TURN_MAX)
        if room and self._waits:
            self._flush_is_due = True  # In a moment, by us.
            lines = self._next_lines(room, crowded)
            if self._is_new and self._turn_away(lines):
                return False
            self._count_requests(len(lines))
            self._take(lines)
            self._rest_if_over()
        self._pause_if_needed()
        self.flush()
        return room > 0 and self._may_go_on()

    def _pause_if_needed(self) -> None:
        if self._conversation is None:
            self._pause(self._resting)  # What still comes is thrown away.
        else:
            self._pause(self._waits or self.choked or self._resting or self._server.stopping)

    def _has_ended(self) -> bool:
        return self._conversation is None

    @property
    def _waits(self) -> bool:
        """There are lines that had to wait."""
        return bool(self._backlog or self._parked)

    def _may_go_on(self) -> bool:
        """There are lines that had to wait, and need not any more."""
        conversation = self._conversation
        return conversation is not None and self._waits and self._room(conversation, 1) > 0

    def _go_on(self) -> None:
        self._pause_if_needed()
        if self._may_go_on():
            self._turns.join(self)

    def _turn_away(self, lines: list[Line]) -> bool:
        """End a connection whose first line shows that it speaks another protocol, before anything is carried out."""
        first = lines[0] if lines else self._begun
        self._is_new = not lines
        if isinstance(first, str) or not is_misdirected(first):
            return False
        self._count_fault()
        if is_tls(first):
            self._server.note_misdirected(PLAIN_PORT)
        elif self.transport:
            self.transport.write(http_answer(Fault.WRONG_PORT))
        self.close("the client speaks another protocol")
        return True

    def eof_received(self) -> bool:
        """A client may close its side and still wait for its replies. A line without an end is no command."""
        self._ended = True
        conversation = self._conversation
        return conversation is not None and bool(conversation.under_way or self._waits)

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
                self._drop_line(skipping=False)
            self.begun_at = 0
            largest = self._largest()
            if len(data) > largest or (lines and len(lines[0]) > largest):
                lines = [_TOO_LARGE if len(line) > largest else line for line in lines]
        if rest and not self._skipping:
            self._keep_line(rest, lines)
        return lines

    def _keep_line(self, rest: bytes, lines: list[Line]) -> None:
        """Keep the beginning of a line. One that gets too long is answered now, and dropped as it comes."""
        begun = self._begun
        if not begun:
            self.begun_at = self._server.sweeps
        begun += rest
        too_large = len(begun) > self._largest()
        if too_large or not self.keep(len(begun)):
            lines.append(_TOO_LARGE if too_large else _BUSY)
            self._drop_line(skipping=True)

    def _largest(self) -> int:
        """How long a line may be: short, if no token was shown yet."""
        return GUEST_BYTES_MAX if self.access is NOBODY else self._server.limits.line_bytes_max

    def _drop_line(self, *, skipping: bool) -> None:
        self._skipping = skipping
        self._begun = bytearray()
        self.keep(0)

    def _next_lines(self, most: int, crowded: bool) -> list[Line]:
        backlog = self._backlog
        if backlog:
            return [backlog.popleft() for _ in range(min(most, len(backlog)))]
        lines = self._split(self._next_part(crowded))
        self._server.lines_received += len(lines)
        if len(lines) > most:
            backlog.extend(lines[most:])
            del lines[most:]
        return lines

    def _next_part(self, crowded: bool) -> bytes:
        """From a guest, one line at a time: after a login, lines may be longer."""
        part = super()._next_part(crowded)
        end = part.find(b"\n") + 1 if self._access is NOBODY else 0
        if 0 < end < len(part):
            self._parked = part[end:] + self._forget_parked()
            return part[:end]
        return part

    def _take(self, lines: list[Line]) -> None:
        """Hand lines to the conversation."""
        conversation = self._conversation
        assert conversation is not None
        received = conversation.received
        self._taken = lines  # Ending the connection clears it, and so ends this loop.
        for line in lines:
            if type(line) is bytes:
                received(line)
            else:
                conversation.refuse(cast("str", line))
        conversation.settle()
        lines.clear()  # A large one is not to be kept while the connection rests.

    def _room(self, conversation: LineConversation, most: int) -> int:
        """How many lines may be taken now, up to `most`: the larger recent replies are, the fewer. Replies leave in
        order, so large ones would be kept back for those before them."""
        if self.choked or self._resting or self._server.room.has_waiting(self):
            return 0
        at_once = min(self._server.limits.commands_max, LINES_REPLY_BYTES_MAX // self._reply_bytes)
        return min(most, max(0, max(1, at_once) - conversation.under_way))

    # ── Replies ─────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        assert not binary, "a line is text"
        self._out.append(frame)
        if not self._flush_is_due:
            self._flush_soon()

    def flush(self) -> None:
        self._flush_is_due = False
        conversation = self._conversation
        if conversation is None:
            self._out.clear()  # The connection has ended: nobody reads replies.
            return
        if self._out:
            self._send_out()
        if self._may_go_on():
            self._turns.join(self)
        if (self._ended or self._server.stopping) and not (conversation.under_way or self._waits):
            self._finish()

    def _send_out(self) -> None:
        out, self._out = self._out, []
        out.append(b"")
        data = b"\n".join(out)
        self._reply_bytes = max(len(data) // len(out), self._reply_bytes >> _FORGET_BITS) + 1
        self._since = self._server.sweeps
        self._write(data, self._server.limits.unsent_bytes_max)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        """Refuse the client: take nothing more, and answer in a moment, so that guessing tokens takes long."""
        logger.debug("line_closed", extra={"reason": reason})
        last, self._out = self._out, []
        self._leave()
        self._pause(True)
        self._since = self._server.sweeps + int(LOGIN_SECONDS_MAX * SWEEPS_PER_SECOND)  # It is not idle until then.
        finish = partial(self._finish, *last)
        if self.access is NOBODY:
            self._refuse_login(finish)
        else:
            asyncio.get_running_loop().call_later(REFUSED_LOGIN_SECONDS, finish)

    def _refuse_surprise(self) -> None:
        if self.access is NOBODY:
            self._out.append(self._server.refusal("DENIED"))
            self.close("no valid token")
        else:
            self._finish(self._server.refusal("INTERNAL"))

    def expel(self, ended: Collection[Access]) -> None:
        if self.access in ended:
            self._finish(self._server.refusal("DENIED"))

    def stop(self) -> None:
        conversation = self._conversation
        if conversation is None:
            return
        self._backlog.clear()
        self._forget_parked()
        self._pause(True)
        if not conversation.under_way:
            self._finish()

    def _finish(self, *last: bytes) -> None:
        """Say these last words and that nothing follows; then wait a moment for the client to close.

        If a connection is closed before all is read that came, it is reset, and the client may lose replies that are
        on their way.
        """
        self._out += last
        if self._out:
            self._send_out()
        self._leave()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._ended:
            transport.close()
            return
        transport.write_eof()
        self._pause(False)

    def _leave(self) -> None:
        conversation, self._conversation = self._conversation, None
        self._since = self._server.sweeps
        self.begun_at = 0
        self._taken.clear()
        self._backlog.clear()
        self._forget_parked()
        self._drop_line(skipping=False)
        if conversation:
            conversation.closed()

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_busy(self) -> bool:
        return self._conversation is not None and self._conversation.under_way > 0

    def _end_incomplete(self, seconds: float) -> None:  # noqa: ARG002 - The dialect has a word for it.
        self._finish(self._server.refusal("TIMEOUT"))

    def _patience(self) -> float:
        conversation, limits = self._conversation, self._server.limits
        if conversation is None:
            return _LINGER_SECONDS
        if conversation.asleep:
            return inf
        return limits.slow_client_seconds if conversation.guest else limits.idle_seconds

    def _end_idle(self) -> None:
        if self._conversation is None:
            self.disconnect()
        else:
            self._finish()


def _find_dead_peers(connection: socket.socket, seconds: int) -> None:
    """A sleeper may be silent for days: let the kernel ask whether it is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // _KEEPALIVE_PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
