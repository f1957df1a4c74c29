"""The HTTP shell: one connection, its parser, its answers in order. All of it without tasks or futures.

httptools calls back for each part of a request; a whole one is handed to a handler, which answers at once or later.
Requests may be pipelined: answers go out in the order of the requests, whichever is ready first.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn, Protocol, cast

import httptools
from msgspec import Struct

from penstock.dialects.wire.http import (
    Awaited,
    BodyRule,
    Call,
    Calls,
    Headers,
    Request,
    Response,
    Stream,
    Work,
    error_response,
)
from penstock.errors import Fault
from penstock.limits import (
    BACKLOG_MAX,
    BODY_BYTES_UNASKED,
    KNOWN_HEAD_BYTES_MAX,
    KNOWN_HEADS_MAX,
    LIGHT_BYTES_MAX,
    LIGHT_LINES_MAX,
    PART_BODY_BYTES,
    PART_BODY_BYTES_CROWDED,
    PART_BYTES,
    PART_BYTES_CROWDED,
    PIPELINE_REQUESTS_MAX,
    REQUEST_TARGET_BYTES_MAX,
    UNREAD_BYTES_DEFAULT,
)
from penstock.model.answers import Answer
from penstock.model.commands import Command
from penstock.server.shells.pausing import Pausing
from penstock.server.shells.turns import Turns
from penstock.server.shells.unread import Unread
from penstock.server.shells.working import Worker

logger = logging.getLogger(__name__)

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NO_CONTENT = 204
_UNREAD_BYTES_COUNTED = 64 << 10  # Less is not worth counting.
_UNAUTHORIZED = 401
_RESET = struct.pack("ii", 1, 0)  # struct linger: close at once, and throw away what was not sent.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SWEEPS_PER_SECOND = 2
_METHODS = frozenset((b"GET", b"POST", b"DELETE", b"PUT", b"HEAD"))
_PLAIN = b"/-._~%?=&+ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_REPEATED = frozenset((b"GET", b"POST"))  # Others name something new each time, as a rule.
_FIELD_BYTES = len(b": \r\n")  # What a header field has beside its name and value.
_SPECIAL = frozenset((b"expect", b"transfer-encoding", b"upgrade"))


class Pending(Protocol):
    """A command that may wait for something."""

    def cancel(self) -> None:
        """The client has gone away: it is not answered."""

    def give_up(self) -> None:
        """Answer with what there is."""


class Handler(Protocol):
    """What the shell serves: an application behind HTTP."""

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        """How much body may come. Asked when it is more than `BODY_BYTES_UNASKED`."""

    def refusal(self, headers: Headers) -> Response | None:
        """Why nothing with these header fields is served: a function of them alone. None if it is."""

    def route(self, request: Request) -> Route:
        """What handles a request with this head: a function of the request alone."""

    def submit(self, command: Command, reply: Callable[[Answer], None]) -> Pending | None:
        """Carry out a command, and call `reply` with the answer once, now or later. What is returned is cancelled
        if the client goes away first, and given up if it may have."""

    def decide_collected(self) -> None:
        """Decide the commands submitted so far. Called before those of a request that did not wait for the answer to
        the one before it: see `dialects.wire.order`."""


class Connection(Protocol):
    """What the server asks of a connection, whatever is spoken on it."""

    @property
    def kept_bytes(self) -> int:
        """What it keeps of a request that is not complete: its part of the server's `buffered_bytes`."""

    def drop_kept(self) -> None:
        """Refuse that request, and keep nothing of it."""

    def check_time(self, sweeps: int) -> None: ...
    def close_if_idle(self) -> None: ...
    def close(self) -> None: ...


class Upgrade(Struct, gc=False):
    """The connection goes on in another protocol, after 101 and these header lines. `take_over` gets the transport,
    and what the client has sent since."""

    headers: bytes
    take_over: Callable[[HttpServer, asyncio.Transport, bytes], None]


Result = Response | Call | Calls | Awaited | Work | Upgrade
Route = Callable[[Request], Result]  # Gives the response, or what leads to it.


class HttpLimits(Protocol):
    @property
    def connections_max(self) -> int: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def slow_client_seconds(self) -> float: ...
    @property
    def header_bytes_max(self) -> int: ...
    @property
    def buffered_bytes_max(self) -> int: ...


