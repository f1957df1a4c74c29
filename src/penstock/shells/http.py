"""The HTTP shell: one connection, and its answers in the order of its requests, which may be pipelined. No tasks, no
futures. `requests.py` and `heads.py` make requests from bytes; a handler answers them, at once or later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools

from penstock.broker.quotas.work import paying
from penstock.dialects.wire.http import (
    Awaited,
    Call,
    Calls,
    Headers,
    Response,
    Stream,
    Work,
    error_response,
    unauthorized,
)
from penstock.dialects.wire.http import refusal as refusal_response
from penstock.errors import Fault
from penstock.limits import LIGHT_BYTES_MAX, PART_BYTES, PART_BYTES_CROWDED, PIPELINE_REQUESTS_MAX
from penstock.model.access import NOBODY, Access
from penstock.model.answers import Refused
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.model.queries import Query
from penstock.shells import outbox
from penstock.shells.connection import PLAIN_PORT, Connection, is_tls
from penstock.shells.exchanges import STATUS_LINES, Exchange, Several, Upgrade
from penstock.shells.heads import Head, KnownHeads
from penstock.shells.requests import Farewell, RequestReader, RequestRefusedError, is_light
from penstock.shells.secure import certificate_name
from penstock.shells.streams import Flow

if TYPE_CHECKING:
    from penstock.shells.http_server import HttpServer

logger = logging.getLogger(__name__)

_COMMANDS = frozenset((Call, Calls))
_NO_CONTENT = 204
_UNAUTHORIZED = 401
_INVALID_TOKEN = b'error="invalid_token"'  # In a challenge: a token was shown (RFC 6750, section 3.1).
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(Connection):
    """One connection. It has more than 30 methods because requests, streams and upgrades decide together what is read
    and sent."""

    __slots__ = (
        "_backlog",
        "_certificate",
        "_ended",
        "_exchanges",
        "_flow",
        "_has_parted",
        "_is_last_taken",
        "_known",
        "_lingers",
        "_pumping",
        "_reader",
        "_upgrade",
        "_working",
        "usual",
    )

    PART_BYTES = PART_BYTES
    PART_BYTES_CROWDED = PART_BYTES_CROWDED

    _server: HttpServer

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self._reader = RequestReader(self, server)
        self._exchanges: deque[Exchange] = deque()  # All that are not answered yet, in order.
        self._backlog: deque[Exchange] = deque()  # The last of them, not handled yet.
        self._flow: Flow | None = None  # The answer to the first of them, while it is a stream.
        self._pumping = False
        self._working = False  # An answer is being made that takes long: nothing else is handled.
        self._ended = False  # The client has closed its side.
        self._is_last_taken = False  # The connection ends with the answer to it: no later request is carried out.
        self._has_parted = False  # The last answer is sent.
        self._lingers = False  # After the last answer, what the client still sends is read for a while.
        self._upgrade: Upgrade | None = None  # What the connection is about to become.
        self._certificate = ""  # The name in the client's certificate.
        # What is known of a head includes its client's access: with a certificate, that is not in the head.
        self._known: KnownHeads | None = server.known
        self.usual: Head | None = None  # The last known head: usually the next one is the same.

    def _begin(self) -> None:
        assert self.transport is not None
        self._certificate = certificate_name(self.transport)
        self._known = None if self._certificate else self._known

    def _refuse_connection(self, refused: Refused | None) -> None:
        most = str(self._server.limits.connections_max)
        response = refusal_response(refused) if refused else error_response(Fault.CONNECTION_LIMIT, most)
        self._refuse(response, lingers=False)  # It would take the place of others.

    def _leave(self) -> None:
        if self._flow:
            self._flow.close()
            self._flow = None
            self._exchanges.popleft().connection = None
        for exchange in self._exchanges:
            exchange.drop()
        self._exchanges.clear()
        self._backlog.clear()
        self._reader.latest = None  # It knows this connection, and the garbage collector does not see it.

    # ── Requests in ─────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, data: bytes) -> None:
        if self.meter is not None:
            self._count_read(self.meter, len(data))
        size, usual = len(data), self.usual
        if usual and (self.begun_at or size != usual.request_bytes or not data.startswith(usual.text)):
            usual = None
        if size <= LIGHT_BYTES_MAX and (usual or not self._parked):
            self._turns.light += self.is_light
            if usual:
                self.accept_known(usual, data)
            else:
                self._receive(data)
        elif self._parked or not (usual or is_light(data)):
            self._wait_for_turn(data, begins=True)
            self._pace()
        elif not self._turns.handle(self, partial(self.accept_known, usual) if usual else self._receive, data):
            self._wait_for_turn(data, begins=False)

    def _receive(self, data: bytes) -> None:
        head_end, known = data.find(b"\r\n\r\n"), None if self.begun_at else self._known
        if head_end > 0 and known is not None and known.accept(self, data, head_end, not self._server.stopping):
            return
        reader = self._reader
        heads, at_start = reader.heads, not self.begun_at
        self._parse(data)
        is_one = at_start and reader.heads == heads + 1 and not self.begun_at
        if is_one and reader.latest and self._known is not None:
            self._known.learn_fields(data, reader.latest)
        reader.latest = None
        self._pace()

    def accept_known(self, head: Head, data: bytes) -> None:
        body, keep_alive = data[len(head.text) :], not self._server.stopping
        exchange = Exchange(head.method, head.target, head.headers, body, False, self, keep_alive, head.route)
        exchange.access = head.access  # Twice as fast as by keyword.
        self.accept(exchange)

    def _take_part(self, crowded: bool) -> bool:
        if self._may_go_on():
            self._parse(self._next_part(crowded))
        self._pause(bool(self._parked) or self._is_blocked())
        return self._may_go_on()

    def _missing_bytes(self) -> int:
        return self._reader.missing_bytes()

    def _is_blocked(self) -> bool:
        """Nothing more can be handled for now, or for good."""
        waits = self._working or self._resting or self.choked or bool(self._backlog)
        return waits or (self._is_last_taken and not self._has_parted)

    def _has_ended(self) -> bool:
        return self._has_parted

    def _may_go_on(self) -> bool:
        """Something was read that need not wait any more."""
        return bool(self._parked) and self.transport is not None and not self._is_blocked()

    def _parse(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade_to(data[upgrade.args[0] :] + self._forget_parked())
        except RequestRefusedError as refused:
            if is_tls(data):
                self._server.note_misdirected(PLAIN_PORT)
            self._count_fault()
            self._refuse(refused.response)

    def accept(self, exchange: Exchange) -> None:
        """A request is complete."""
        exchanges = self._exchanges
        if self._is_last_taken:
            return
        if not exchange.keep_alive:
            self._is_last_taken = True
        exchanges.append(exchange)
        if self._working or self._resting or self.choked or self._backlog or len(exchanges) > PIPELINE_REQUESTS_MAX:
            self._backlog.append(exchange)
            self._pause(True)
        else:
            self._handle(exchange)

    def head_refusal(self, head: tuple[bytes, bytes, Headers]) -> Response | None:
        return self._server.handler.head_refusal(Exchange(*head, connection=self, certificate=self._certificate))

    def send_continue(self) -> None:
        if not self._exchanges and self.transport:  # Else it would be taken for the answer to an earlier request.
            self.transport.write(_CONTINUE)

    def drop_kept(self) -> None:
        self._reader.drop_body()
        self._refuse(error_response(Fault.BUFFER_LIMIT, str(self._server.limits.buffered_bytes_max)))

    def _refuse(self, response: Response, *, lingers: bool = True) -> None:
        """Answer in turn, then close: what follows on this connection cannot be understood."""
        self._pause(True)
        if self.transport and not self.transport.is_closing() and not self._is_last_taken:
            self._is_last_taken = True
            self._lingers = lingers
            exchange = Exchange(b"", b"", {}, connection=self)
            self._exchanges.append(exchange)
            self._respond(exchange, response)

    def _refuse_surprise(self) -> None:
        who = self._identity or NOBODY
        self._refuse(self._server.handler.failed(Exchange(b"", b"", {}, connection=self, access=who)))

    def _respond(self, exchange: Exchange, response: Response | Stream) -> None:
        """At once, unless the client has shown an invalid token."""
        if response.status == _UNAUTHORIZED and _INVALID_TOKEN in response.headers:
            self._refuse_login(partial(exchange.respond, response))
        else:
            exchange.respond(response)

    def eof_received(self) -> bool:
        """A client may close its side and still wait for its answers. But a client that was killed ends like this
        too: nothing that becomes ready later is handed to it."""
        self._ended = True
        if self._exchanges:
            self._end_after_last()
        if self._flow and self._flow.endless:
            self._flow.source.finish()
        for exchange in list(self._exchanges):
            exchange.give_up()
        return bool(self._exchanges)

    # ── Handling ────────────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, exchange: Exchange) -> None:
        try:
            route = exchange.route
            if route is None:
                exchange.certificate = self._certificate
                route = exchange.route = self._server.handler.route(exchange)
            if exchange.access is not self._identity and (refused := self.identify(exchange.access)):
                self._end_after(exchange)
                exchange.respond(refusal_response(refused))
                return
            if self.meter is not None and (refused := self._request_refused(self.meter)):
                exchange.respond(refusal_response(refused))
                self._rest(refused.retry_seconds)
                return
            result = route(exchange)
            if len(self._exchanges) > 1 and type(result) in _COMMANDS and self._must_wait(exchange):
                return
            if type(result) is Call:
                exchange.call, exchange.render = result, result.render
                submit = self._server.submit if self.meter is None else self._submit  # One call less for most.
                pending = submit(exchange, result.command, exchange.answer)
                exchange.pending = pending if exchange.response is None else None
            elif type(result) is Response:
                if result.status == _UNAUTHORIZED:
                    self._end_after(exchange)
                self._respond(exchange, result)
            elif type(result) is Calls:
                exchange.render = result.render
                several = Several(result, exchange.answer, partial(self._submit, exchange))
                exchange.pending = several if exchange.response is None else None
            elif type(result) is Work:  # Later requests wait: a connection has one long answer made at a time.
                self._working = True
                done = partial(self._end_work, exchange)
                submit = partial(self._submit, exchange)
                asked = (exchange.target, exchange.access)
                exchange.pending = self._server.long_answers.ask(asked, result.steps, submit, done, self.meter)
            elif type(result) is Upgrade:
                self._begin_upgrade(result, exchange)
            else:
                assert type(result) is Awaited
                self._working = True
                with paying(self.meter):
                    pending = result.when_ready(partial(self._end_work, exchange))
                exchange.pending = pending if exchange.response is None else None
        except Exception:
            logger.exception(self.SURPRISE)
            self._end_work(exchange, self._server.handler.failed(exchange))

    def _must_wait(self, exchange: Exchange) -> bool:
        """Have earlier commands decided. If there is no room for an answer to one of them, this one waits."""
        self._server.handler.decide_collected()
        if not self._server.room.has_waiting(self):
            return False
        if self.meter is not None:
            self.meter.take("requests_per_second", -1)  # It is counted again then.
        self._backlog.appendleft(exchange)
        self._pause(True)
        return True

    def _submit(self, client: Client, command: Command | Query, reply: Callable[[Any], None]) -> Pending | None:
        if isinstance(command, Query):
            with paying(self.meter):
                return self._server.handler.ask(client, command, reply)
        submit = self._server.submit if self.meter is None else partial(self._submit_metered, self._server.submit)
        return submit(client, command, reply)

    def _end_work(self, exchange: Exchange, response: Response | Stream) -> None:
        self._working = False
        if response.status == _UNAUTHORIZED:
            self._end_after(exchange)
        self._respond(exchange, response)
        self._rest_if_refused()
        self._go_on()

    def _end_after(self, exchange: Exchange) -> None:
        """A client without a valid token gets one answer, and has to connect again for the next."""
        for _ in range(len(self._backlog)):
            self._exchanges.pop()  # Nothing that it has sent since is carried out.
        self._backlog.clear()
        exchange.keep_alive = False
        self._is_last_taken = self._lingers = True
        self._pause(True)

    def _go_on(self) -> None:
        """Send more of a stream, handle requests that had to wait as long as there is room, then read on."""
        if self._flow and not self.choked:
            self._flow.pull()
        if self._pumping:
            return  # An answer that is ready at once comes back here.
        self._pumping = True
        waits = self._server.room.has_waiting
        while self._backlog and not (self._working or self._resting or self.choked or waits(self)):
            if len(self._exchanges) - len(self._backlog) >= PIPELINE_REQUESTS_MAX:
                break
            exchange = self._backlog.popleft()
            self._handle(exchange)
            if self._ended:
                exchange.give_up()
        self._pumping = False
        if self._may_go_on():
            self._turns.join(self)
        else:
            self._pause(self._is_blocked())

    # ── Upgrades ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_upgrade(self, upgrade: Upgrade, exchange: Exchange) -> None:
        """The parser is about to say that the request ends here, and where what follows it begins."""
        if len(self._exchanges) > 1 or not self._reader.wants_upgrade():
            exchange.respond(error_response(Fault.BAD_WEBSOCKET, "wait for the answers to earlier requests first"))
        else:
            self._upgrade = upgrade

    def _upgrade_to(self, rest: bytes) -> None:
        """Hand the connection over if the handler switches it to another protocol."""
        upgrade, transport, server = self._upgrade, self.transport, self._server
        if upgrade is None or transport is None:
            # The request was accepted as plain HTTP/1.1, which declines the upgrade; then the connection ends.
            self._count_fault()
            self._pause(True)
            if self._exchanges:
                self._end_after_last()
            else:
                self.disconnect()
            return
        self.transport, meter, self.meter = None, self.meter, None
        self._leave()
        server.connections.discard(self)
        server.responses_by_status[101] += 1
        transport.write(STATUS_LINES[101] + server.date + upgrade.headers + b"\r\n")
        upgrade.take_over(server, transport, rest, meter)

    def _end_after_last(self) -> None:
        self._exchanges[-1].keep_alive = False
        self._is_last_taken = True

    # ── Answers out ─────────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        transport, exchanges, server = self.transport, self._exchanges, self._server
        while exchanges and transport:
            exchange = exchanges[0]
            response = exchange.response
            if response is None or self._flow:
                break
            if type(response) is Stream:
                self._begin_stream(exchange, response)
                continue
            assert type(response) is Response
            exchanges.popleft()
            status, body, keep_alive = response.status, response.body, exchange.keep_alive
            server.responses_by_status[status] += 1
            head = STATUS_LINES[status] + server.date + response.headers
            if not keep_alive:
                head += b"Connection: close\r\n"
            if status == _NO_CONTENT:
                transport.write(head + b"\r\n")
            elif not body:
                transport.write(head + b"Content-Length: 0\r\n\r\n")
            else:
                head += b"Content-Length: %d\r\n\r\n" % len(body)
                if exchange.method == b"HEAD":
                    transport.write(head)
                elif outbox.takes_at_once(transport, len(body)):
                    transport.write(head + body)
                else:
                    outbox.send(self, (head, body))
                    transport = self.transport
            self._since = server.sweeps
            if not keep_alive:
                self._part()
                return
        if exchanges or self.choked:
            self._count_unread()
        if self._paused:
            self._go_on()

    def _begin_stream(self, exchange: Exchange, stream: Stream) -> None:
        assert self.transport is not None
        server = self._server
        server.responses_by_status[stream.status] += 1
        self._flow = flow = Flow(self, exchange, stream)
        exchange.response = None  # The stream's source knows the flow, and so the exchange.
        head = STATUS_LINES[stream.status] + server.date + stream.headers
        self.transport.write(head + flow.framing() + b"\r\n")
        self._count_unread()
        flow.begin(finish=server.stopping or self._ended)

    def end_stream(self) -> None:
        self._flow = None
        self._count_unread()
        exchange = self._exchanges.popleft()
        exchange.connection = None
        self._since = self._server.sweeps
        if self.transport is None:
            return
        if exchange.keep_alive:
            self.drain()
        else:
            self._part()

    def _part(self) -> None:
        """The last answer is sent."""
        transport = self.transport
        self._leave()
        if transport is None or transport.is_closing():
            return
        if self._ended or not self._lingers:
            transport.close()
            return
        self.begun_at, self._has_parted = 0, True
        self._forget_parked()
        self.keep(0)
        Farewell(self, transport)
        self._pause(False)

    def _unread_bytes(self) -> int:
        """Also what is ready for the client, but has to wait for an earlier answer."""
        ready = sum([len(each.response.body) for each in self._exchanges if type(each.response) is Response])
        return super()._unread_bytes() + ready + (self._flow.held_bytes if self._flow else 0)

    # ── Time and the end ────────────────────────────────────────────────────────────────────────────────────

    def _is_busy(self) -> bool:
        return bool(self._exchanges) or self._may_go_on()

    def _patience(self) -> float:
        return self._server.limits.slow_client_seconds if self._lingers else super()._patience()

    def _end_incomplete(self, seconds: float) -> None:
        self._refuse(error_response(Fault.TIMEOUT, f"{seconds:g} s (http.slow_client_seconds)"))

    def expel(self, ended: Collection[Access]) -> None:
        """A stream is cut off, and requests that wait are answered with 401. Others are about to be answered."""
        self.usual = None
        if self._flow and self._exchanges[0].access in ended:
            self.abort()
        for exchange in [each for each in self._exchanges if each.access in ended and each.pending]:
            exchange.end_waiting(unauthorized(was_shown=True))

    def stop(self) -> None:
        if self._exchanges:
            self._end_after_last()
            if self._flow:
                self._flow.source.finish()
        elif not self.begun_at:
            self.disconnect()
