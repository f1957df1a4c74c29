"""The connection between two workers. Each sends the commands that are for the shards of the other.

Everything of one turn leaves in one write. A command counts against the link until it is answered: its answer is the
permission to send more. Commands that wait for a message are small, and do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.http import Pending as PendingRequest
from penstock.dialects.wire.http import Request
from penstock.errors import ProtocolError, Reason
from penstock.limits import LINK_BYTES_MAX, LINK_CLIENTS_MAX, LINK_FRAME_BYTES, LINK_UNSENT_BYTES_MAX
from penstock.model.access import Access
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.commands import Command, Publish
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS
from penstock.model.values import Place, Stage
from penstock.server.shards.codec import (
    FORM,
    Announce,
    Answered,
    Ask,
    BeginStream,
    Decide,
    Dismiss,
    EndStream,
    FinishStream,
    Follow,
    Frames,
    Greet,
    Happened,
    Hurry,
    Introduce,
    Reach,
    Respond,
    SendBody,
    SendPart,
    SendRequest,
    WantBody,
    WantPart,
    WatchQueue,
    Withdraw,
    encode,
    frame,
    pack,
    unpack,
)
from penstock.server.shards.compact import compacted
from penstock.server.shards.remote_requests import RequestPort, RespondTo, SentRequest, ServedRequest
from penstock.server.writer.port import ClientPort, Lost, Pending, Reply, Report, nobody

logger = logging.getLogger(__name__)

_LOST = Refused(Reason.UNAVAILABLE, "the connection to the process that has this queue was lost")
_FULL = Refused(Reason.UNAVAILABLE, "the process that has this queue does not keep up")
_ELSEWHERE = Refused(Reason.UNAVAILABLE, "the queue is not in this process")
_STAGES = list(Stage)


class Call:
    """Something that another worker does, or tells when it happens."""

    __slots__ = ("_link", "is_followed", "number", "reply", "size")

    def __init__(self, link: Link, number: int, reply: Reply, size: int = 0, *, is_followed: bool = False) -> None:
        self._link = link
        self.number = number
        self.reply = reply
        self.size = size  # What it counts against the link.
        self.is_followed = is_followed

    @property
    def is_waiting(self) -> bool:
        """Whether its answer has not arrived. Only the other worker knows more."""
        return self.number in self._link.calls

    def cancel(self) -> None:
        if self._link.calls.pop(self.number, None):
            self._link.send(Withdraw(self.number))

    def give_up(self) -> None:
        if self.is_waiting:
            self._link.send(Hurry(self.number))


Acts = Mapping[type, Callable[["Link", Any], None]]  # What to do with entries of these kinds.


class Link(asyncio.Protocol):
    """Both ends of everything that crosses: it has more than 30 methods, because each kind of entry has one."""

    def __init__(
        self,
        worker: int,
        ports: Mapping[int, ClientPort],
        when_greeted: Callable[[Link], None] = lambda _: None,
        when_lost: Callable[[Link], None] = lambda _: None,
        requests: Mapping[int, RequestPort] | None = None,
        acts: Acts | None = None,
        epochs: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`worker`: the number of this one. `ports`, `requests`: its shards. `acts`: what is not about a shard.
        `epochs`: of its shards."""
        self._worker = worker
        self._ports = ports
        self._epochs = epochs
        self._requests = {} if requests is None else requests
        self._when_greeted = when_greeted
        self._when_lost = when_lost
        self.peer: int | None = None  # The number of the other worker, once it has sent it.
        self.shards: Mapping[int, int] = {}  # Those of the other worker, each with its epoch.
        self._announced: dict[int, int] = {}  # Those of this one, as the other one knows them.
        self.calls: dict[int, Call] = {}  # What the other one has to answer.
        self.unanswered_bytes = 0
        self._numbers = 0
        self._stored: tuple[Place, int] | None = None  # A message that the other end follows, while it is answered.
        self._undecided: set[int] = set()  # Shards that had a command since the last `Decide`.
        self._introduced: dict[tuple[Access, str, str], int] = {}
        self._served = _Served(self.send)
        self._clients: dict[int, Client] = {}
        self._frames = Frames()
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._actions: dict[type, Callable[[Any], None]] = {
            Answered: self._answered,
            Happened: self._happened,
            Ask: self._asked,
            Reach: self._reach,
            WatchQueue: self._watch,
            Follow: self._follow,
            Withdraw: lambda entry: self._served.withdraw(entry.number),
            Hurry: lambda entry: self._served.hurry(entry.number),
            Decide: self._decide,
            Introduce: self._introduce,
            Dismiss: self._dismiss,
            Greet: self._greeted,
            SendRequest: self._serve_request,
            SendBody: partial(self._serve, lambda served, entry: served.take(entry)),
            WantPart: partial(self._serve, lambda served, _: served.pull()),
            FinishStream: partial(self._serve, lambda served, _: served.finish()),
            **dict.fromkeys((WantBody, SendPart), self._go_on),
            **dict.fromkeys((Respond, BeginStream, EndStream), self._responded),
            **{kind: partial(act, self) for kind, act in (acts or {}).items()},
        }

    # ── Commands for the other worker ───────────────────────────────────────────────────────────────────────

    def submit(
        self, shard: int, client: Client | None, command: Command, reply: Reply, stage: Stage = Stage.SYNC
    ) -> Pending | None:
        """Have the other worker carry out a command in one of its shards. Without a client, it is this worker's."""
        if self._transport is None:
            reply(_LOST)
            return None
        if type(command) is Publish:
            command, reply = compacted(command, reply)
        number = self._numbers = self._numbers + 1
        data = encode(Ask(number, shard, self._number_of(client) if client else 0, stage, command))
        waits = getattr(command, "wait_ns", 0)
        size = 0 if waits else len(data)
        if size and self.unanswered_bytes and self.unanswered_bytes + size > LINK_BYTES_MAX:
            reply(_FULL)
            return None
        self.unanswered_bytes += size
        self._undecided.add(shard)
        call = self.calls[number] = Call(self, number, reply, size, is_followed=_is_followed(command, stage))
        self._collect(data)
        return call if waits else None

    def reach(self, shard: int, stage: Stage, reply: Reply) -> None:
        """Have it answered when everything that was decided there has reached the stage."""
        self._call(lambda number: Reach(number, shard, stage), reply)

    def watch(self, shard: int, queue: str, wake: Callable[[], None]) -> Cancelable:
        """Be woken once when the queue has a ready message, or when the link is lost."""
        return self._call(lambda number: WatchQueue(number, shard, queue), lambda _: wake())

    def follow(self, shard: int, place: Place, report: Report, lost: Lost = nobody) -> Cancelable:
        """Have each later event of a message reported, up to its last; `lost` if the link is, or the shard moves."""

        def happened(what: Happening | Refused) -> None:
            if isinstance(what, Happening):
                report(what)
            else:
                lost()

        if self._stored is None or self._stored[0] != place:
            return self._call(lambda number: Follow(number, shard, *place), happened)
        (_, number), self._stored = self._stored, None
        call = self.calls[number] = Call(self, number, happened)
        return call

    def _call(self, entry_of: Callable[[int], Any], reply: Reply) -> Call:
        number = self._numbers = self._numbers + 1
        call = Call(self, number, reply)
        if self._transport is None:
            asyncio.get_running_loop().call_soon(_give, reply, _LOST)
        else:
            self.calls[number] = call
            self.send(entry_of(number))
        return call

    def decide_collected(self, shard: int) -> None:
        """Have what was submitted so far decided, so that no later command is decided together with it."""
        if shard in self._undecided:
            self._undecided.remove(shard)
            self.send(Decide(shard))

    def _number_of(self, client: Client) -> int:
        """Of a client that the other worker knows. Those that it has known longest are dismissed first."""
        key = (client.access, client.address, client.dialect)
        number = self._introduced.get(key)
        if number is None:
            number = self._numbers = self._numbers + 1
            self._introduced[key] = number
            self.send(Introduce(number, *key))
            if len(self._introduced) > LINK_CLIENTS_MAX:
                self.send(Dismiss(self._introduced.pop(next(iter(self._introduced)))))
        return number

    def _answered(self, entry: Answered) -> None:
        call = self.calls.pop(entry.number, None)
        if call is None:
            return  # Its client has gone away.
        self.unanswered_bytes -= call.size
        answer = unpack(entry.answer)
        place = _place_in(answer) if call.is_followed else None
        self._stored = (place, -call.number) if place else None
        _give(call.reply, answer)
        if self._stored:
            self.send(Withdraw(-call.number))
            self._stored = None

    def _happened(self, entry: Happened) -> None:
        call = self.calls.get(entry.number)
        if call is None:
            return
        if entry.what.kind in ENDS:
            del self.calls[entry.number]
        _give(call.reply, entry.what)

    # ── Requests for the other worker ───────────────────────────────────────────────────────────────────────

    def request(self, shard: int, request: Request, respond: RespondTo) -> PendingRequest | None:
        """Have the other worker answer a request in one of its shards."""
        size = len(request.body)
        if self._transport is None or (self.unanswered_bytes and self.unanswered_bytes + size > LINK_BYTES_MAX):
            respond(_FULL if self._transport else _LOST)
            return None
        number = self._numbers = self._numbers + 1
        sent = SentRequest(number, request.body, respond, self.send, partial(self._withdraw, number))
        self.unanswered_bytes += size
        self.calls[number] = Call(self, number, sent.take, size)
        self.send(sent.entry(shard, self._number_of(request), request))
        return sent

    def _withdraw(self, number: int) -> bool:
        call = self.calls.pop(number, None)
        if call:
            self.unanswered_bytes -= call.size
            self.send(Withdraw(number))
        return call is not None

    def _go_on(self, entry: WantBody | SendPart) -> None:
        if call := self.calls.get(entry.number):
            _give(call.reply, entry)

    def _responded(self, entry: Respond | BeginStream | EndStream) -> None:
        """The answer, or the beginning or the end of one. Its body does not count against the link."""
        call = self.calls.get(entry.number)
        if call is None:
            return
        self.unanswered_bytes -= call.size
        call.size = 0
        if type(entry) is not BeginStream:
            del self.calls[entry.number]
        _give(call.reply, entry)

    # ── Requests of the other worker ────────────────────────────────────────────────────────────────────────

    def _serve_request(self, entry: SendRequest) -> None:
        client, port = self._clients.get(entry.client), self._requests.get(entry.shard)
        if client is None:
            raise ProtocolError(f"client {entry.client} was not introduced")
        if port is None:
            self.send(Answered(entry.number, _ELSEWHERE))
            return
        served = ServedRequest(entry, client, port, self.send, partial(self._served.forget, entry.number))
        self._served.keep(entry.number, served)
        served.begin()

    def _serve(self, act: Callable[[ServedRequest, Any], None], entry: Any) -> None:
        served = self._served.find(entry.number)
        if isinstance(served, ServedRequest):  # Else its client has gone away.
            act(served, entry)

    # ── Commands of the other worker ────────────────────────────────────────────────────────────────────────

    def _asked(self, entry: Ask) -> None:
        port, stage, reply = self._ports.get(entry.shard), _STAGES[entry.stage], self._served.begin(entry.number)
        if port and _is_followed(entry.command, stage):
            reply = partial(self._follow_stored, port, entry.number, reply)
        if port is None:
            reply(_ELSEWHERE)
        elif entry.client == 0:
            self._served.waits(entry.number, port.submit(entry.command, reply, stage))
        elif client := self._clients.get(entry.client):
            self._served.waits(entry.number, port.submit_as(client, entry.command, reply, stage))
        else:
            raise ProtocolError(f"client {entry.client} was not introduced")

    def _follow_stored(self, port: ClientPort, number: int, reply: Reply, answer: Any) -> None:
        if place := _place_in(answer):
            self._served.waits(-number, self._followed(-number, port, place))
        reply(answer)

    def _reach(self, entry: Reach) -> None:
        reply = self._served.begin(entry.number)
        if port := self._ports.get(entry.shard):
            port.reach(_STAGES[entry.stage], reply)
        else:
            reply(_ELSEWHERE)

    def _watch(self, entry: WatchQueue) -> None:
        reply = self._served.begin(entry.number)
        if port := self._ports.get(entry.shard):
            self._served.waits(entry.number, port.watch(entry.queue, partial(reply, Done())))
        else:
            reply(_ELSEWHERE)

    def _follow(self, entry: Follow) -> None:
        reply = self._served.begin(entry.number)
        if port := self._ports.get(entry.shard):
            self._served.waits(entry.number, self._followed(entry.number, port, (entry.queue, entry.sequence)))
        else:
            reply(_ELSEWHERE)

    def _followed(self, number: int, port: ClientPort, place: Place) -> Cancelable:
        served = self._served
        return port.follow(*place, partial(served.report, number), partial(served.answer, number, _ELSEWHERE))

    def _introduce(self, entry: Introduce) -> None:
        self._clients[entry.client] = entry

    def _dismiss(self, entry: Dismiss) -> None:
        self._clients.pop(entry.client, None)

    def _decide(self, entry: Decide) -> None:
        if port := self._ports.get(entry.shard):
            port.decide_collected()

    def _greeted(self, entry: Greet) -> None:
        if entry.form != FORM:
            raise ProtocolError(f"the other process runs {entry.form}, this one {FORM}")
        self.peer, self.shards = entry.worker, entry.shards
        self._when_greeted(self)

    # ── The connection ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._announced = self._own_shards()
        self.send(Greet(FORM, self._worker, self._announced))

    def announce(self) -> None:
        """Say which shards this worker has, if that has changed."""
        if self._announced != (own := self._own_shards()):
            self._announced = own
            self.send(Announce(own))

    def _own_shards(self) -> dict[int, int]:
        return {shard: self._epochs(shard) for shard in self._ports}

    def data_received(self, data: bytes) -> None:
        try:
            for entry in self._frames.receive(data):
                self._actions[type(entry)](entry)
        except ProtocolError as error:
            logger.debug("link_broken", extra={"reason": str(error)})
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._served.cancel_all()
        calls, self.calls, self.unanswered_bytes = self.calls, {}, 0
        for call in calls.values():
            _give(call.reply, _LOST)
        self._when_lost(self)

    def close(self) -> None:
        if self._transport:
            self._transport.abort()

    def send(self, entry: Any) -> None:
        self._collect(encode(entry))

    def _collect(self, data: bytes) -> None:
        if not self._collected:
            asyncio.get_running_loop().call_soon(self._flush)
        self._collected.append(data)
        self._collected_bytes += len(data)
        if self._collected_bytes > LINK_FRAME_BYTES:
            self._flush()

    def _flush(self) -> None:
        collected, self._collected, self._collected_bytes = self._collected, [], 0
        transport = self._transport
        if not collected or transport is None or transport.is_closing():
            return
        transport.write(frame(collected))
        if transport.get_write_buffer_size() > LINK_UNSENT_BYTES_MAX:
            logger.debug("link_broken", extra={"reason": "the other process does not read"})
            self.close()


