"""The two servers of a broker, HTTP and JSON lines: where they listen, and what they share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from penstock.broker.identities import Identities
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.room import Room
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ClientPort
from penstock.cluster.workers.doors import Door
from penstock.config.config import Address, Config
from penstock.dialects.etzel.codec import refusal
from penstock.dialects.wire.conversation import Peer
from penstock.shells.connection import Server
from penstock.shells.handler import Handler
from penstock.shells.http_server import HttpServer
from penstock.shells.lines import LineConversation, LineServer
from penstock.shells.listening import cannot_listen
from penstock.shells.secure import listen as listen_securely
from penstock.shells.tls import Tls


class Servers:
    def __init__(
        self,
        config: Config,
        handler: Handler,
        writer: ClientPort,
        converse: Callable[[Peer], LineConversation],
        turns: Turns,
        room: Room,
        quotas: Quotas,
        identities: Identities,
    ) -> None:
        """`handler`: of HTTP requests. `writer` and `converse`: of the clients that send lines."""
        self._config = config
        self._listeners: list[asyncio.Server] = []
        self.http = HttpServer(handler, config.http, turns, room, quotas)
        self.lines = LineServer(
            writer, config.lines, converse, refusal, turns, room, quotas, identities.of_certificate
        )
        self.all: tuple[Server, ...] = (self.http, self.lines)
        identities.on_change += [server.expel for server in self.all]

    async def listen(self, tls: Tls | None, backlog: int, door: Door | None = None) -> list[Address]:
        """Returns the addresses for HTTP and for lines. `backlog`: clients of each that may wait to be accepted.
        `door`: where to accept them, if the addresses are those of several processes."""
        self._accept = partial(_listen, tls=tls, backlog=backlog)
        self._listeners = await self.accept_at(door)
        return [Address(*each.sockets[0].getsockname()[:2]) for each in self._listeners]

    async def accept_at(self, door: Door | None) -> list[asyncio.Server]:
        """Accept connections at one more door, until what this returns is closed. The door stays open."""
        http, lines = (each.dup() for each in door) if door else (None, None)
        return [
            await self._accept(self.http, self._config.http.address, http),
            await self._accept(self.lines, self._config.lines.address, lines),
        ]

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
    server: HttpServer | LineServer, address: Address, door: socket.socket | None, *, tls: Tls | None, backlog: int
) -> asyncio.Server:
    try:
        if tls:
            return await listen_securely(server, tls, *address, backlog, door)
        return await server.listen(*address, backlog, door=door)
    except OSError as error:
        raise cannot_listen(address, error) from None