class HttpServer:
    """All connections of one listening address."""

    def __init__(
        self, handler: Handler, limits: HttpLimits, turns: Turns | None = None, unread: Unread | None = None
    ) -> None:
        self.turns = turns or Turns()
        self.unread = unread or Unread(UNREAD_BYTES_DEFAULT)
        self.handler = handler
        self.submit = handler.submit
        self.limits = limits
        self.connections: set[Connection] = set()
        self.websockets = 0  # How many of them speak WebSocket.
        self.buffered_bytes = 0  # Of requests that are not complete yet.
        self.responses_by_status = [0] * 600
        self.stopping = False
        self.sweeps = 0
        self.date = b""
        self.known_max = KNOWN_HEADS_MAX  # With 0 nothing is remembered, and every request goes through the parser.
        self.known_fields: dict[bytes, _Fields] = {}
        self.known_heads: dict[bytes, _Head] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, backlog: int = BACKLOG_MAX) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        self._sweep()
        return await loop.create_server(lambda: HttpConnection(self), host, port, backlog=backlog)

    def _sweep(self) -> None:
        """A coarse clock for all connections: cheaper than a timer for each request."""
        self.sweeps += 1
        self.date = b"Date: " + formatdate(usegmt=True).encode() + b"\r\n"
        for connection in list(self.connections):
            connection.check_time(self.sweeps)
        self._sweeper = asyncio.get_running_loop().call_later(1 / SWEEPS_PER_SECOND, self._sweep)

    # A client sends the same head again and again, or at least the same header fields. What was parsed, and routed,
    # once need not be a second time. This must never change what is understood: every condition below is one under
    # which the parser would find the same request in the same bytes.

    def learn(self, data: bytes, exchange: _Exchange) -> None:
        """Remember the header fields of a request that came whole in one read, if there is nothing special to it."""
        headers = exchange.headers
        length = headers.get(b"content-length", b"0")
        plain = exchange.keep_alive and b"host" in headers and not _SPECIAL & headers.keys() and length.isdigit()
        line = b"%b %b HTTP/1.1\r\n" % (exchange.method, exchange.target)
        if not plain or not data.startswith(line):  # An empty line may come before the request line.
            return
        line_end, head_end = len(line) - 2, data.find(b"\r\n\r\n")
        small = head_end - line_end <= KNOWN_HEAD_BYTES_MAX <= self.limits.header_bytes_max // 2
        if small and len(data) == head_end + 4 + int(length) and int(length) <= BODY_BYTES_UNASKED:
            _remember(self.known_fields, self.known_max, data[line_end:head_end], _Fields(headers, int(length)))

    def learn_head(self, head: bytes, exchange: _Exchange) -> None:
        """Remember the head of a request with plain fields: where it leads, and if it has no body, to which call.
        Handlers are functions of the request alone."""
        route = exchange.route
        if exchange.call is not None and not exchange.body:
            route = partial(_always, exchange.call)
        if route is not None:
            text = head + b"\r\n\r\n"
            facts = (exchange.method, exchange.target, exchange.headers)
            known = _Head(text, len(text) + len(exchange.body), *facts, route)
            _remember(self.known_heads, self.known_max, head, known)

    def make_room(self, asking: Connection) -> bool:
        """Too much is kept of requests that are not complete: the connection with the most loses it. False if that
        is the one that asks for more."""
        while self.buffered_bytes > self.limits.buffered_bytes_max:
            greediest = max(self.connections, key=lambda connection: connection.kept_bytes)
            if greediest is asking:
                return False
            greediest.drop_kept()
        return True

    def stop(self) -> None:
        """Finish what is in flight, take nothing new."""
        self.stopping = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def close(self) -> None:
        if self._sweeper:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close()


class _Fields(Struct, gc=False):
    """Header fields, as they were parsed before."""

    headers: Headers
    body_bytes: int


class _Head(Struct, gc=False):
    """The head of a request, as it was parsed and routed before."""

    text: bytes  # With the empty line.
    request_bytes: int  # With the body.
    method: bytes
    target: bytes
    headers: Headers
    route: Route


