"""HTTP connections to endpoints: each has one request at a time, and is kept for a while for the next one."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol, cast

from penstock.broker.own_addresses import is_own
from penstock.broker.services.addresses import is_public
from penstock.broker.services.push_messages import Endpoint, Reply, ResponseReader
from penstock.errors import ProtocolError
from penstock.limits import PUSH_IDLE_SECONDS

_JOINED_BYTES_MAX = 64 << 10  # A larger body is written separately: copying it would cost more than a second write.


class Exchange(Protocol):
    """The sender of a request. One of the two methods is called, once."""

    def answered(self, reply: Reply) -> None: ...

    def broken(self, reason: str, is_stale: bool) -> None:
        """No answer will come. `is_stale`: the connection was idle before, and the endpoint has closed it."""


class Connections:
    """All connections to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, tls: Callable[[], ssl.SSLContext], allow_private: bool, on_empty: Callable[[], None]
    ) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._allow_private = allow_private
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # The last one used is the next one used.
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def take(self) -> Connection | None:
        """An idle connection, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing:
                return connection
        return None

    async def connect(self) -> Connection:
        """Connect to an address that was checked, not to the name, which may resolve to another address the next
        time. Raises `OSError`, or `ProtocolError` if no address is allowed."""
        endpoint = self.endpoint
        tls = self._tls() if endpoint.secure else None
        failure = OSError(f"{endpoint.host} has no address")
        for address in await self._addresses():
            try:
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self),
                    address,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=endpoint.host if tls else None,
                )
                return connection
            except OSError as error:
                failure = error
        raise failure

    async def _addresses(self) -> list[str]:
        host = self.endpoint.host
        found = [host] if self.endpoint.address else await self._resolve(host)
        if self._allow_private:
            return found
        refusals = {address: refusal_of(ip_address(address)) for address in found}
        allowed = [address for address, refusal in refusals.items() if refusal is None]
        if found and not allowed:
            raise ProtocolError(f"{host} ({found[0]}) {refusals[found[0]]}")
        return allowed

    async def _resolve(self, host: str) -> list[str]:
        try:
            entries = await self._loop.getaddrinfo(host, self.endpoint.port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise ProtocolError(f"{host} is not a valid host name") from None
        return list(dict.fromkeys([str(entry[4][0]) for entry in entries]))

    def keep(self, connection: Connection) -> None:
        """Keep an idle connection for the next request."""
        if self._closed:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(PUSH_IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        self._sweeper = None
        latest = self._loop.time() - PUSH_IDLE_SECONDS
        for connection in [connection for connection in self._idle if connection.idle_since <= latest]:
            connection.close()
        if self._idle:
            self._sweeper = self._loop.call_at(self._idle[0].idle_since + PUSH_IDLE_SECONDS, self._sweep)

    def close(self) -> None:
        """Close the idle connections now, and the others after their request."""
        self._closed = True
        for connection in list(self._idle):
            connection.close()
        if self._sweeper:
            self._sweeper.cancel()

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        if connection not in self._open:
            return
        self._open.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open:
            self._on_empty()


class Connection(asyncio.Protocol):
    __slots__ = ("_exchange", "_heard", "_home", "_reader", "_transport", "_used", "idle_since")

    _transport: asyncio.Transport

    def __init__(self, home: Connections) -> None:
        self.idle_since = 0.0
        self._home = home
        self._reader = ResponseReader()
        self._exchange: Exchange | None = None
        self._used = False  # A request was answered on this connection.
        self._heard = False  # Bytes have arrived since the last request.

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def send(self, head: bytes, body: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self._heard = False
        self._reader.expect()
        if len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Close at once, even during a request; its sender is not notified."""
        self._exchange = None
        self._home.remove(self)
        self._transport.abort()

    # ── The transport's side ────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._home.add(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # The endpoint sent bytes without a request.
            return
        self._heard = True
        try:
            reply = self._reader.receive(data)
        except ProtocolError as error:
            self.close()
            exchange.broken(str(error), is_stale=False)
            return
        if reply:
            self._answer(exchange, reply)

    def connection_lost(self, error: Exception | None) -> None:
        exchange = self._exchange
        self._home.remove(self)
        if exchange is None:
            return
        reply = self._reader.end() if error is None else None
        if reply:
            self._answer(exchange, reply)
        else:
            self._exchange = None
            exchange.broken("closed before the answer was complete", self._used and not self._heard)

    def _answer(self, exchange: Exchange, reply: Reply) -> None:
        self._exchange = None
        self._used = True
        if reply.keep_alive and not self._transport.get_write_buffer_size():
            self._home.keep(self)
        else:
            self.close()
        exchange.answered(reply)


def refusal_of(address: IPv4Address | IPv6Address) -> str | None:
    """Why nothing may be sent to an address, as the end of a sentence that begins with it."""
    if is_own(address):
        return f"is an address of this machine; {_REMEDY}"
    return None if is_public(address) else _PRIVATE


def known_refusal(endpoint: Endpoint) -> str | None:
    """The same for an endpoint, as far as it is known before its name is resolved."""
    if endpoint.address:
        return refusal_of(endpoint.address)
    return _PRIVATE if endpoint.is_localhost else None


_REMEDY = 'set push.private_addresses to "allow" to permit it'
_PRIVATE = f"is this machine or in a private or reserved network; {_REMEDY}"
