"""The two servers of a broker, HTTP and JSON lines: where they listen, and what they share."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial

from penstock.dialects.etzel.codec import refusal
from penstock.dialects.wire.conversation import Peer
from penstock.errors import ConfigError, InUseError, PenstockError
from penstock.server.config import Address, Config
from penstock.server.identities import Identities
from penstock.server.listening import listening_process
from penstock.server.quotas.quotas import Quotas
from penstock.server.shells.connection import Server
from penstock.server.shells.handler import Handler
from penstock.server.shells.http_server import HttpServer
from penstock.server.shells.lines import LineConversation, LineServer
from penstock.server.shells.secure import listen as listen_securely
from penstock.server.shells.turns import Turns
from penstock.server.shells.unread import Unread
from penstock.server.tls import Tls
from penstock.server.writer.port import ClientPort


class Servers:
    def __init__(
        self,
        config: Config,
        handler: Handler,
        writer: ClientPort,
        converse: Callable[[Peer], LineConversation],
        turns: Turns,
        quotas: Quotas,
        identities: Identities,
    ) -> None:
        """`handler`: of HTTP requests. `writer` and `converse`: of the clients that send lines."""
        self._config = config
        self._listeners: list[asyncio.Server] = []
        unread = Unread(config.unread_bytes_max)
        self.http = HttpServer(handler, config.http, turns, unread, quotas)
        self.lines = LineServer(
            writer, config.lines, converse, refusal, turns, unread, quotas, identities.of_certificate
        )
        self.all: tuple[Server, ...] = (self.http, self.lines)
        identities.on_change += [server.expel for server in self.all]

    async def listen(self, tls: Tls | None, backlog: int, *, is_shared: bool = False) -> list[Address]:
        """Returns the addresses for HTTP and for lines. `backlog`: clients of each that may wait to be accepted.
        `is_shared`: other processes listen there too."""
        listen = partial(_listen, tls=tls, backlog=backlog, is_shared=is_shared)
        self._listeners = [
            await listen(self.http, self._config.http.address),
            await listen(self.lines, self._config.lines.address),
        ]
        return [Address(*each.sockets[0].getsockname()[:2]) for each in self._listeners]

    @property
    def is_empty(self) -> bool:
        return not any(server.connections for server in self.all)

    def stop(self) -> None:
        """Finish the current requests, and accept nothing new."""
        for listener in self._listeners:
            listener.close()
        for server in self.all:
            server.stop()

    def close(self) -> None:
        for server in self.all:
            server.close()


async def _listen(
    server: HttpServer | LineServer, address: Address, tls: Tls | None, backlog: int, *, is_shared: bool
) -> asyncio.Server:
    try:
        if tls:
            return await listen_securely(server, tls, *address, backlog, is_shared=is_shared)
        return await server.listen(*address, backlog, is_shared=is_shared)
    except OSError as error:
        raise cannot_listen(address, error) from None


_OPTIONS = "--http HOST:PORT, --lines HOST:PORT"


def cannot_listen(address: Address, error: OSError, options: str = _OPTIONS) -> PenstockError:
    """`options`: those that choose another address."""
    if error.errno == errno.EADDRINUSE:
        return InUseError(
            f"cannot listen on {address}: {listening_process(address.port)} listens there."
            f" Stop it, or choose another address: {options}"
        )
    return ConfigError(f"cannot listen on {address}: {error.strerror or error}")
