"""What the HTTP shell needs from the application that it serves, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.dialects.wire.http import BodyRule, Headers, Request, Response
from penstock.model.answers import Answer
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.model.queries import Query
from penstock.shells.connection import Limits
from penstock.shells.exchanges import Route


class Handler(Protocol):
    """The application that the shell serves."""

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        """How much body is allowed. Asked when it is more than `BODY_BYTES_UNASKED`."""

    def refusal(self, headers: Headers) -> Response | None:
        """Why a request with these header fields is refused, or None: a function of the fields alone."""

    def head_refusal(self, request: Request) -> Response | None:
        """Why the body of this request is not read: its head shows no valid token, or one that does not allow it."""

    def failed(self, request: Request) -> Response:
        """What answers a request that has led to an error which no code expects."""

    def route(self, request: Request) -> Route:
        """What handles this request: a function of the request alone. Sets the access that its client has."""

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> Pending | None:
        """Carry out a command, and call `reply` with the answer once, now or later. What is returned is cancelled if
        the client goes away first, and given up if it may have gone."""

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None], /) -> Pending | None:
        """The same for a question."""

    def decide_collected(self) -> None:
        """Decide the commands submitted so far. Called before those of a request that did not wait for the answer to
        the one before it: see `dialects.wire.order`."""


class HttpLimits(Limits, Protocol):
    @property
    def header_bytes_max(self) -> int: ...
