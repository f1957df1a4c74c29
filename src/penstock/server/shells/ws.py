"""The WebSocket shell: frames in, frames out, one conversation a connection. All of it without tasks or futures.

A connection begins as an HTTP one and is handed over by it. The messages of one read go to the conversation in one
loop, and everything that is sent in one turn of the event loop leaves in one write. A connection that asks faster
than it can be answered, or does not read, is not read from; what it may hold in memory is bounded everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from websockets.datastructures import Headers as HandshakeHeaders
from websockets.http11 import Request as HandshakeRequest
from websockets.server import ServerProtocol

from penstock.dialects.wire.conversation import Cancelable, Conversation
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
    FrameError,
    FrameReader,
    close_code,
    close_payload,
    head,
)
from penstock.dialects.wire.http import Headers, Request, Response, error_response, method_not_allowed
from penstock.errors import Fault
from penstock.limits import (
    LIGHT_BYTES_MAX,
    PART_BODY_BYTES,
    PART_BODY_BYTES_CROWDED,
    WS_CLOSE_SECONDS_MAX,
    WS_PART_BYTES,
    WS_PART_BYTES_CROWDED,
    WS_REQUEST_BYTES_MAX,
    WS_REQUESTS_MAX,
    WS_TURN_MESSAGES_CROWDED_MAX,
    WS_TURN_MESSAGES_MAX,
    WS_UNSENT_BYTES_MAX,
)
from penstock.model.answers import Answer
from penstock.model.commands import Command, Fetch, FinishMany, Publish
from penstock.model.values import Stage
from penstock.server.shells.http import SWEEPS_PER_SECOND, HttpServer, Upgrade
from penstock.server.shells.pausing import Pausing
from penstock.server.shells.peer import LoopPeer
from penstock.server.writer.port import ClientPort

logger = logging.getLogger(__name__)

_SHORT_BYTES = len(SHORT_HEADS[TEXT])
_LARGE_BYTES = WS_UNSENT_BYTES_MAX // WS_REQUESTS_MAX  # Smaller answers to all that is under way cannot be too much.
_TEXT_HEADS, _BINARY_HEADS = SHORT_HEADS[TEXT], SHORT_HEADS[BINARY]

Converse = Callable[["WsConnection", Headers], Conversation]
"""How a dialect begins a conversation: with the shell, and the headers of the handshake."""


class WsLimits(Protocol):
    @property
    def ping_seconds(self) -> float: ...


@runtime_checkable
class Settling(Protocol):
    """A conversation that carries out together what came together."""

    def settle(self) -> None:
        """What came in one read has come, or the client has caught up with reading."""


class WebSockets:
    """Every path that WebSocket is spoken at."""

    def __init__(self, loop: ClientPort, limits: WsLimits, conversations: Mapping[bytes, Converse]) -> None:
        self.loop = loop
        self.limits = limits
        self._conversations = conversations

    def handshake(self, request: Request) -> Response | Upgrade | None:
        """The answer to a request for one of the paths; None if it is for another."""
        converse = self._conversations.get(request.target.partition(b"?")[0])
        if converse is None:
            return None
        if request.method != b"GET":
            return method_not_allowed([b"GET"])
        answer = ServerProtocol().accept(_handshake_request(request))
        if answer.status_code != 101:
            text = (answer.body or b"").decode().splitlines()[0]
            if answer.status_code == Fault.UPGRADE_REQUIRED.status:
                wanted = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
                return error_response(Fault.UPGRADE_REQUIRED, text, wanted)
            return error_response(Fault.BAD_WEBSOCKET, text)
        accept = answer.headers["Sec-WebSocket-Accept"].encode()
        lines = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n"
        headers = request.headers
        return Upgrade(lines, lambda server, transport, rest: self._open(server, transport, rest, converse, headers))

    def _open(
        self, server: HttpServer, transport: asyncio.Transport, rest: bytes, converse: Converse, headers: Headers
    ) -> None:
        connection = WsConnection(self, server, transport)
        transport.set_protocol(connection)
        connection.open(converse(connection, headers), rest)


def _handshake_request(request: Request) -> HandshakeRequest:
    headers = HandshakeHeaders()
    for name, value in request.headers.items():
        headers[name.decode("latin-1")] = value.decode("latin-1")
    return HandshakeRequest(request.target.decode("latin-1"), headers)


class _Waiting:
    """A command that waits for a message, with what it counts for among those under way."""

    __slots__ = ("_connection", "_counts", "_reply", "handle")

    def __init__(self, connection: WsConnection, reply: Callable[[Answer], None]) -> None:
        self._connection = connection
        self._reply = reply
        self._counts = True
        self.handle: Cancelable | None = None

    def answer(self, answer: Answer) -> None:
        if self._counts:
            self._counts = False
            self._connection.answered(self._reply, 1, 0, answer)
        else:
            self._reply(answer)  # Cancelled too late: a message was on its way already.

    def cancel(self) -> None:
        if self.handle:
            self.handle.cancel()
        if self._counts:
            self._counts = False
            self._connection.canceled()


class WsConnection(LoopPeer, Pausing, asyncio.Protocol):
    """One connection; the `Peer` of its conversation."""

    __slots__ = (
        "_backlog",
        "_buffered",
        "_choked_since",
        "_close_began",
        "_closing",
        "_conversation",
        "_flush_is_due",
        "_full",
        "_heard",
        "_http",
        "_left",
        "_out",
        "_out_bytes",
        "_parked",
        "_parked_at",
        "_paused",
        "_pinged",
        "_reader",
        "_received",
        "_settle",
        "_transport",
        "_turns",
        "_uncounted",
        "_under_way",
        "_under_way_bytes",
        "_unfinished_since",
        "_websockets",
        "choked",
    )

    _conversation: Conversation
    _received: Callable[..., None]

    def __init__(self, websockets: WebSockets, http: HttpServer, transport: asyncio.Transport) -> None:
        super().__init__(websockets.loop)
        self._websockets = websockets
        self._http = http
        self._turns = http.turns
        self._transport: asyncio.Transport | None = transport
        self._settle: Callable[[], None] | None = None
        self._reader = FrameReader()
        self._unfinished_since = 0  # The sweep when the message began that is not whole yet; 0: there is none.
        self._buffered = 0  # What this connection has in the server's `buffered_bytes`.
        self._parked = b""
        self._parked_at = 0
        self._backlog: list[tuple[int, bytes]] = []  # Messages that wait for room; they come before what is parked.
        self._out: list[bytes] = []  # What this turn sends.
        self._out_bytes = 0
        self._flush_is_due = False
        self._full = False  # Nothing more may be begun.
        self._under_way = 0  # Requests that are not answered.
        self._under_way_bytes = 0
        self._uncounted = 0  # Bytes that came since the last command.
        self._paused = False
        self.choked = False  # The client does not read what it is sent.
        self._choked_since = (0, 0)  # Sweep, and bytes unsent, when it last read some.
        self._heard = http.sweeps
        self._pinged = 0  # The sweep of a ping that has no answer yet.
        self._left = False  # The conversation is over.
        self._closing = False  # A close frame was sent.
        self._close_began = 0

    def open(self, conversation: Conversation, rest: bytes) -> None:
        self._conversation = conversation
        self._received = conversation.received
        self._settle = conversation.settle if isinstance(conversation, Settling) else None
        self._http.connections.add(self)
        self._http.websockets += 1
        self._flush_is_due = True  # In a moment, by us.
        conversation.opened()
        self._flush()
        if self._http.stopping:
            self.close_if_idle()
        elif rest:
            self.data_received(rest)

    # ── The transport's side ────────────────────────────────────────────────────────────────────────────────

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._http.connections.discard(self)
        self._http.websockets -= 1
        self._http.buffered_bytes -= self._buffered
        self._buffered = 0
        self._out = []
        self._forget_parked()
        self._http.unread.note(self, 0)
        self._leave()

    def data_received(self, data: bytes) -> None:
        self._heard = self._http.sweeps
        self._pinged = 0
        if len(data) <= LIGHT_BYTES_MAX and not self._parked:
            self._turns.light += 1
            self._receive(data, WS_TURN_MESSAGES_CROWDED_MAX)
            if self._may_go_on():
                self._turns.join(self)
        else:
            self._park(data)
            self._turns.begin(self)

    def take_turn(self, *, crowded: bool) -> bool:
        """Go on with what was read, if there is room; read on when nothing of it is left."""
        if self._transport is None:
            return False
        most = WS_TURN_MESSAGES_CROWDED_MAX if crowded else WS_TURN_MESSAGES_MAX
        if self._parked and not self._backlog and self._may_go_on():
            self._receive(self._next_part(self._part_bytes(crowded)), most)
        elif not (self._left or self._http.stopping or self._look_full()):
            backlog, self._backlog = self._backlog, []
            self._take(backlog, most)  # Also if it is empty: the conversation may wait for the client to read.
        if not self._http.stopping:
            self._pause(bool(self._backlog or self._parked) or (self._full and not self._closing))
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        """There is something that had to wait, and need not any more."""
        if self._closing:
            return bool(self._parked)  # It is only looked through for the client's close frame.
        return bool(self._backlog or self._parked) and not (self._http.stopping or self._look_full())

    def _part_bytes(self, crowded: bool) -> int:
        """Of a large frame more can be taken at once than of many small ones: it has only to be kept."""
        small = WS_PART_BYTES_CROWDED if crowded else WS_PART_BYTES
        return max(small, min(self._reader.missing_bytes, PART_BODY_BYTES_CROWDED if crowded else PART_BODY_BYTES))

    def _receive(self, data: bytes, most: int) -> None:
        self._uncounted += len(data)
        messages: list[tuple[int, bytes]] = []
        failure: FrameError | None = None
        try:
            self._reader.receive(data, messages)
        except FrameError as error:
            failure = error
        self._note_unfinished(messages)
        buffered = self._reader.buffered_bytes
        if buffered or self._buffered:
            self._count_buffered(buffered)
        if self._closing:
            if any(opcode == CLOSE for opcode, _ in messages) and self._transport:
                self._transport.close()
            return
        if self._backlog or self._look_full():
            self._backlog += messages
            self._pause(True)
        else:
            self._take(messages, most)
        if failure:
            self._fail(failure.code, failure.reason)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._transport is not None
        self.choked = self._full = True
        self._choked_since = (self._http.sweeps, self._transport.get_write_buffer_size())
        self._pause(True)
        self._count_unread()

    def _count_unread(self) -> None:
        if self._transport:
            self._http.unread.note(self, self._transport.get_write_buffer_size())

    def give_up_on_client(self) -> None:
        self._abort()

    def resume_writing(self) -> None:
        self.choked = False
        self._http.unread.note(self, 0)
        self._read_on()

    def _count_buffered(self, buffered: int) -> None:
        http = self._http
        http.buffered_bytes += buffered - self._buffered
        self._buffered = buffered
        if http.buffered_bytes > http.limits.buffered_bytes_max and not http.make_room(self):
            self.drop_kept()

    @property
    def kept_bytes(self) -> int:
        return self._buffered

    def drop_kept(self) -> None:
        self._http.buffered_bytes -= self._buffered
        self._buffered = 0
        self._fail(TRY_LATER, "unfinished messages hold more than http.buffered_bytes_max: try again")

    def _note_unfinished(self, messages: list[tuple[int, bytes]]) -> None:
        """Only control frames can come between the parts of a message: after any other, the next message began."""
        if not self._reader.unfinished:
            self._unfinished_since = 0
        elif not self._unfinished_since or any(opcode < CLOSE for opcode, _ in messages):
            self._unfinished_since = self._http.sweeps

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, messages: list[tuple[int, bytes]], most: int) -> None:
        """Hand so many messages to the conversation, as long as there is room; the others wait."""
        received = self._received
        self._flush_is_due = True  # At the end of this, by us.
        taken = 0
        room = min(most, WS_REQUESTS_MAX - self._under_way)
        try:
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
            if self._settle:
                self._settle()
        except Exception:
            logger.exception("conversation_failed")
            self._fail(INTERNAL, "an internal error")
        if not self._left:
            self._backlog = messages[taken:]
            if self._full or self._backlog:
                self._pause(True)
        self._flush()

    def _look_full(self) -> bool:
        """Look whether anything more may be begun now."""
        busy = self._under_way >= WS_REQUESTS_MAX or self._under_way_bytes >= WS_REQUEST_BYTES_MAX
        self._full = busy or self.choked
        return self._full

    def _read_on(self) -> None:
        """There may be room again."""
        if not (self._left or self._http.stopping or self._look_full()):
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

    def _flush_soon(self) -> None:
        self._flush_is_due = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _count_large(self, size: int) -> None:
        self._out_bytes += size
        if self._out_bytes > WS_UNSENT_BYTES_MAX:
            self._abort()

    def _put(self, opcode: int, payload: bytes) -> None:
        """Send a control frame."""
        self._out += (head(opcode, len(payload)), payload)
        if not self._flush_is_due:
            self._flush()

    def _flush(self) -> None:
        """Send everything that was said in this turn, in one write."""
        self._flush_is_due = False
        out, self._out = self._out, []
        self._out_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not out:
            _acknowledge(transport)
            return
        transport.write(b"".join(out))
        if transport.get_write_buffer_size() > WS_UNSENT_BYTES_MAX:
            self._abort()
        elif self.choked:
            self._count_unread()

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
        waiting = _Waiting(self, reply)
        self._under_way += 1
        self._look_full()
        waiting.handle = super().submit(command, waiting.answer, stage)
        return waiting

    def answered(self, reply: Callable[[Answer], None], weight: int, size: int, answer: Answer) -> None:
        self._under_way -= weight
        self._under_way_bytes -= size
        reply(answer)
        self._go_on()

    def canceled(self) -> None:
        self._under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._http.stopping:
            self.close_if_idle()
        elif self._paused:
            self._read_on()

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str = "the broker stops") -> None:
        self._close(POLICY, reason)

    def _close(self, code: int, reason: str) -> None:
        """Say goodbye, and wait a while for the client to do the same."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._close_began = self._http.sweeps
        self._put(CLOSE, close_payload(code, reason))
        self._leave()  # Nothing may follow a close frame.
        self._pause(False)
        if self._parked:
            self._turns.join(self)

    def _leave(self) -> None:
        """The conversation is over, if it is not yet."""
        self._backlog = []
        self._full = True
        if not self._left:
            self._left = True
            self._conversation.closed()

    def _fail(self, code: int, reason: str) -> None:
        """The client's bytes make no sense any more: say why, and that nothing follows."""
        self._close(code, reason)
        self._flush()
        self._reader = _Deaf()
        if self._transport and not self._transport.is_closing():
            self._transport.write_eof()

    def _answer_close(self, code: int) -> None:
        self._close(code, "")
        self._flush()
        if self._transport:
            self._transport.close()

    def close_if_idle(self) -> None:
        """The broker stops: take nothing more, and go when what is under way has been answered."""
        if self._under_way:
            self._pause(True)
        else:
            self._close(GOING_AWAY, "the broker stops")

    def _abort(self) -> None:
        self._out = []
        self._out_bytes = 0
        self._leave()
        if self._transport:
            self._transport.abort()

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_time(self, sweeps: int) -> None:
        """Ask a client that says nothing if it is still there; let go of one that is not, or that does not read."""
        transport = self._transport
        if transport is None:
            return
        if self._closing:
            if sweeps - self._close_began > WS_CLOSE_SECONDS_MAX * SWEEPS_PER_SECOND:
                transport.abort()
            return
        if self._unfinished_since and not self._paused:
            seconds = self._http.limits.slow_client_seconds
            if (sweeps - self._unfinished_since - 1) / SWEEPS_PER_SECOND >= seconds:
                self._close(POLICY, f"the message was not complete after {seconds:g} s")
                return
        quiet = sweeps - self._heard
        patience = self._websockets.limits.ping_seconds * SWEEPS_PER_SECOND
        if self.choked:
            self._check_reading(sweeps)
        elif quiet <= patience or self._paused:
            return
        elif not self._pinged:
            self._pinged = sweeps
            self._put(PING, b"")
        elif sweeps - self._pinged > patience:
            transport.abort()

    def _check_reading(self, sweeps: int) -> None:
        """A client that reads nothing of what it is sent loses its place."""
        assert self._transport is not None
        since, unsent = self._choked_since
        left = self._transport.get_write_buffer_size()
        if left != unsent:
            self._choked_since = (sweeps, left)
        elif (sweeps - since) / SWEEPS_PER_SECOND >= self._http.limits.slow_client_seconds:
            self._transport.abort()


def _acknowledge(transport: asyncio.Transport) -> None:
    """Send the acknowledgement that TCP keeps back for up to 40 ms, to send it together with an answer."""
    link = transport.get_extra_info("socket")
    if link is not None and hasattr(socket, "TCP_QUICKACK"):  # Linux has it.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class _Deaf(FrameReader):
    """After a fault nothing is understood any more; it is read all the same, so that our last words arrive."""

    __slots__ = ()

    def receive(self, data: bytes, messages: list[tuple[int, bytes]]) -> None: ...
