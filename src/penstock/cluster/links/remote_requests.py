"""Whole requests between workers: one sends a request of its client, the other answers it in one of its shards.

Long bodies cross in parts, in both directions: each part is sent when the last one has arrived and the next is
wanted. So a long body does not keep others from using the link, and a stream goes no faster than its client reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.broker.room import Room
from penstock.cluster.links.codec import (
    BeginStream,
    EndStream,
    FinishStream,
    Hurry,
    Respond,
    SendBody,
    SendPart,
    SendRequest,
    WantBody,
    WantPart,
)
from penstock.dialects.wire.http import Request, Response, Stream
from penstock.limits import LINK_PART_BYTES
from penstock.model.answers import Refused
from penstock.model.client import Client, Pending
from penstock.model.streams import Sink, Source

RespondTo = Callable[[Response | Stream | Refused], None]  # Refused: nobody could be asked.
Send = Callable[[Any], None]

_SECRETS = frozenset((b"authorization", b"cookie"))  # Who the client is was decided before.


def may_change_something(request: Request) -> bool:
    """A channel may hand its messages over for good. What is leased to nobody comes back by itself."""
    path, _, _ = request.target.partition(b"?")
    is_fetch = path.startswith(b"/v1/channels/") and path.endswith(b"/messages")
    return is_fetch or request.method not in (b"GET", b"HEAD")


class RequestPort(Protocol):
    """Whole requests for one shard, which may be anywhere."""

    def ask(self, request: Request, respond: RespondTo) -> Pending | None:
        """Call `respond` once, unless what is returned is cancelled first."""


class ForwardedRequest(Request, gc=False, kw_only=True):
    """A request of another worker's client."""

    client: Client

    @property
    def address(self) -> str:
        return self.client.address


# ── The worker that has the client ────────────────────────────────────────────────────────────────────────────


class SentRequest:
    """A request that the other worker answers; then the source of its response, if that is a stream."""

    def __init__(self, number: int, body: bytes, respond: RespondTo, send: Send, forget: Callable[[], bool]) -> None:
        """`forget`: the other worker need not answer; returns whether it still would have."""
        self._number = number
        self._body = body
        self._sent = min(len(body), LINK_PART_BYTES)
        self._respond = respond
        self._send = send
        self._forget = forget
        self._sink: Sink | None = None  # What waits for the next part.
        self._is_begun = self._is_lost = False
        self._actions: dict[type, Callable[[Any], None]] = {
            WantBody: lambda _: self._go_on(),
            Respond: self._responded,
            BeginStream: self._begun,
            SendPart: self._give,
            EndStream: self._end,
            Refused: self._lose,
        }

    def entry(self, shard: int, client: int, request: Request) -> SendRequest:
        headers = {name: value for name, value in request.headers.items() if name not in _SECRETS}
        facts = (request.method, request.target, headers, request.certificate, request.cut)
        return SendRequest(self._number, shard, client, *facts, self._body[: self._sent], len(self._body))

    def take(self, entry: Any) -> None:
        """What the other worker sends, or `Refused` if the link is lost."""
        self._actions[type(entry)](entry)

    def _go_on(self) -> None:
        part = self._body[self._sent : self._sent + LINK_PART_BYTES]
        self._sent += len(part)
        self._send(SendBody(self._number, part))

    def _responded(self, entry: Respond) -> None:
        self._respond(Response(entry.status, entry.body, entry.headers))

    def _begun(self, entry: BeginStream) -> None:
        self._is_begun = True
        self._respond(Stream(entry.status, entry.headers, self, entry.length, entry.is_endless))

    def _give(self, entry: SendPart) -> None:
        sink, self._sink = self._sink, None
        if sink:
            sink.give(entry.data)

    def _end(self, entry: EndStream) -> None:
        if self._sink:
            self._sink.fail() if entry.has_failed else self._sink.end()

    def _lose(self, refused: Refused) -> None:
        self._is_lost = True
        if not self._is_begun:
            self._respond(refused)
        elif self._sink:
            self._sink.fail()

    # ── The client's side ───────────────────────────────────────────────────────────────────────────────────

    def pull(self, sink: Sink) -> None:
        self._sink = sink
        if self._is_lost:
            asyncio.get_running_loop().call_soon(sink.fail)
        else:
            self._send(WantPart(self._number))

    def finish(self) -> None:
        self._send(FinishStream(self._number))

    def close(self) -> None:
        self._sink = None
        self._forget()

    def cancel(self) -> None:
        self._forget()

    def give_up(self) -> None:
        self._send(Hurry(self._number))


