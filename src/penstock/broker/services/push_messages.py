"""Messages pushed to an HTTP endpoint, as values: a message becomes a request, and its response an outcome.

Neither sockets nor time are known here. `docs/push.md` has it in prose.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import quote, quote_from_bytes, urlsplit

import httptools
from msgspec import Struct

from penstock.errors import ProtocolError
from penstock.ids import MessageIds
from penstock.limits import (
    PUSH_RESPONSE_BODY_BYTES_MAX,
    PUSH_RESPONSE_HEAD_BYTES_MAX,
    PUSH_URL_BYTES_MAX,
    RETRY_AFTER_SECONDS_MAX,
    SECOND_NS,
)
from penstock.model.answers import Delivery
from penstock.model.commands import Outcome
from penstock.model.kept_headers import SAFE, kept_header_lines, own_header_lines
from penstock.model.times import rfc3339
from penstock.model.values import Nanos
from penstock.remembering import remembered

_PORTS = {"http": 80, "https": 443}
_OCTETS = b"application/octet-stream"
_NO_CONTENT, _UNPROCESSABLE = 204, 422
_BODILESS = frozenset((204, 304))


# ── Where to ──────────────────────────────────────────────────────────────────────────────────────────────────


class Endpoint(Struct, frozen=True):
    secure: bool
    host: str  # A name, or an address without brackets.
    port: int
    target: str  # Path and query.

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.secure else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The host, if it is an address and not a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_localhost(self) -> bool:
        """Whether the host is one of the names that are always this machine's."""
        name = self.host.rstrip(".")
        return name == "localhost" or name.endswith(".localhost")