class _Served:
    """The commands of the other worker that are not answered."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._begun = 0  # The command that is being submitted; 0 if it is answered already.
        self._waiting: dict[int, Cancelable] = {}

    def begin(self, number: int) -> Reply:
        self._begun = number
        return partial(self.answer, number)

    def find(self, number: int) -> Cancelable | None:
        return self._waiting.get(number)

    def keep(self, number: int, pending: Cancelable) -> None:
        self._waiting[number] = pending

    def forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def waits(self, number: int, pending: Cancelable | None) -> None:
        """What was submitted may have to wait, unless it is answered."""
        if pending is not None and (self._begun == number or number < 0):
            self._waiting[number] = pending

    def answer(self, number: int, answer: Any) -> None:
        if number == self._begun:
            self._begun = 0
        self._waiting.pop(number, None)
        self._send(Answered(number, pack(answer)))

    def report(self, number: int, what: Happening) -> None:
        if what.kind in ENDS:
            self._waiting.pop(number, None)
        self._send(Happened(number, what))

    def withdraw(self, number: int) -> None:
        if pending := self._waiting.pop(number, None):
            pending.cancel()

    def hurry(self, number: int) -> None:
        pending: Any = self._waiting.get(number)
        if pending:
            pending.give_up()

    def cancel_all(self) -> None:
        for number in list(self._waiting):
            self.withdraw(number)


def _is_followed(command: Command, stage: Stage) -> bool:
    """Whether the sender may want to follow what it has published. Its message may go to a consumer before the sender
    can ask for that, so the other end follows it from the beginning, with the negative number of the command."""
    return stage is Stage.READY and type(command) is Publish


def _place_in(answer: Any) -> Place | None:
    """The place of the one message that was published and stored."""
    if isinstance(answer, Refused) or len(answer) != 1 or not answer[0].sequence:
        return None
    return answer[0].queue, answer[0].sequence


def _give(reply: Reply, answer: Any) -> None:
    """A client that fails does not take the link with it."""
    try:
        reply(answer)
    except Exception:
        logger.exception("answer_failed")
