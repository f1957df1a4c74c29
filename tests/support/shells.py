"""Doubles for the shells: a transport that keeps what is written, a handler that notes what is asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from penstock.dialects.wire.conversation import Peer
from penstock.dialects.wire.http import Awaited, BodyRule, Headers, Request, Response, Steps, Stream, Work
from penstock.model.answers import Answer
from penstock.model.client import Client
from penstock.model.commands import Command
from penstock.model.queries import Query
from penstock.shells.exchanges import Route


class NoSocket:
    family = socket.AF_INET

    def setsockopt(self, *_: object) -> None: ...


class Wire(asyncio.Transport):
    """Takes what is written, and knows whether it may be read from."""

    def __init__(self) -> None:
        super().__init__({"socket": NoSocket()})
        self.written = b""
        self.unsent = 0  # Bytes that the client has not read.
        self.reading = True
        self.closed = False
        self.aborted = False
        self.ended = False  # Nothing more is sent, or handed to the connection.

    def set_protocol(self, _: asyncio.BaseProtocol) -> None:
        self.ended = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = self.ended = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Witness:
    """Notes what is asked for, and answers at once, but for /long, which takes a hundred steps, and /door, which is
    shut."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.awaited: list[Callable[[Response | Stream], None]] = []
        self.steps = 0

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def refusal(self, headers: Headers) -> Response | None:
        return None

    def head_refusal(self, request: Request) -> None:
        pass

    def failed(self, request: Request) -> Response:
        return Response(500)

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response | Work | Awaited:
        self.seen.append(request.target)
        if request.target == b"/elsewhere":
            return Awaited(self.awaited.append)
        if request.target == b"/long":
            return Work(self._take_long())
        return Response(401 if request.target == b"/door" else 200)

    def _take_long(self) -> Steps:
        for _ in range(100):
            self.steps += 1
            yield None
        return Response(200, b"at last")

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None], /) -> None:
        raise AssertionError("nothing here is a question")

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> None:
        raise AssertionError("nothing here is a command")

    def decide_collected(self) -> None: ...


class Echo:
    """Counts what it hears."""

    under_way = 0
    asleep = False
    guest = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.heard = 0

    def opened(self) -> None: ...
    def received(self, frame: bytes, *, binary: bool = False) -> None:
        self.heard += 1
        self._peer.send(frame)

    def refuse(self, error: str) -> None: ...
    def settle(self) -> None: ...
    def closed(self) -> None: ...
