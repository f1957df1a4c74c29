"""The WebSocket shell: frames in, frames out, one conversation per connection. No tasks, no futures.

A connection begins with HTTP, whose shell hands it over. The messages of one read go to the conversation in one loop.
Nothing is read from a client that asks faster than it can be answered, or that does not read; what a connection may
hold in memory is limited everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from penstock.broker.writer.port import ClientPort
from penstock.dialects.wire.conversation import Conversation
from penstock.dialects.wire.frames import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    INTERNAL,
    NO_CODE,
    NORMAL,
    PING,
    POLICY,
    PONG,
    SHORT_HEADS,
    TEXT,
    TRY_LATER,
    DeafReader,
    FrameError,
    FrameReader,
    close_code,
    close_payload,
    head,
)
from penstock.limits import (
    GUEST_BYTES_MAX,
    WS_CLOSE_SECONDS_MAX,
    WS_MESSAGE_BYTES_MAX,
    WS_PART_BYTES,
    WS_PART_BYTES_CROWDED,
    WS_REQUEST_BYTES_MAX,
    WS_REQUESTS_MAX,
    WS_TURN_MESSAGES_CROWDED_MAX,
    WS_TURN_MESSAGES_MAX,
    WS_UNSENT_BYTES_MAX,
)
from penstock.model.access import NOBODY, Access
from penstock.model.answers import Answer, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import Command, Fetch, FinishMany, Publish
from penstock.model.values import Stage
from penstock.shells.http_server import HttpServer
from penstock.shells.peer import PeerConnection, WaitingCommand

logger = logging.getLogger(__name__)

_SHORT_BYTES = len(SHORT_HEADS[TEXT])
# All unanswered requests together cannot exceed the limit with smaller answers.
_LARGE_BYTES = WS_UNSENT_BYTES_MAX // WS_REQUESTS_MAX
_TEXT_HEADS, _BINARY_HEADS = SHORT_HEADS[TEXT], SHORT_HEADS[BINARY]


class WsLimits(Protocol):
    @property
    def ping_seconds(self) -> float: ...


class WsConnection(PeerConnection):
    """One connection. It has more than 30 methods because frames, commands under way and the closing handshake decide
    together what is read and sent."""

    __slots__ = (
        "_close_began",
        "_conversation",
        "_full",
        "_left",
        "_limits",
        "_out_bytes",
        "_pinged",
        "_reader",
        "_received",
        "_settle",
        "_uncounted",
        "_under_way",
        "_under_way_bytes",
    )

    PROTOCOL = "WebSocket"
    SURPRISE = "conversation_failed"
    PART_BYTES = WS_PART_BYTES
    PART_BYTES_CROWDED = WS_PART_BYTES_CROWDED

    _server: HttpServer
    _backlog: list[tuple[int, bytes]]
    _conversation: Conversation
    _received: Callable[..., None]
    _settle: Callable[[], None]

    def __init__(
        self, server: HttpServer, writer: ClientPort, limits: WsLimits, transport: asyncio.Transport
    ) -> None:
        super().__init__(server, writer)
        self.transport = transport
        self._limits = limits
        self._reader = FrameReader()
        self._backlog = []
        self._out_bytes = 0  # Of large frames in `_out`.
        self._full = False  # Nothing more may be begun.
        self._under_way = 0  # Requests that are not answered.
        self._under_way_bytes = 0
        self._uncounted = 0  # Bytes that came since the last command.
        self._pinged = 0  # When the last ping was sent.
        self._left = True  # There is no conversation yet, or no more.
        self._close_began = 0  # When a close frame was sent. 0: none was.

    def open(self, converse: Callable[[WsConnection], Conversation], rest: bytes) -> None:
        """`converse`: begins the conversation. `rest`: what came after the handshake."""
        self._server.connections.add(self)
        self._server.websockets += 1
        try:
            self._open(converse(self), rest)
        except Exception as error:
            self.surprised(error)

    def _open(self, conversation: Conversation, rest: bytes) -> None:
        self._conversation = conversation
        self._left = False
        self._received = conversation.received
        self._settle = conversation.settle
        self._flush_is_due = True  # In a moment, by us.
        conversation.opened()
        self.flush()
        if self.access is NOBODY:
            self.after(self._server.limits.slow_client_seconds, self._end_guest)
        if self._server.stopping:
            self.stop()
        elif rest:
            self.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.websockets -= 1
        self._out = []
        super().connection_lost(error)

    def identify(self, access: Access) -> Refused | None:
        self._reader.bytes_max = GUEST_BYTES_MAX if access is NOBODY else WS_MESSAGE_BYTES_MAX
        return super().identify(access)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, data: bytes) -> bool:
        self._receive(data, WS_TURN_MESSAGES_CROWDED_MAX)
        return self._may_go_on()

    def _take_part(self, crowded: bool) -> bool:
        if self.transport is None:
            return False
        most = WS_TURN_MESSAGES_CROWDED_MAX if crowded else WS_TURN_MESSAGES_MAX
        if self._parked and not self._backlog and self._may_go_on():
            self._receive(self._next_part(crowded), most)
        elif not (self._left or self._server.stopping or self._look_full()):
            backlog, self._backlog = self._backlog, []
            self._take(backlog, most)  # Also if it is empty: the conversation may wait for the client to read.
        if not self._server.stopping:
            self._pause(bool(self._backlog or self._parked) or (self._full and not self._close_began))
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        """There is something that had to wait, and need not any more."""
        if self._close_began:
            return bool(self._parked)  # It is only searched for the client's close frame.
        return bool(self._backlog or self._parked) and not (self._server.stopping or self._look_full())

    def _missing_bytes(self) -> int:
        return self._reader.missing_bytes

    def _receive(self, data: bytes, most: int) -> None:
        self._since = self._server.sweeps
        self._uncounted += len(data)
        messages: list[tuple[int, bytes]] = []
        failure: FrameError | None = None
        try:
            self._reader.receive(data, messages)
        except FrameError as error:
            failure = error
        if self.begun_at or self._reader.unfinished:
            self._note_incomplete(messages)
        if self._close_began:
            if any(opcode == CLOSE for opcode, _ in messages):
                self.disconnect()
            return
        if self._backlog or self._look_full():
            self._backlog += messages
            self._pause(True)
        else:
            self._take(messages, most)
        if failure and failure.size and failure.size <= self._reader.bytes_max:
            self._receive(b"", most)  # A token came with the message, which is not too large any more.
        elif failure:
            self._count_fault()
            self._fail(failure.code, failure.reason)

    def _note_incomplete(self, messages: list[tuple[int, bytes]]) -> None:
        """Only control frames can come between the parts of a message: after any other, the next message began."""
        if not self._reader.unfinished:
            self.begun_at = 0
        elif not self.begun_at or any(opcode < CLOSE for opcode, _ in messages):
            self.begun_at = self._server.sweeps
        if not self.keep(self._reader.buffered_bytes):
            self.drop_kept()

    def pause_writing(self) -> None:
        self._full = True
        super().pause_writing()

    def drop_kept(self) -> None:
        self.keep(0)
        self._fail(TRY_LATER, "incomplete messages hold more than http.buffered_bytes_max: try again later")

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, messages: list[tuple[int, bytes]], most: int) -> None:
        """Hand up to this many messages to the conversation, as long as there is room; the others wait."""
        received = self._received
        self._flush_is_due = True  # At the end of this, by us.
        self._count_requests(len(messages) if len(messages) < most else most)
        taken = 0
        room = min(most, WS_REQUESTS_MAX - self._under_way)
        for opcode, payload in messages if len(messages) <= room else messages[:room]:
            taken += 1
            if opcode == TEXT:
                received(payload)
            elif opcode == BINARY:
                received(payload, binary=True)
            elif self._control(opcode, payload):
                break
            if self._full:
                break
        self._settle()
        self._rest_if_over()
        if not self._left:
            self._backlog = messages[taken:]
            if self._full or self._backlog:
                self._pause(True)
        self.flush()

    def _look_full(self) -> bool:
        """Find out whether nothing more may be begun now."""
        busy = self._under_way >= WS_REQUESTS_MAX or self._under_way_bytes >= WS_REQUEST_BYTES_MAX
        self._full = busy or self.choked or self._resting or self._has_much() or self._server.room.has_waiting(self)
        return self._full

    def _has_ended(self) -> bool:
        return bool(self._close_began)

    def _go_on(self) -> None:
        if self._close_began:
            self._pause(bool(self._parked))
        if self._close_began or not (self._left or self._server.stopping or self._look_full()):
            self._turns.join(self)

    def _control(self, opcode: int, payload: bytes) -> bool:
        """Whether the connection ends with this frame."""
        if opcode == PING:
            self._put(PONG, payload)
        elif opcode == CLOSE:
            try:
                code = close_code(payload)
            except FrameError as error:
                self._fail(error.code, error.reason)
                return True
            self._answer_close(NORMAL if code == NO_CODE else code)
            return True
        return False

    # ── The conversation's side ─────────────────────────────────────────────────────────────────────────────

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        size = len(frame)
        out = self._out
        if size < _SHORT_BYTES:
            out.append((_BINARY_HEADS if binary else _TEXT_HEADS)[size])
        else:
            out.append(head(BINARY if binary else TEXT, size))
            if size >= _LARGE_BYTES:
                self._count_large(size)
        out.append(frame)
        if not self._flush_is_due:
            self._flush_soon()

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        opcode, heads = (BINARY, _BINARY_HEADS) if binary else (TEXT, _TEXT_HEADS)
        out = self._out
        for frame in frames:
            size = len(frame)
            if size < _SHORT_BYTES:
                out.append(heads[size])
            else:
                out.append(head(opcode, size))
                if size >= _LARGE_BYTES:
                    self._count_large(size)
            out.append(frame)
        if not self._flush_is_due:
            self._flush_soon()

    def acknowledge(self) -> None:
        if not self._flush_is_due:
            self._flush_soon()

    def _count_large(self, size: int) -> None:
        self._out_bytes += size
        if self._out_bytes > WS_UNSENT_BYTES_MAX:
            self.abort()

    def _put(self, opcode: int, payload: bytes) -> None:
        """Send a control frame."""
        self._out += (head(opcode, len(payload)), payload)
        if not self._flush_is_due:
            self.flush()

    def flush(self) -> None:
        self._flush_is_due = False
        out, self._out = self._out, []
        self._out_bytes = 0
        if out:
            self._write(b"".join(out), WS_UNSENT_BYTES_MAX)
        elif self.transport and not self.transport.is_closing():
            _acknowledge(self.transport)

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        weight = 1
        if type(command) is Publish:
            weight = len(command.messages)
        elif type(command) is Fetch:
            weight = command.count
            if command.wait_ns:
                return self._submit_waiting(command, reply, stage)
        elif type(command) is FinishMany:
            weight = len(command.finishes)
        size, self._uncounted = self._uncounted, 0
        self._under_way += weight
        self._under_way_bytes += size
        self._look_full()
        return super().submit(command, partial(self.answered, reply, weight, size), stage)

    def _submit_waiting(self, command: Fetch, reply: Callable[[Answer], None], stage: Stage) -> Cancelable:
        waiting = WaitingCommand(self, reply)
        self._under_way += 1
        self._look_full()
        waiting.handle = super().submit(command, waiting.answer, stage)
        return waiting

    def answered(self, reply: Callable[[Answer], None], weight: int, size: int, answer: Answer) -> None:
        self._under_way -= weight
        self._under_way_bytes -= size
        reply(answer)
        self._after_answer()

    def canceled(self) -> None:
        self._under_way -= 1
        self._after_answer()

    def _after_answer(self) -> None:
        if self._server.stopping:
            self.stop()
        elif self._paused:
            self._go_on()

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        if self.access is NOBODY:
            self._leave()
            self._pause(True)
            self._refuse_login(partial(self._close, POLICY, reason))
        else:
            self._close(POLICY, reason)

    def _refuse_surprise(self) -> None:
        self.flush()  # What was said before.
        if self.access is NOBODY:
            self.close("no valid token")
        else:
            self._fail(INTERNAL, "internal error")

    def _refuse_connection(self, refused: Refused | None) -> None:
        self._close(POLICY, refused.sentence if refused else "")

    def expel(self, ended: Collection[Access]) -> None:
        if self.access in ended:
            self.close("the token is not valid any more")

    def _end_guest(self) -> None:
        if self.access is NOBODY:
            self.close("no token was shown in time")

    def disconnect(self) -> None:
        if self._close_began:
            super().disconnect()
        else:
            self._close(GOING_AWAY, "the broker stops")

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame, and wait a while for the client's."""
        if self._close_began or self.transport is None:
            return
        self._close_began = self._server.sweeps
        self._put(CLOSE, close_payload(code, reason))
        self._leave()  # Nothing may follow a close frame.
        self._pause(False)
        if self._parked:
            self._turns.join(self)

    def _leave(self) -> None:
        self._backlog = []
        self._full = True
        if not self._left:
            self._left = True
            self._conversation.closed()

    def _fail(self, code: int, reason: str) -> None:
        """The client's bytes make no sense any more: say why, and close our side."""
        self._close(code, reason)
        self.flush()
        self._reader = DeafReader()
        if self.transport and not self.transport.is_closing():
            self.transport.write_eof()

    def _answer_close(self, code: int) -> None:
        self._close(code, "")
        self.flush()
        self.disconnect()

    def stop(self) -> None:
        if self._under_way:
            self._pause(True)
        else:
            self._close(GOING_AWAY, "the broker stops")

    def abort(self) -> None:
        self._out = []
        self._out_bytes = 0
        self._leave()
        super().abort()

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_time(self) -> None:
        if not self._close_began:
            super().check_time()
        elif self._passed(self._close_began) >= WS_CLOSE_SECONDS_MAX:
            self.abort()

    def _is_busy(self) -> bool:
        return self._paused

    def _end_incomplete(self, seconds: float) -> None:
        self._close(POLICY, f"the message was not complete after {seconds:g} s")

    def _patience(self) -> float:
        return self._limits.ping_seconds

    def _end_idle(self) -> None:
        """Ask a silent client whether it is still there; cut it off if it does not answer."""
        if self._pinged <= self._since:
            self._pinged = self._server.sweeps
            self._put(PING, b"")
        elif self._passed(self._pinged) >= self._patience():
            self.abort()


def _acknowledge(transport: asyncio.Transport) -> None:
    """Send the acknowledgement that TCP delays by up to 40 ms, in the hope of sending it with an answer."""
    link = transport.get_extra_info("socket")
    if link is not None and hasattr(socket, "TCP_QUICKACK") and link.family != socket.AF_UNIX:  # Linux has it.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
