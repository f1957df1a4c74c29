"""HTTP requests from bytes: heads, bodies, trailers, and the limits of each.

httptools calls back for each part of a request. A callback costs as much as a good part of the engine: so there are
as few as possible, and what most requests do not need is left to those that do.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import httptools

from penstock.dialects.wire.http import BodyRule, Headers, Response, announced_bytes, error_response
from penstock.errors import Fault
from penstock.limits import (
    BODY_BYTES_UNASKED,
    FAREWELL_BYTES_MAX,
    LIGHT_BYTES_MAX,
    LIGHT_LINES_MAX,
    REQUEST_TARGET_BYTES_MAX,
)
from penstock.shells.connection import Connection
from penstock.shells.exchanges import Drain, Exchange
from penstock.shells.heads import always

if TYPE_CHECKING:
    from penstock.shells.http_server import HttpServer

logger = logging.getLogger(__name__)

_FIELD_BYTES = len(b": \r\n")  # What a header field has beside its name and value.


class RequestRefusedError(Exception):
    """The request cannot be accepted; the connection ends with this response."""

    def __init__(self, response: Response) -> None:
        self.response = response


class Accepter(Drain, Protocol):
    """A connection, as its reader sees it."""

    begun_at: int

    def accept(self, exchange: Exchange) -> None: ...
    def keep(self, size: int) -> bool: ...
    def send_continue(self) -> None: ...
    def head_refusal(self, head: tuple[bytes, bytes, Headers]) -> Response | None: ...


class RequestReader:
    """Reads the requests of one connection, which accepts each when it is complete."""

    __slots__ = (
        "_body",
        "_connection",
        "_cut",
        "_has_moved",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_parser",
        "_read_bytes",
        "_rule",
        "_server",
        "_target",
        "_trailer_bytes",
        "heads",
        "latest",
    )

    def __init__(self, connection: Accepter, server: HttpServer) -> None:
        self._connection = connection
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self.heads = 0  # How many were complete.
        self.latest: Exchange | None = None  # The last one in the current read, unless it was refused.
        self._in_head = False
        self._head_bytes = 0  # Whole reads that brought only an incomplete head, or nothing of a body after it.
        self._trailer_bytes = 0
        self._has_moved = False  # Whether the current read contained part of a body.
        self._read_bytes = 0  # In the current read.
        self._target = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._cut = False  # The rest of the body is dropped.
        self._rule: BodyRule | None = None  # Of a large body.

    def feed(self, data: bytes) -> None:
        """Read on. Raises `RequestRefusedError`, and what httptools raises for an upgrade."""
        heads = self.heads
        self._read_bytes = len(data)
        self._has_moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except httptools.HttpParserError as error:
            raise RequestRefusedError(error_response(Fault.BAD_HTTP, str(error))) from None
        if self._connection.begun_at:
            self._check_unfinished(same_head=heads == self.heads)

    def wants_upgrade(self) -> bool:
        """The request that is complete just now asks for another protocol."""
        return bool(self._parser.should_upgrade())

    def missing_bytes(self) -> int:
        """How much of a body must still come, if its length is known and all of it is kept."""
        length = announced_bytes(self._headers)
        if not self._connection.begun_at or self._in_head or self._cut or not length:
            return 0
        return 0 if b"transfer-encoding" in self._headers else length - len(self._body)

    # ── The parser's callbacks ──────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """Called with the first byte of a request: from here on the parser must see every byte, to its end."""
        self._connection.begun_at = self._server.sweeps
        self._in_head = True
        self._head_bytes = self._trailer_bytes = 0
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        """Called again if the target comes in pieces."""
        self._target += url
        if len(self._target) > REQUEST_TARGET_BYTES_MAX:
            _refuse(Fault.TARGET_TOO_LONG, f"at most {REQUEST_TARGET_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._drop_trailer(len(name) + len(value))
            return
        name = name.lower()
        if name == b"host" and name in self._headers:
            _refuse(Fault.BAD_HTTP, "it has more than one Host header")
        self._headers[name] = value

    def _drop_trailer(self, size: int) -> None:
        """A field after a chunked body is ignored, but its size counts like that of a header field."""
        self._trailer_bytes += size + _FIELD_BYTES
        if self._trailer_bytes > self._server.limits.header_bytes_max:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.heads += 1
        if self._head_bytes + self._read_bytes > self._server.limits.header_bytes_max:
            self._check_head()
        self._head_bytes = 0

    def _check_head(self) -> None:
        size = len(self._target) + sum(len(name) + len(value) for name, value in self._headers.items())
        if size > self._server.limits.header_bytes_max:
            self._refuse_head()

    def _refuse_head(self) -> NoReturn:
        most = self._server.limits.header_bytes_max
        _refuse(Fault.HEADERS_TOO_LARGE, f"at most {most} bytes: see http.header_bytes_max")

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        if not self._body and len(body) <= BODY_BYTES_UNASKED:
            self._body = body
        else:
            self._add_to_body(body)

    def on_message_complete(self) -> None:
        server, parser, headers, body = self._server, self._parser, self._headers, self._body
        if b"host" not in headers:
            self._check_version()
        if type(body) is not bytes:
            body = bytes(body)
        keep_alive = parser.should_keep_alive() and not server.stopping
        connection = self._connection
        exchange = Exchange(parser.get_method(), self._target, headers, body, self._cut, connection, keep_alive)
        if not keep_alive or b"connection" in headers:
            exchange.chunked = parser.get_http_version() != "1.0"
        self._target = self._body = b""
        connection.begun_at = 0
        if self._rule is not None:
            self.drop_body()
        refusal = server.handler.refusal(headers)
        self.latest = exchange
        if refusal is not None:
            self.latest = None  # What is remembered is accepted without being asked about.
            exchange.route = partial(always, refusal)
        connection.accept(exchange)

    def _check_version(self) -> None:
        version = self._parser.get_http_version()
        if version != "1.0":
            _refuse(Fault.BAD_HTTP, f"HTTP/{version} without a Host header")

    # ── Bodies ──────────────────────────────────────────────────────────────────────────────────────────────

    def _check_unfinished(self, *, same_head: bool) -> None:
        """Check an incomplete request: is it too large already, and does the client wait for 100 Continue?"""
        # How much of a read in which another head ended belongs to this one is not known, nor worth knowing. A read
        # that brings nothing of a chunked body is all sizes of chunks, their extensions, and trailers.
        same_part = same_head and not self._has_moved
        self._head_bytes = self._head_bytes + self._read_bytes if same_part else 0
        if self._head_bytes > self._server.limits.header_bytes_max:
            self._refuse_head()
        if self._in_head:
            return
        if not same_head:
            head = (self._parser.get_method(), self._target, self._headers)
            if refused := self._connection.head_refusal(head):
                raise RequestRefusedError(refused)
        if self._rule is None and self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._ask_for_rule()
            self._connection.send_continue()

    def _ask_for_rule(self) -> BodyRule:
        """Ask how much body is allowed, and refuse a request that announces more."""
        headers = self._headers
        self._rule = rule = self._server.handler.body_rule(self._parser.get_method(), self._target, headers)
        if not rule.cut and announced_bytes(headers) > rule.bytes_max:
            _refuse_body(rule)
        return rule

    def _add_to_body(self, body: bytes) -> None:
        rule = self._rule or self._ask_for_rule()
        room = rule.bytes_max - len(self._body)
        if len(body) > room:
            if not rule.cut:
                _refuse_body(rule)
            body = body[:room]
            self._cut = True
        if not self._connection.keep(len(self._body) + len(body)):
            _refuse(Fault.BUFFER_LIMIT, str(self._server.limits.buffered_bytes_max))
        if type(self._body) is bytes:
            self._body = bytearray(self._body)
        self._body += body

    def drop_body(self) -> None:
        self._body = b""
        self._connection.keep(0)
        self._rule = None
        self._cut = False


def _refuse(fault: Fault, detail: str) -> NoReturn:
    raise RequestRefusedError(error_response(fault, detail))


def _refuse_body(rule: BodyRule) -> NoReturn:
    _refuse(Fault.TOO_LARGE, f"the body is over {rule.bytes_max} bytes")


def is_light(data: bytes) -> bool:
    """Whether a read can hold only a few requests, or a few chunks of one: it is short, one request, or few lines."""
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


# What comes after the last answer of a connection is read and dropped, until the client closes, the time is over,
# or it is more than any request has. If a connection is closed before all is read that came, it is reset, and the
# client may lose an answer that is on its way: the refusal of a large body, which the client is still sending.


class Farewell(asyncio.Protocol):
    """Takes the place of a connection that has sent its last answer. The connection still ends it in time."""

    __slots__ = ("_connection", "_room")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._room = FAREWELL_BYTES_MAX
        transport.set_protocol(self)
        transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self._connection.abort()
        else:
            self._connection.drop(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
