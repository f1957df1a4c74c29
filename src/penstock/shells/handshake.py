"""From HTTP to WebSocket: the handshake (RFC 6455, section 4), and the conversation that it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from websockets.datastructures import Headers as HandshakeHeaders
from websockets.http11 import Request as HandshakeRequest
from websockets.server import ServerProtocol

from penstock.broker.quotas.meter import Meter
from penstock.broker.writer.port import ClientPort
from penstock.dialects.wire.conversation import Conversation
from penstock.dialects.wire.http import Headers, Request, Response, error_response, method_not_allowed
from penstock.errors import Fault
from penstock.model.access import Access
from penstock.shells.exchanges import Upgrade
from penstock.shells.http_server import HttpServer
from penstock.shells.ws import WsConnection, WsLimits

GLOVEBOX = b"/connect/"
Converse = Callable[[WsConnection, Headers], Conversation]
"""How a dialect begins a conversation: with the shell, and the headers of the handshake."""


class Relay(Protocol):
    """Passes connections on to other processes, where the sessions are that they continue."""

    def elsewhere(self, headers: Headers) -> int | None:
        """The other process that has the session which these headers continue."""

    @property
    def pass_on(self) -> Callable[[int, Request, asyncio.Transport, bytes, Meter | None, Callable[[], None]], None]:
        """Let another process continue with the connection of a client: which process, the handshake, what has been
        read after it, what the client pays with, and what to do if that process cannot be reached."""


class WebSockets:
    """The WebSocket paths of the broker."""

    def __init__(
        self,
        writer: ClientPort,
        limits: WsLimits,
        conversations: Mapping[bytes, Converse],
        relay: Relay | None = None,
    ) -> None:
        """`relay`: to other processes, if there are some."""
        self._relay = relay
        self._writer = writer
        self._limits = limits
        self._conversations = conversations

    def handshake(self, request: Request) -> Response | Upgrade | None:
        """The answer to a request for one of the paths; None if it is for another."""
        path = request.target.partition(b"?")[0]
        if path not in self._conversations:
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
        return Upgrade(lines, partial(self._take_over, path, request))

    def _take_over(
        self,
        path: bytes,
        request: Request,
        server: HttpServer,
        transport: asyncio.Transport,
        rest: bytes,
        meter: Meter | None,
    ) -> None:
        begin = partial(self.begin, path, server, meter, transport, request.headers, request.access, rest)
        other = self._relay.elsewhere(request.headers) if self._relay and path == GLOVEBOX else None
        if self._relay and other is not None:
            self._relay.pass_on(other, request, transport, rest, meter, begin)
        else:
            begin()

    def begin(
        self,
        path: bytes,
        server: HttpServer,
        meter: Meter | None,
        transport: asyncio.Transport,
        headers: Headers,
        access: Access,
        rest: bytes,
    ) -> None:
        """The conversation of a connection whose handshake is complete."""
        connection = WsConnection(server, self._writer, self._limits, transport)
        connection.meter, connection.access = meter, access
        connection.dialect = "glovebox" if path == GLOVEBOX else "etzel"
        transport.set_protocol(connection)
        connection.open(lambda peer: self._conversations[path](peer, headers), rest)


def _handshake_request(request: Request) -> HandshakeRequest:
    headers = HandshakeHeaders()
    for name, value in request.headers.items():
        headers[name.decode("latin-1")] = value.decode("latin-1")
    return HandshakeRequest(request.target.decode("latin-1"), headers)