def parse_url(url: str) -> Endpoint:
    """Raises `ProtocolError` for a URL that messages cannot be pushed to."""
    if len(url) > PUSH_URL_BYTES_MAX:
        raise ProtocolError(f"a push url has at most {PUSH_URL_BYTES_MAX} characters")
    if not all("!" <= character <= "~" for character in url):
        raise ProtocolError(
            "a push url must be visible ASCII: escape other characters, write other hosts in punycode"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProtocolError(f"the push url cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise ProtocolError("a push url must begin with http:// or https://")
    if not host or port == 0:
        raise ProtocolError("the push url has no valid host and port")
    if "@" in parts.netloc:
        raise ProtocolError("a push url must not have a user or password: everyone who may see the channel sees them")
    if parts.fragment:
        raise ProtocolError("a push url must not have a fragment")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.scheme == "https", host, port or _PORTS[parts.scheme], target)


# ── What is sent ──────────────────────────────────────────────────────────────────────────────────────────────


class RequestWriter:
    """Writes the requests of one channel."""

    def __init__(self, ids: MessageIds, channel: str, endpoint: Endpoint, version: str) -> None:
        self._ids = ids
        self._start = (
            f"POST {endpoint.target} HTTP/1.1\r\nHost: {endpoint.authority}\r\nUser-Agent: penstock/{version}\r\n"
            f"X-Penstock-Channel: {_escaped(channel)}\r\n"
        ).encode("ascii")

    def write(self, message: Delivery) -> bytes:
        """The head of a request. The body is the message's own."""
        head = self._start + _MESSAGE_LINES % (
            self._ids.make(message.queue, message.sequence) if message.sequence else b"",
            message.receives,
            rfc3339(message.created),
            _media_type(message.content_type),
            len(message.body),
        )
        if message.topics:
            head += b"X-Penstock-Topics: %b\r\n" % _listed(message.topics)
        if message.object:
            head += b"X-Penstock-Object: %b\r\n" % _escaped(message.object).encode("ascii")
        if message.key:
            head += b"X-Penstock-Key: %b\r\n" % quote_from_bytes(message.key).encode("ascii")
        if message.sender:
            head += b"X-Penstock-Sender: %b\r\n" % _escaped(message.sender).encode("ascii")
        if message.priority:
            head += b"X-Penstock-Priority: %d\r\n" % message.priority
        if message.headers:
            head += kept_header_lines(message.headers) + own_header_lines(message.headers)
        return head + b"\r\n"


_MESSAGE_LINES = (
    b"X-Penstock-Id: %b\r\nX-Penstock-Receives: %d\r\nX-Penstock-Created: %b\r\n"
    b"Content-Type: %b\r\nContent-Length: %d\r\n"
)


@remembered(1024)
def _escaped(text: str) -> str:
    """Percent-encoded: so nothing that a producer sends can end a header line."""
    return quote(text, SAFE)


@remembered(1024)
def _listed(topics: str) -> bytes:
    return ", ".join(map(_escaped, topics.split("\n"))).encode("ascii")


@remembered(1024)
def _media_type(text: str) -> bytes:
    """A value that cannot be a header cannot be a media type either."""
    plain = all(" " <= character <= "~" for character in text)
    return text.strip().encode("ascii") or _OCTETS if plain else _OCTETS


# ── What comes back ───────────────────────────────────────────────────────────────────────────────────────────


class Reply(Struct, frozen=True, gc=False):
    status: int
    outcome: Outcome
    keep_alive: bool  # Another request may follow on the same connection.
    retry_after: bytes = b""


class ResponseReader:
    """Reads the responses on one connection, one at a time. Bodies and trailers are discarded,
    and together they have one limit."""

    __slots__ = (
        "_ended_by_close",
        "_head_bytes",
        "_head_is_complete",
        "_headers",
        "_parser",
        "_reply",
        "_rest_bytes",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.expect()

    def expect(self) -> None:
        """A request was sent: a response is to follow."""
        self._head_bytes = self._rest_bytes = 0
        self._head_is_complete = False
        self._ended_by_close = False
        self._reply: Reply | None = None
        self._headers: dict[bytes, bytes] = {}

    def receive(self, data: bytes) -> Reply | None:
        """The reply, once the response is complete, or as much of it as is ever read. Raises
        `ProtocolError` for what is no response."""
        after_head, rest_bytes = self._head_is_complete, self._rest_bytes
        if not after_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._reply is None:
                raise ProtocolError(f"the response is not HTTP: {error}") from None
            return self._last_reply()  # Complete; what follows it is of no account.
        if self._reply is None:
            if not self._head_is_complete and self._head_bytes > PUSH_RESPONSE_HEAD_BYTES_MAX:
                raise ProtocolError(f"the response has more than {PUSH_RESPONSE_HEAD_BYTES_MAX} bytes of header")
            if after_head and self._rest_bytes == rest_bytes:
                self._rest_bytes += len(data)  # All of it belongs to a trailer, or to the size of a chunk.
            if self._rest_bytes > PUSH_RESPONSE_BODY_BYTES_MAX:
                return self._judge(keep_alive=False)
        return self._reply

    def end(self) -> Reply | None:
        """The connection was closed: the reply, if the response ends that way."""
        return self._judge(keep_alive=False) if self._ended_by_close else None

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._reply is not None:
            self._reply = self._last_reply()  # A response to a request that was never sent.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_is_complete:
            self._rest_bytes += len(name) + len(value)  # A trailer is discarded, like the body.
        elif self._reply is None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._reply is not None:
            return
        self._head_is_complete = True
        lengths = self._headers.keys() & {b"content-length", b"transfer-encoding"}
        self._ended_by_close = not lengths and status not in _BODILESS

    def on_body(self, body: bytes) -> None:
        self._rest_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers = {}  # An interim response; the real one follows.
        elif self._reply is None:
            self._reply = self._judge(keep_alive=self._parser.should_keep_alive())

    def _judge(self, keep_alive: bool) -> Reply:
        status, headers = self._parser.get_status_code(), self._headers
        outcome = outcome_of(status, headers.get(b"x-penstock-outcome", b""))
        return Reply(status, outcome, keep_alive, headers.get(b"retry-after", b""))

    def _last_reply(self) -> Reply:
        assert self._reply is not None
        return Reply(self._reply.status, self._reply.outcome, False, self._reply.retry_after)


def outcome_of(status: int, header: bytes) -> Outcome:
    """The outcome of a message, by the response to it. Redirects are not followed."""
    if status == _NO_CONTENT and header.strip().lower() == b"not-interested":
        return "not_interested"
    if 200 <= status < 300:
        return "success"
    return "invalid" if status == _UNPROCESSABLE else "retry"


def retry_after_ns(text: bytes, now: Nanos) -> Nanos:
    """How long an endpoint asks to wait, in seconds or as a date; 0 if it does not ask, or not clearly."""
    text = text.strip()
    if text.isdigit():
        seconds = int(text) if len(text) < 10 else RETRY_AFTER_SECONDS_MAX
        return min(seconds, RETRY_AFTER_SECONDS_MAX) * SECOND_NS
    try:
        seconds = int(parsedate_to_datetime(text.decode("latin-1")).timestamp()) if text else 0
    except (ValueError, OverflowError):
        return 0
    return min(max(seconds * SECOND_NS - now, 0), RETRY_AFTER_SECONDS_MAX * SECOND_NS)
