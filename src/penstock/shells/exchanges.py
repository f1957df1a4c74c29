"""One HTTP request with the answer to it, from the moment it is complete until the answer is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from penstock.broker.quotas.meter import Meter
from penstock.dialects.wire.http import Awaited, Call, Calls, Request, Response, Stream, Work, error_response
from penstock.errors import Fault
from penstock.model.answers import Answer
from penstock.model.client import Pending
from penstock.model.commands import Command

if TYPE_CHECKING:
    from penstock.shells.http_server import HttpServer

logger = logging.getLogger(__name__)


STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
Submit = Callable[[Command, Callable[[Answer], None]], Pending | None]


class Upgrade(Struct, gc=False):
    """The connection switches to another protocol, after 101 and these header lines. `take_over` gets the transport,
    what the client has sent since, and what counts it for quotas."""

    headers: bytes
    take_over: Callable[[HttpServer, asyncio.Transport, bytes, Meter | None], None]


Result = Response | Call | Calls | Awaited | Work | Upgrade
Route = Callable[[Request], Result]  # Gives the response, or what leads to it.


class Drain(Protocol):
    """The connection of an exchange."""

    @property
    def address(self) -> str:
        """Of the client."""

    @property
    def holder(self) -> Any:
        """Of the answer."""

    def drain(self) -> None:
        """Send every answer that is ready and whose turn it is."""


class Exchange(Request, gc=False, kw_only=False):
    """One request and the answer to it.

    The garbage collector does not look into it, which would cost time for each request. So nothing that it holds may
    lead back to it once it is answered: `pending` and streams do, and are let go.
    """

    connection: Drain | None = None  # None if no client waits for the answer any more.
    keep_alive: bool = False
    route: Route | None = None
    call: Call | None = None
    render: Callable[[Any], Response | Stream] | None = None
    pending: Pending | None = None
    response: Response | Stream | None = None
    chunked: bool = True  # The client understands chunks, as every client of HTTP/1.1 does.

    @property
    def address(self) -> str:
        return self.connection.address if self.connection else ""

    @property
    def holder(self) -> Any:
        return self.connection and self.connection.holder

    def answer(self, answer: Answer | Sequence[Answer]) -> None:
        assert self.render is not None
        self.pending = None
        try:
            self.response = self.render(answer)
        except Exception:
            logger.exception("answer_failed")
            self.response = error_response(Fault.INTERNAL)
        if self.connection:
            self.connection.drain()

    def respond(self, response: Response | Stream) -> None:
        self.pending = None
        self.response = response
        if self.connection:
            self.connection.drain()
        elif type(response) is Stream:
            response.source.close()  # The client went away while the stream was being made.

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.connection = None
        pending, self.pending = self.pending, None
        if pending:
            pending.cancel()
        if type(self.response) is Stream:
            self.response.source.close()

    def end_waiting(self, response: Response) -> None:
        """Answer this, whatever it waits for; the connection ends with it."""
        self.keep_alive = False
        if self.pending:
            self.pending.cancel()
        self.respond(response)

    def give_up(self) -> None:
        """The client may be gone: answer with what there is."""
        if self.pending:
            self.pending.give_up()


class Several:
    """Several commands of one exchange, which is answered when all of them are."""

    def __init__(self, calls: Calls, answer: Callable[[Sequence[Answer]], None], submit: Submit) -> None:
        self._answers: list[Answer | None] = [None] * len(calls.commands)
        self._missing = len(calls.commands)
        self._answer = answer
        submitted = [submit(command, partial(self._take, index)) for index, command in enumerate(calls.commands)]
        self._pending = [pending for pending in submitted if pending]

    def _take(self, index: int, answer: Answer) -> None:
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._answer(cast("Sequence[Answer]", self._answers))

    def cancel(self) -> None:
        for pending in self._pending:
            pending.cancel()

    def give_up(self) -> None:
        for pending in self._pending:
            pending.give_up()
