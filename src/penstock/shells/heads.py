"""Heads of requests that were seen before: they are neither parsed nor routed a second time (ADR 12).

A client sends the same head again and again, or at least the same header fields. Remembering them must never change
what is understood: every condition here is one under which the parser would find the same request in the same bytes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from penstock.dialects.wire.http import Headers, Request, announced_bytes
from penstock.limits import BODY_BYTES_UNASKED, KNOWN_HEAD_BYTES_MAX, KNOWN_HEADS_MAX
from penstock.model.access import NOBODY, Access
from penstock.shells.exchanges import Drain, Exchange, Result, Route

_METHODS = frozenset((b"GET", b"POST", b"DELETE", b"PUT", b"HEAD"))
_REPEATED = frozenset((b"GET", b"POST"))  # Other methods usually name something new each time.
_PLAIN = b"/-._~%?=&+ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_SPECIAL = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"idempotency-key"))  # The last is never the same.


class Fields(Struct, gc=False):
    """Header fields, as they were parsed before."""

    headers: Headers
    body_bytes: int
    access: Access  # Of the client, which the fields show.


class Head(Struct, gc=False):
    """The head of a request, as it was parsed and routed before."""

    text: bytes  # With the empty line.
    request_bytes: int  # With the body.
    method: bytes
    target: bytes
    headers: Headers
    route: Route
    access: Access


class Accepter(Drain, Protocol):
    """A connection, as far as known heads are concerned."""

    usual: Head | None  # The last known head: usually the next one is the same.

    def accept(self, exchange: Exchange) -> None: ...
    def accept_known(self, head: Head, data: bytes) -> None: ...


class KnownHeads:
    """What the connections of one server remember."""

    def __init__(self, header_bytes_max: int) -> None:
        self.most = KNOWN_HEADS_MAX  # With 0 nothing is remembered, and every request goes through the parser.
        self.fields: dict[bytes, Fields] = {}
        self.heads: dict[bytes, Head] = {}
        self._header_bytes_max = header_bytes_max

    def accept(self, connection: Accepter, data: bytes, head_end: int, keep_alive: bool) -> bool:
        """Accept a read that is one whole request, if its head or its header fields were seen before."""
        head = self.heads.get(data[:head_end])
        if head is not None and len(data) == head.request_bytes:
            connection.usual = head
            connection.accept_known(head, data)
            return True
        line_end = data.find(b"\r\n")
        fields = self.fields.get(data[line_end:head_end])
        if fields is None or len(data) != head_end + 4 + fields.body_bytes:
            return False
        words = data[:line_end].split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1" or not _is_plain(words[0], words[1]):
            return False
        body = data[head_end + 4 :]
        exchange = Exchange(words[0], words[1], fields.headers, body, False, connection, keep_alive)
        exchange.access, exchange.is_identified = fields.access, True
        connection.accept(exchange)
        if words[0] in _REPEATED:
            self._learn_head(data[:head_end], exchange)
        return True

    def forget(self) -> None:
        """What heads and fields were routed to may have changed: an identity has."""
        self.fields.clear()
        self.heads.clear()

    def learn_fields(self, data: bytes, exchange: Exchange) -> None:
        """Remember the header fields of a request that came whole in one read, if there is nothing special to it."""
        headers = exchange.headers
        length = announced_bytes(headers)
        plain = exchange.keep_alive and b"host" in headers and not _SPECIAL & headers.keys()
        if exchange.access is NOBODY:
            return  # A token may become valid.
        line = b"%b %b HTTP/1.1\r\n" % (exchange.method, exchange.target)
        if not plain or not data.startswith(line):  # An empty line may come before the request line.
            return
        line_end, head_end = len(line) - 2, data.find(b"\r\n\r\n")
        small = head_end - line_end <= KNOWN_HEAD_BYTES_MAX <= self._header_bytes_max // 2
        if small and len(data) == head_end + 4 + length and length <= BODY_BYTES_UNASKED:
            self._remember(self.fields, data[line_end:head_end], Fields(headers, length, exchange.access))

    def _learn_head(self, head: bytes, exchange: Exchange) -> None:
        """Remember the head of a request with known fields: its route and, if it has no body, its call. Handlers are
        functions of the request alone."""
        route = exchange.route
        if exchange.call is not None and not exchange.body:
            route = partial(always, exchange.call)
        if route is not None and exchange.access is not NOBODY:  # A token may become valid.
            text = head + b"\r\n\r\n"
            facts = (exchange.method, exchange.target, exchange.headers)
            self._remember(
                self.heads, head, Head(text, len(text) + len(exchange.body), *facts, route, exchange.access)
            )

    def _remember(self, known: dict[bytes, Any], key: bytes, value: object) -> None:
        if len(known) >= self.most:
            known.clear()
        if self.most:
            known[key] = value


def always(result: Result, _: Request) -> Result:
    return result


def _is_plain(method: bytes, target: bytes) -> bool:
    """Whether a parser would accept these as they are."""
    path = target.startswith(b"/") and len(target) <= KNOWN_HEAD_BYTES_MAX
    return path and method in _METHODS and not target.translate(None, _PLAIN)
