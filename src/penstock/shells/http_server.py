"""All HTTP connections of one listening address, and what they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from email.utils import formatdate

from penstock.broker.figures.measures import Samples, one
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.room import Room
from penstock.broker.turns import Turns
from penstock.model.access import Access
from penstock.shells.connection import Server
from penstock.shells.handler import Handler, HttpLimits
from penstock.shells.heads import KnownHeads
from penstock.shells.http import HttpConnection
from penstock.shells.long_answers import LongAnswers


class HttpServer(Server):
    """All connections of one listening address, those that went on in WebSocket among them."""

    limits: HttpLimits

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        turns: Turns | None = None,
        room: Room | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        super().__init__(limits, turns, room, quotas)
        self.long_answers = LongAnswers(self.turns)
        self.handler = handler
        self.submit = handler.submit
        self.known = KnownHeads(limits.header_bytes_max)
        self.websockets = 0  # How many connections speak WebSocket.
        self.responses_by_status = [0] * 600
        self.date = b""

    def state(self) -> Iterator[tuple[str, Samples]]:
        responses = enumerate(self.responses_by_status)
        yield "penstock_http_connections", one(len(self.connections))
        yield "penstock_websocket_connections", one(self.websockets)
        yield "penstock_http_buffered_bytes", one(self.buffered_bytes)
        yield "penstock_http_responses_total", [((str(status),), count) for status, count in responses if count]
        yield "penstock_unread_bytes", one(self.room.bytes)
        yield "penstock_unread_closed_total", one(self.room.closed)

    def connect(self) -> HttpConnection:
        return HttpConnection(self)

    def expel(self, ended: Collection[Access]) -> None:
        self.known.forget()
        super().expel(ended)

    def _sweep(self) -> None:
        self.date = b"Date: " + formatdate(usegmt=True).encode() + b"\r\n"
        super()._sweep()