# ── The worker that has the shard ─────────────────────────────────────────────────────────────────────────────


class ServedRequest:
    """A request of the other worker's client; then the sink of its response, if that is a stream."""

    def __init__(
        self,
        entry: SendRequest,
        client: Client,
        port: RequestPort,
        send: Send,
        over: Callable[[], None],
        room: Room | None = None,
    ) -> None:
        """`over`: called when everything is sent. `room`: for a long body, until the client has taken it."""
        self._room = room
        self._number = entry.number
        self._body = bytearray(entry.body)
        self._body_bytes = entry.body_bytes
        self._request = _request_of(entry, client)
        self._port = port
        self._send = send
        self._over = over
        self._pending: Pending | None = None
        self._source: Source | None = None
        self._is_answered = self._is_canceled = False

    def begin(self) -> None:
        """Handle the request if its body is complete, else ask for more."""
        if len(self._body) < self._body_bytes:
            self._send(WantBody(self._number))
            return
        self._request.body, self._body = bytes(self._body), bytearray()
        pending = self._port.ask(self._request, self._respond)
        self._pending = None if self._is_answered else pending

    def take(self, entry: SendBody) -> None:
        self._body += entry.data
        self.begin()

    def _respond(self, response: Response | Stream | Refused) -> None:
        assert not isinstance(response, Refused), "the shard is here"
        self._is_answered, self._pending = True, None
        if isinstance(response, Response) and len(response.body) > LINK_PART_BYTES:
            source = BodySource(response.body)
            if self._room and not self._is_canceled:
                self._room.note(self, len(response.body))
            response = Stream(response.status, response.headers, source, len(response.body))
        if isinstance(response, Response):
            self._send(Respond(self._number, response.status, response.headers, response.body))
            self._over()
        elif self._is_canceled:
            response.source.close()
        else:
            self._source = response.source
            facts = (response.status, response.headers, response.length, response.endless)
            self._send(BeginStream(self._number, *facts))

    def pull(self) -> None:
        """The other worker wants the next part."""
        if self._source:
            self._source.pull(self)

    def finish(self) -> None:
        if self._source:
            self._source.finish()

    def cancel(self) -> None:
        """The client has gone away."""
        self._is_canceled = True
        pending, self._pending = self._pending, None
        if pending:
            pending.cancel()
        self._close()

    def give_up(self) -> None:
        if self._pending:
            self._pending.give_up()

    def _close(self) -> None:
        source, self._source = self._source, None
        if source:
            source.close()
        if self._room:
            self._room.leave(self)

    # ── The sink of the response ────────────────────────────────────────────────────────────────────────────

    def give(self, data: bytes) -> None:
        if self._source:
            self._send(SendPart(self._number, data))

    def end(self) -> None:
        self._ended(has_failed=False)

    def fail(self) -> None:
        self._ended(has_failed=True)

    def cut_off(self) -> None:
        self.fail()

    def abort(self) -> None:
        """It holds the most, and others need the room."""
        self.fail()

    def _ended(self, *, has_failed: bool) -> None:
        if self._source:
            self._close()
            self._send(EndStream(self._number, has_failed))
            self._over()


class BodySource:
    """A body that is there already, in parts."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._sent = 0

    def pull(self, sink: Sink) -> None:
        part = self._body[self._sent : self._sent + LINK_PART_BYTES]
        self._sent += len(part)
        asyncio.get_running_loop().call_soon(*((sink.give, part) if part else (sink.end,)))

    def finish(self) -> None:
        """Ends by itself."""

    def close(self) -> None:
        self._body = b""


def _request_of(entry: SendRequest, client: Client) -> ForwardedRequest:
    request = ForwardedRequest(entry.method, entry.target, entry.headers, b"", entry.is_cut, client=client)
    request.access, request.certificate, request.is_identified = client.access, entry.certificate, True
    return request


class RemoteRequests:
    """Whole requests for a shard of another worker. `link` is replaced when it was lost and there is a new one."""

    def __init__(self, shard: int, link: RequestLink) -> None:
        self._shard = shard
        self.link = link

    def ask(self, request: Request, respond: RespondTo) -> Pending | None:
        return self.link.request(self._shard, request, respond)


class RequestLink(Protocol):
    def request(self, shard: int, request: Request, respond: RespondTo) -> Pending | None: ...