class _Exchange(Request, gc=False, kw_only=False):
    """One request and, with it, the answer to it."""

    connection: HttpConnection | None = None
    keep_alive: bool = False
    route: Route | None = None
    call: Call | None = None
    tell: Callable[[Any], Response | Stream] | None = None
    pending: Pending | None = None
    response: Response | Stream | None = None
    chunked: bool = True  # The client knows chunks, as all of HTTP/1.1 do.

    def answer(self, answer: Answer | Sequence[Answer]) -> None:
        assert self.tell is not None
        try:
            self.response = self.tell(answer)
        except Exception:
            logger.exception("answer_failed")
            self.response = error_response(Fault.INTERNAL)
        if self.connection:
            self.connection.drain()

    def respond(self, response: Response | Stream) -> None:
        self.response = response
        if self.connection:
            self.connection.drain()
        elif type(response) is Stream:
            response.source.close()  # It was dropped while the stream was being made.

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.connection = None
        if self.pending:
            self.pending.cancel()
        if type(self.response) is Stream:
            self.response.source.close()

    def give_up(self) -> None:
        """Nobody may wait for the answer any more: it is to be what there is."""
        if self.pending:
            self.pending.give_up()


class _Flow:
    """A stream whose turn it is: one piece is asked for at a time, and the next when the client has taken it."""

    __slots__ = ("_asked", "_connection", "_over", "stream")

    def __init__(self, connection: HttpConnection, stream: Stream) -> None:
        self._connection = connection
        self.stream = stream
        self._asked = False
        self._over = False

    def pull(self) -> None:
        if not self._asked and not self._over:
            self._asked = True
            self.stream.source.pull(self)

    def give(self, data: bytes) -> None:
        self._asked = False
        if not self._over:
            self._connection.send_piece(data)

    def end(self) -> None:
        if not self._over:
            self.close()
            self._connection.end_stream()

    def fail(self) -> None:
        if not self._over:
            self._connection.break_stream()

    def close(self) -> None:
        self._over = True
        self.stream.source.close()


class _Several:
    """The answers to several commands of one exchange, until all of them are there."""

    def __init__(self, calls: Calls, answer: Callable[[Sequence[Answer]], None]) -> None:
        self._answers: list[Answer | None] = [None] * len(calls.commands)
        self._missing = len(calls.commands)
        self._answer = answer
        self._pending: list[Pending] = []

    def submit(self, calls: Calls, submit: Callable[[Command, Callable[[Answer], None]], Pending | None]) -> None:
        for index, command in enumerate(calls.commands):
            pending = submit(command, partial(self._take, index))
            if pending:
                self._pending.append(pending)

    def _take(self, index: int, answer: Answer) -> None:
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._answer(cast("Sequence[Answer]", self._answers))

    def cancel(self) -> None:
        for pending in self._pending:
            pending.cancel()

    def give_up(self) -> None:
        for pending in self._pending:
            pending.give_up()


class _RequestRefusedError(Exception):
    """The request cannot be taken; the connection ends with this response."""

    def __init__(self, response: Response) -> None:
        self.response = response


class HttpConnection(Pausing, asyncio.Protocol):
    __slots__ = (
        "_backlog",
        "_body",
        "_body_bytes",
        "_choked",
        "_choked_since",
        "_cut",
        "_ended",
        "_exchanges",
        "_flow",
        "_has_moved",
        "_head_bytes",
        "_headers",
        "_heads",
        "_held",
        "_in_head",
        "_in_request",
        "_is_last_taken",
        "_latest",
        "_parked",
        "_parked_at",
        "_parser",
        "_paused",
        "_pumping",
        "_read_bytes",
        "_rule",
        "_server",
        "_since",
        "_target",
        "_trailer_bytes",
        "_transport",
        "_turns",
        "_unread",
        "_upgrade",
        "_usual",
        "_working",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._turns = server.turns
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[_Exchange] = deque()  # All that are not answered yet, in order.
        self._backlog: deque[_Exchange] = deque()  # The last of them, not handled yet.
        self._flow: _Flow | None = None  # The answer to the first of them, while it is a stream.
        self._pumping = False
        self._paused = False
        self._parked = b""
        self._parked_at = 0
        self._held = False  # Nothing more is handled for now: `_choked` or `_working`.
        self._working = False  # An answer is being made that takes long.
        self._choked = False  # The client does not read its answers.
        self._unread = False  # It is among those that the server's `unread` knows.
        self._choked_since = (0, 0)  # Sweep, and bytes unsent, when it last read some.
        self._ended = False  # The client has said that it sends no more.
        self._since = server.sweeps
        self._in_request = False  # The parser has seen the first byte of one, and not the last.
        self._is_last_taken = False  # The connection ends with the answer to it: no request after it is carried out.
        self._in_head = False
        self._heads = 0  # How many were complete.
        self._latest: _Exchange | None = None  # Of the read under way.
        self._usual: _Head | None = None  # What the last known head was: mostly the next one is the same.
        self._head_bytes = 0  # Of a head, or of what is no body after it, that is not complete: whole reads of it.
        self._trailer_bytes = 0
        self._has_moved = False  # The read under way has brought some of a body.
        self._read_bytes = 0  # Of the read under way.
        self._target = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._body_bytes = 0  # What this connection has in the server's `buffered_bytes`.
        self._cut = False
        self._rule: BodyRule | None = None  # Of a body that is more than a little.
        self._upgrade: Upgrade | None = None  # What the connection is about to become.

    # ── The transport's side ────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name.
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections_max:
            self._refuse(error_response(Fault.CONNECTION_LIMIT, str(server.limits.connections_max)))

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        server = self._server
        server.connections.discard(self)
        server.buffered_bytes -= self._body_bytes
        self._body_bytes = 0
        self._forget_parked()
        self._drop_all()
        if self._unread:
            server.unread.note(self, 0)

    def _drop_all(self) -> None:
        if self._flow:
            self._flow.close()
            self._flow = None
            self._exchanges.popleft()
        for exchange in self._exchanges:
            exchange.drop()
        self._exchanges.clear()
        self._backlog.clear()

    def data_received(self, data: bytes) -> None:
        if not self._in_request:
            usual = self._usual
            if usual is not None and len(data) == usual.request_bytes and data.startswith(usual.text):
                self._turns.light += 1
                self._accept_known(usual, data)
                return
            head_end = data.find(b"\r\n\r\n")
            if head_end > 0 and self._accept_if_known(data, head_end):
                self._turns.light += 1
                return
        self._receive_unknown(data)

    def _accept_if_known(self, data: bytes, head_end: int) -> bool:
        """Take a request whose head, or whose header fields, were seen before: one that is here whole, and alone."""
        server = self._server
        head = server.known_heads.get(data[:head_end])
        if head is not None and len(data) == head.request_bytes:
            self._usual = head
            self._accept_known(head, data)
            return True
        line_end = data.find(b"\r\n")
        fields = server.known_fields.get(data[line_end:head_end])
        if fields is None or len(data) != head_end + 4 + fields.body_bytes:
            return False
        words = data[:line_end].split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1" or not _is_plain(words[0], words[1]):
            return False
        body, keep_alive = data[head_end + 4 :], not server.stopping
        exchange = _Exchange(words[0], words[1], fields.headers, body, False, self, keep_alive)
        self._accept(exchange)
        if words[0] in _REPEATED:
            server.learn_head(data[:head_end], exchange)
        return True

    def _accept_known(self, head: _Head, data: bytes) -> None:
        body, keep_alive = data[len(head.text) :], not self._server.stopping
        self._accept(_Exchange(head.method, head.target, head.headers, body, False, self, keep_alive, head.route))

    def _receive_unknown(self, data: bytes) -> None:
        heads, at_start = self._heads, not self._in_request
        if _is_light(data) and not self._parked:
            self._turns.light += 1
            self._parse(data)
        else:
            self._park(data)
            self._turns.begin(self)
        if at_start and self._heads == heads + 1 and self._latest and not (self._in_request or self._parked):
            self._server.learn(data, self._latest)
        self._latest = None

    def take_turn(self, *, crowded: bool) -> bool:
        """Handle a part of what was read, unless earlier requests have to be answered first."""
        if self._may_go_on():
            self._parse(self._next_part(self._part_bytes(crowded)))
        self._pause(bool(self._parked) or self._is_blocked())
        return self._may_go_on()

    def _is_blocked(self) -> bool:
        """Nothing more can be taken for now, or for good."""
        return self._held or bool(self._backlog) or self._is_last_taken

    def _may_go_on(self) -> bool:
        """Something was read that need not wait any more."""
        return bool(self._parked) and self._transport is not None and not self._is_blocked()

    def _part_bytes(self, crowded: bool) -> int:
        """A body whose length is known has to be kept and no more: so much of it can be handled at once. Anything
        else may be many requests, or many chunks."""
        small = PART_BYTES_CROWDED if crowded else PART_BYTES
        if not self._in_request or self._in_head or self._cut:
            return small
        length = self._headers.get(b"content-length")
        if not length or b"transfer-encoding" in self._headers:
            return small
        return max(small, min(int(length) - len(self._body), PART_BODY_BYTES_CROWDED if crowded else PART_BODY_BYTES))

    def _parse(self, data: bytes) -> None:
        heads = self._heads
        self._read_bytes = len(data)
        self._has_moved = False
        try:
            self._parser.feed_data(data)
            if self._in_request:
                self._check_unfinished(same_head=heads == self._heads)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade_to(data[upgrade.args[0] :] + self._forget_parked())
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _RequestRefusedError):
                self._refuse(cause.response)
            else:
                logger.error("request_failed", exc_info=cause)
                self._refuse(error_response(Fault.INTERNAL))
        except httptools.HttpParserError as error:
            self._refuse(error_response(Fault.BAD_HTTP, str(error)))
        except _RequestRefusedError as refused:
            self._refuse(refused.response)

    def eof_received(self) -> bool:
        """A client may close its side and still wait for its answers. But so ends one that was killed, too: nothing
        that comes later is handed to it."""
        self._ended = True
        if self._exchanges:
            self._end_after_last()
        if self._flow and self._flow.stream.endless:
            self._flow.stream.source.finish()
        for exchange in list(self._exchanges):
            exchange.give_up()
        return bool(self._exchanges)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._choked = self._held = True
        self._choked_since = (self._server.sweeps, self._transport.get_write_buffer_size())
        self._pause(True)
        self._count_unread()

    def resume_writing(self) -> None:
        self._choked = False
        self._held = self._working
        self._count_unread()
        if self._flow:
            self._flow.pull()
        self._pump()

    def _upgrade_to(self, rest: bytes) -> None:
        """Hand the connection over if the handler wants it to go on in another protocol."""
        upgrade, transport, server = self._upgrade, self._transport, self._server
        if upgrade is None or transport is None:
            self._decline_upgrade()
            return
        self._transport = None
        self._exchanges.clear()
        server.connections.discard(self)
        server.responses_by_status[101] += 1
        transport.write(_STATUS_LINES[101] + server.date + upgrade.headers + b"\r\n")
        upgrade.take_over(server, transport, rest)

    def _decline_upgrade(self) -> None:
        """The request was taken as plain HTTP/1.1, which is how an upgrade is declined; then the connection ends."""
        self._pause(True)
        if self._exchanges:
            self._end_after_last()
        elif self._transport:
            self._transport.close()

    def _end_after_last(self) -> None:
        self._exchanges[-1].keep_alive = False
        self._is_last_taken = True

    # ── The parser's side ───────────────────────────────────────────────────────────────────────────────────
    # Each callback costs as much as a good part of the engine: so there are as few as can be, and what most requests
    # do not need is left to those that do.

    def on_message_begin(self) -> None:
        """Called with the first byte of a request: from here on the parser must see every byte, to its end."""
        self._in_request = self._in_head = True
        self._head_bytes = self._trailer_bytes = 0
        self._since = self._server.sweeps
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        """Called again if the target comes in pieces."""
        self._target += url
        if len(self._target) > REQUEST_TARGET_BYTES_MAX:
            raise _RequestRefusedError(
                error_response(Fault.TARGET_TOO_LONG, f"at most {REQUEST_TARGET_BYTES_MAX} bytes")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._drop_trailer(len(name) + len(value))
            return
        name = name.lower()
        if name == b"host" and name in self._headers:
            raise _RequestRefusedError(error_response(Fault.BAD_HTTP, "it has more than one Host header"))
        self._headers[name] = value

    def _drop_trailer(self, size: int) -> None:
        """A field after a chunked body says nothing that counts: only its size does, as that of the head."""
        self._trailer_bytes += size + _FIELD_BYTES
        if self._trailer_bytes > self._server.limits.header_bytes_max:
            _refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        if self._head_bytes + self._read_bytes > self._server.limits.header_bytes_max:
            self._check_head()
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        if not self._body and len(body) <= BODY_BYTES_UNASKED:
            self._body = body
        else:
            self._add_to_body(body)

    def _check_head(self) -> None:
        size = len(self._target) + sum(len(name) + len(value) for name, value in self._headers.items())
        if size > self._server.limits.header_bytes_max:
            _refuse_head()

    def _check_unfinished(self, *, same_head: bool) -> None:
        """A request of which more must come: is there too much of it, and does the client wait to be asked?"""
        # How much of a read in which another head ended belongs to this one is not known, nor worth knowing. A read
        # that brings nothing of a chunked body is all sizes of chunks, their extensions, and trailers.
        same_part = same_head and not self._has_moved
        self._head_bytes = self._head_bytes + self._read_bytes if same_part else 0
        if self._head_bytes > self._server.limits.header_bytes_max:
            _refuse_head()
        if self._in_head:
            return
        if self._rule is None and self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._ask_for_rule()
            if not self._exchanges and self._transport:
                self._transport.write(_CONTINUE)  # Else it would be taken for the answer to an earlier request.

    def _ask_for_rule(self) -> BodyRule:
        """Ask how much may come, and refuse a request that says it has more."""
        headers = self._headers
        self._rule = rule = self._server.handler.body_rule(self._parser.get_method(), self._target, headers)
        length = headers.get(b"content-length")
        if length and not rule.cut and int(length) > rule.bytes_max:
            raise _RequestRefusedError(_too_large(rule))
        return rule

    def _add_to_body(self, body: bytes) -> None:
        server = self._server
        rule = self._rule or self._ask_for_rule()
        room = rule.bytes_max - len(self._body)
        if len(body) > room:
            if not rule.cut:
                raise _RequestRefusedError(_too_large(rule))
            body = body[:room]
            self._cut = True
        added = len(self._body) + len(body) - self._body_bytes  # A small first piece was not counted when it came.
        self._body_bytes += added
        server.buffered_bytes += added
        if server.buffered_bytes > server.limits.buffered_bytes_max and not server.make_room(self):
            raise _RequestRefusedError(_too_many_unfinished(server.limits))
        if type(self._body) is bytes:
            self._body = bytearray(self._body)
        self._body += body

    @property
    def kept_bytes(self) -> int:
        return self._body_bytes

    def drop_kept(self) -> None:
        self._end_large_body()
        self._body = b""
        self._refuse(_too_many_unfinished(self._server.limits))

    def on_message_complete(self) -> None:
        server, parser, headers, body = self._server, self._parser, self._headers, self._body
        if b"host" not in headers:
            self._check_version()
        if type(body) is not bytes:
            body = bytes(body)
        keep_alive = parser.should_keep_alive() and not server.stopping
        exchange = _Exchange(parser.get_method(), self._target, headers, body, self._cut, self, keep_alive)
        if not keep_alive or b"connection" in headers:
            exchange.chunked = parser.get_http_version() != "1.0"
        self._target = self._body = b""
        self._in_request = False
        if self._rule is not None:
            self._end_large_body()
        refusal = server.handler.refusal(headers)
        self._latest = exchange
        if refusal is not None:
            self._latest = None  # What is remembered is served, without being asked about.
            exchange.route = partial(_always, refusal)
        self._accept(exchange)

    def _accept(self, exchange: _Exchange) -> None:
        exchanges = self._exchanges
        if self._is_last_taken:
            return
        if not exchange.keep_alive:
            self._is_last_taken = True
        exchanges.append(exchange)
        if self._held or self._backlog or len(exchanges) > PIPELINE_REQUESTS_MAX:
            self._backlog.append(exchange)
            self._pause(True)
        else:
            self._handle(exchange)

    def _end_large_body(self) -> None:
        self._server.buffered_bytes -= self._body_bytes
        self._body_bytes = 0
        self._rule = None
        self._cut = False

    def _check_version(self) -> None:
        version = self._parser.get_http_version()
        if version != "1.0":
            raise _RequestRefusedError(error_response(Fault.BAD_HTTP, f"HTTP/{version} without a Host header"))

    # ── Requests and answers ────────────────────────────────────────────────────────────────────────────────

    def _handle(self, exchange: _Exchange) -> None:
        try:
            route = exchange.route
            if route is None:
                route = exchange.route = self._server.handler.route(exchange)
            result = route(exchange)
            if type(result) is Call:
                exchange.call, exchange.tell = result, result.tell
                if len(self._exchanges) > 1:
                    self._server.handler.decide_collected()
                exchange.pending = self._server.submit(result.command, exchange.answer)
            elif type(result) is Response:
                if result.status == _UNAUTHORIZED:
                    self._end_after(exchange)
                exchange.respond(result)
            elif type(result) is Calls:
                self._handle_several(exchange, result)
            elif type(result) is Work:
                self._begin_work(exchange, result)
            elif type(result) is Upgrade:
                self._begin_upgrade(result, exchange)
            else:
                assert type(result) is Awaited
                self._working = self._held = True
                result.when_ready(partial(self._end_work, exchange))
        except Exception:
            logger.exception("request_failed")
            self._end_work(exchange, error_response(Fault.INTERNAL))

    def _begin_upgrade(self, upgrade: Upgrade, exchange: _Exchange) -> None:
        """The parser is about to say that the request ends here, and where what follows it begins."""
        if len(self._exchanges) > 1 or not self._parser.should_upgrade():
            exchange.respond(error_response(Fault.BAD_WEBSOCKET, "wait for the answers to earlier requests first"))
        else:
            self._upgrade = upgrade

    def _begin_work(self, exchange: _Exchange, work: Work) -> None:
        """Requests after this one wait until it is answered: so a connection has one long answer made at a time."""
        self._working = self._held = True
        exchange.pending = Worker(work.steps, self._server.submit, self._turns, partial(self._end_work, exchange))

    def _end_work(self, exchange: _Exchange, response: Response | Stream) -> None:
        self._working = False
        self._held = self._choked
        exchange.respond(response)
        self._pump()

    def _end_after(self, exchange: _Exchange) -> None:
        """Whoever shows no valid token gets one answer, and has to connect again for the next."""
        for _ in range(len(self._backlog)):
            self._exchanges.pop()  # Nothing of what it has sent since is carried out.
        self._backlog.clear()
        exchange.keep_alive = False
        self._is_last_taken = True
        self._pause(True)

    def _handle_several(self, exchange: _Exchange, calls: Calls) -> None:
        if len(self._exchanges) > 1:
            self._server.handler.decide_collected()
        exchange.tell = calls.tell
        exchange.pending = several = _Several(calls, exchange.answer)
        several.submit(calls, self._server.submit)

    def _pump(self) -> None:
        """Handle requests that had to wait, as long as there is room; then read on."""
        if self._pumping:
            return  # An answer that is ready at once comes back here.
        self._pumping = True
        while self._backlog and not self._held:
            if len(self._exchanges) - len(self._backlog) >= PIPELINE_REQUESTS_MAX:
                break
            exchange = self._backlog.popleft()
            self._handle(exchange)
            if self._ended:
                exchange.give_up()
        self._pumping = False
        if self._may_go_on():
            self._turns.join(self)
        else:
            self._pause(self._is_blocked())

    def drain(self) -> None:
        """Send every answer that is ready and whose turn it is."""
        transport, exchanges, server = self._transport, self._exchanges, self._server
        while exchanges and transport:
            exchange = exchanges[0]
            response = exchange.response
            if response is None or self._flow:
                break
            if type(response) is Stream:
                self._begin_stream(exchange, response)
                continue
            assert type(response) is Response
            exchanges.popleft()
            status, body, keep_alive = response.status, response.body, exchange.keep_alive
            server.responses_by_status[status] += 1
            head = _STATUS_LINES[status] + server.date + response.headers
            if not keep_alive:
                head += b"Connection: close\r\n"
            if status == _NO_CONTENT:
                transport.write(head + b"\r\n")
            elif not body:
                transport.write(head + b"Content-Length: 0\r\n\r\n")
            else:
                head += b"Content-Length: %d\r\n\r\n" % len(body)
                transport.write(head if exchange.method == b"HEAD" else head + body)
            self._since = server.sweeps
            if not keep_alive:
                self._drop_all()
                transport.close()
                return
        if exchanges or self._choked:
            self._count_unread()
        if self._paused:
            self._pump()

    def _count_unread(self) -> None:
        """What the client has not read, and what is ready for it but has to wait for an earlier answer."""
        size = self._transport.get_write_buffer_size() if self._transport and self._choked else 0
        for exchange in self._exchanges:
            response = exchange.response
            if type(response) is Response:
                size += len(response.body)
        if self._unread or size > _UNREAD_BYTES_COUNTED:
            self._unread = size > 0
            self._server.unread.note(self, size)

    def give_up_on_client(self) -> None:
        if self._transport:
            self._transport.abort()

    # ── Streams ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_stream(self, exchange: _Exchange, stream: Stream) -> None:
        assert self._transport is not None
        server = self._server
        server.responses_by_status[stream.status] += 1
        if stream.length is not None:
            framing = b"Content-Length: %d\r\n" % stream.length
        elif exchange.chunked:
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            framing = b""  # The end of the connection is the end of the body.
            exchange.keep_alive = False
        exchange.chunked = exchange.chunked and stream.length is None
        closing = b"" if exchange.keep_alive else b"Connection: close\r\n"
        self._transport.write(
            _STATUS_LINES[stream.status] + server.date + stream.headers + framing + closing + b"\r\n"
        )
        self._flow = _Flow(self, stream)
        if exchange.method == b"HEAD":
            self._flow.close()
            exchange.chunked = False
            self.end_stream()
        elif (server.stopping or self._ended) and stream.endless:
            stream.source.finish()
            self._flow.pull()
        elif not self._choked:
            self._flow.pull()

    def send_piece(self, data: bytes) -> None:
        transport, flow = self._transport, self._flow
        if transport is None or flow is None or transport.is_closing():
            return
        if data:
            self._since = self._server.sweeps
            if self._exchanges[0].chunked:
                transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
            else:
                transport.write(data)
        if not self._choked:
            flow.pull()

    def break_stream(self) -> None:
        """End the connection in a way that tells the client that something is missing."""
        assert self._flow is not None
        if self._transport and (self._exchanges[0].chunked or self._flow.stream.length is not None):
            self._transport.close()
        elif self._transport:
            # Where the end of the connection is the end of the body, only a reset tells that it is not.
            link = self._transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()

    def end_stream(self) -> None:
        """The stream under way is complete."""
        self._flow = None
        exchange = self._exchanges.popleft()
        if self._transport is None:
            return
        if exchange.chunked:
            self._transport.write(b"0\r\n\r\n")
        if exchange.keep_alive:
            self.drain()
        else:
            self._drop_all()
            self._transport.close()

    def _refuse(self, response: Response) -> None:
        """Answer in turn, then close: what follows on this connection cannot be understood."""
        self._pause(True)
        if self._transport and not self._transport.is_closing() and not self._is_last_taken:
            self._is_last_taken = True
            exchange = _Exchange(b"", b"", {}, connection=self)
            self._exchanges.append(exchange)
            exchange.respond(response)

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_time(self, sweeps: int) -> None:
        """Close a connection that idles too long, or whose request or reading takes too long."""
        passed = (sweeps - self._since - 1) / SWEEPS_PER_SECOND
        limits = self._server.limits
        if self._transport and self._transport.get_write_buffer_size():
            self._check_reading(sweeps)
        elif self._exchanges or self._may_go_on():
            return
        elif self._in_request:
            if passed >= limits.slow_client_seconds:
                self._refuse(
                    error_response(Fault.TIMEOUT, f"{limits.slow_client_seconds} s (http.slow_client_seconds)")
                )
        elif passed >= limits.idle_seconds:
            self.close()

    def _check_reading(self, sweeps: int) -> None:
        """A client that reads nothing of what it is sent loses its place."""
        assert self._transport is not None
        since, unsent = self._choked_since
        left = self._transport.get_write_buffer_size()
        if not since or left != unsent:
            self._choked_since = (sweeps, left)
        elif (sweeps - since) / SWEEPS_PER_SECOND >= self._server.limits.slow_client_seconds:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if self._exchanges:
            self._end_after_last()
            if self._flow:
                self._flow.stream.source.finish()
        elif not self._in_request:
            self.close()

    def close(self) -> None:
        if self._transport:
            self._transport.close()


def _is_light(data: bytes) -> bool:
    """Whether a read can hold only a few requests, or chunks of one: it is short, whole, or has few lines."""
    size = len(data)
    if size <= LIGHT_BYTES_MAX:
        return True
    if size > 2 * BODY_BYTES_UNASKED:
        return False
    head_end = data.find(b"\r\n\r\n", 0, LIGHT_BYTES_MAX)
    length = _content_length(data, 0, head_end + 2) if head_end > 0 else None
    if length is not None and head_end + 4 + int(length[1]) == size:
        return True
    return data.count(b"\n") <= LIGHT_LINES_MAX


_content_length = re.compile(rb"\r\ncontent-length: *(\d{1,7})\r\n", re.IGNORECASE).search


def _is_plain(method: bytes, target: bytes) -> bool:
    """A method and a target in which there is nothing that a parser would have to look at twice."""
    path = target.startswith(b"/") and len(target) <= KNOWN_HEAD_BYTES_MAX
    return path and method in _METHODS and not target.translate(None, _PLAIN)


def _remember(known: dict[bytes, Any], known_max: int, key: bytes, value: object) -> None:
    if len(known) >= known_max:
        known.clear()
    if known_max:
        known[key] = value


def _always(result: Result, _: Request) -> Result:
    return result


def _refuse_head() -> NoReturn:
    raise _RequestRefusedError(error_response(Fault.HEADERS_TOO_LARGE, "see http.header_bytes_max"))


def _too_many_unfinished(limits: HttpLimits) -> Response:
    return error_response(Fault.BUFFER_LIMIT, str(limits.buffered_bytes_max))


def _too_large(rule: BodyRule) -> Response:
    return error_response(Fault.TOO_LARGE, f"the body is over {rule.bytes_max} bytes")
