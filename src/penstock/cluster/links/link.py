"""The connection between two workers. Each sends the commands and questions that are for the shards of the other.

Everything of one turn leaves in one write. A command counts against the link until it is answered: its answer is the
permission to send more. Commands that wait for a message are small, and do not count. Many messages that differ only
in their bodies cross in a shorter form, and their owner decides the same in either form.

What it guarantees: what is sent arrives in its order, or the link is lost and everything that was under way is
told so. It never says of a command that it was not carried out: whoever has the shard next is asked (`calls.py`, ADR
51). No frame is so long that it holds up the others, and what one end has not sent counts in the rooms of both.

Why so: a link is a stream between two processes that may die at any time, so only the log of the shard knows what
became of a command; the link knows what it has heard.

What would break it: to answer a command as refused because its link was lost; to send an answer before what it has
seen is durable; an entry that may be long and does not pass in parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from penstock.broker.writer.executor import READS
from penstock.broker.writer.port import Lost, OwnedPort, Pending, Reply, Report, nobody
from penstock.cluster.links.calls import LOST, Asking, Call, give, is_followed, lose_all
from penstock.cluster.links.codec import (
    FORM,
    Announce,
    Answered,
    Ask,
    AskAgain,
    AskWithRoom,
    BeginFlow,
    Crowd,
    Decide,
    Dismiss,
    EndAskAgain,
    EndStream,
    FinishStream,
    Follow,
    Frames,
    Greet,
    Happened,
    Introduce,
    Question,
    Reach,
    Received,
    SendPart,
    SendPiece,
    WantPart,
    WatchQueue,
    Withdraw,
    encode,
    frame,
)
from penstock.cluster.links.parts import Parts, ServedFlow, ServedParts
from penstock.cluster.links.room_call import RoomCall
from penstock.cluster.links.served_commands import ServedCommands, place_in
from penstock.engine.runs import alike
from penstock.errors import ProtocolError, Reason
from penstock.limits import (
    LINK_BYTES_MAX,
    LINK_CLIENTS_MAX,
    LINK_FRAME_BYTES,
    LINK_PART_BYTES,
    LINK_UNSENT_BYTES_MAX,
    RUN_MESSAGES_MIN,
)
from penstock.model.access import Access
from penstock.model.answer_bytes import unpack
from penstock.model.answers import Receipt, Receipts, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.commands import Command, Publish, PublishRun
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS
from penstock.model.queries import Act, Query
from penstock.model.values import Place, Stage

logger = logging.getLogger(__name__)

_FULL = Refused(Reason.UNAVAILABLE, "the process that has this queue does not keep up")

Acts = Mapping[type, Callable[["Link", Any], None]]  # What to do with entries of these kinds.


class Link(asyncio.Protocol):
    """Both ends of everything that crosses: it has more than 30 methods, because each kind of entry has one."""

    def __init__(
        self,
        worker: int,
        ports: Mapping[int, OwnedPort],
        when_greeted: Callable[[Link], None] = lambda _: None,
        when_lost: Callable[[Link], None] = lambda _: None,
        acts: Acts | None = None,
        epochs: Callable[[int], int] = lambda _: 0,
        asking: Asking | None = None,
    ) -> None:
        """`worker`: the number of this one. `ports`: its shards. `acts`: what is not about a shard.
        `epochs`: of its shards. `asking`: what all links of this process share."""
        asking = asking or Asking()
        self._worker = worker
        self._ports = ports
        self._epochs = epochs
        self._when_greeted = when_greeted
        self._when_lost = when_lost
        self.peer: int | None = None  # The number of the other worker, once it has sent it.
        self.shards: Mapping[int, int] = {}  # Those of the other worker, each with its epoch.
        self._announced: dict[int, int] = {}  # Those of this one, as the other one knows them.
        self.calls: dict[int, Call] = {}  # What the other one has to answer.
        self.unanswered_bytes = 0
        self._asking = asking
        self._numbers = asking.numbers
        self._received = 0  # Answers that the other end does not know to have arrived.
        self._stored: tuple[Place, int] | None = None  # A message that the other end follows, while it is answered.
        self._undecided: set[int] = set()  # Shards that had a command since the last `Decide`.
        self._introduced: dict[tuple[Access, str, str], int] = {}
        self._served = ServedCommands(ports, self.send, self)
        self._frames = Frames()
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._unsent_bytes = 0  # As the room knows it.
        self._transport: asyncio.Transport | None = None  # While the link is open.
        self._actions: dict[type, Callable[[Any], None]] = {
            **self._served.actions,
            Answered: self._answered,
            Happened: self._happened,
            Greet: self._greeted,
            WantPart: partial(self._serve, lambda served, _: served.pull()),
            FinishStream: partial(self._serve, lambda served, _: served.finish()),
            **dict.fromkeys((SendPart, SendPiece, BeginFlow), self._go_on),
            EndStream: self._ended,
            **{kind: partial(act, self) for kind, act in (acts or {}).items()},
        }

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # ── Commands for the other worker ───────────────────────────────────────────────────────────────────────

    def submit(
        self, shard: int, client: Client | None, command: Command, reply: Reply, stage: Stage = Stage.SYNC
    ) -> Pending | None:
        """Have the other worker carry out a command in one of its shards. Without a client, it is this worker's."""
        room, holder = self._asking.room, getattr(client, "holder", None) if type(command) in READS else None
        if room and holder:
            return RoomCall(room, holder, partial(self._submit, shard, client, stage), command, reply).begin()
        return self._submit(shard, client, stage, command, reply)

    def _submit(
        self,
        shard: int,
        client: Client | None,
        stage: Stage,
        command: Command,
        reply: Reply,
        *,
        has_room: bool = False,
    ) -> Call | None:
        if self._transport is None:
            reply(LOST)
            return None
        if type(command) is Publish:
            command, reply = compacted(command, reply)
        number = next(self._numbers)
        ask = AskWithRoom if has_room else Ask
        sent = ask(number, shard, self._number_of(client) if client else 0, stage, command)
        data = encode(sent)
        waits = getattr(command, "wait_ns", 0)
        size = 0 if waits else len(data)
        if size and self.unanswered_bytes and self.unanswered_bytes + size > LINK_BYTES_MAX:
            reply(_FULL)
            return None
        self.unanswered_bytes += size
        self._undecided.add(shard)
        call = self.calls[number] = Call(self, number, reply, size, sent, client)
        self._collect(data)
        if not waits:
            return None
        call.since = asyncio.get_running_loop().time()
        return call

    def ask_again(self, call: Call) -> None:
        """Have a command carried out that was sent over a link which was lost, unless that was done already."""
        sent, client = call.sent, call.client
        assert sent
        again = AskAgain(sent.number, sent.shard, self._number_of(client) if client else 0, sent.stage, sent.command)
        self.unanswered_bytes += call.size
        self._undecided.add(sent.shard)
        call.place = self
        self.calls[call.number] = call
        self.send(again)

    def end_asking(self, shard: int) -> None:
        """All commands for a shard were asked again that had to be."""
        self.send(EndAskAgain(shard))

    def ask(self, shard: int, client: Client, query: Query, reply: Reply) -> PendingAnswer | None:
        """Have the other worker answer a question about one of its shards."""
        if not self.is_open:
            reply(LOST)
            return None
        known = self._number_of(client)
        parts = Parts(self.send, self._withdraw, reply)
        call = self._call(lambda number: Question(number, shard, known, query), parts)
        call.is_missed = isinstance(query, Act)
        return call

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
        number = next(self._numbers)
        call = Call(self, number, reply)
        if self._transport is None:
            asyncio.get_running_loop().call_soon(give, reply, LOST)
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
            number = next(self._numbers)
            self._introduced[key] = number
            self.send(Introduce(number, *key))
            if len(self._introduced) > LINK_CLIENTS_MAX:
                self.send(Dismiss(self._introduced.pop(next(iter(self._introduced)))))
        return number

    def _answered(self, entry: Answered) -> None:
        self._received += 1
        call = self.calls.pop(entry.number, None)
        if call is None:
            return  # Its client has gone away.
        self.unanswered_bytes -= call.size
        answer = unpack(entry.answer)
        if type(answer) is Refused and answer.reason is Reason.OUTCOME_UNKNOWN and call.sent:
            self._asking.lost([call])  # Whoever has the shard next knows it.
            return
        if call.sent and is_followed(call.sent) and (place := place_in(answer)):
            self._stored = place, -call.number
        give(call.reply, answer)
        if self._stored:
            self._stored = None
            self.send(Withdraw(-call.number))

    def _happened(self, entry: Happened) -> None:
        call = self.calls.get(entry.number)
        if call is None:
            return
        if entry.what.kind in ENDS:
            del self.calls[entry.number]
        give(call.reply, entry.what)

    # ── Long answers ────────────────────────────────────────────────────────────────────────────────────────

    def _withdraw(self, number: int) -> bool:
        call = self.calls.pop(number, None)
        if call:
            self.unanswered_bytes -= call.size
            self.send(Withdraw(number))
        return call is not None

    def _go_on(self, entry: SendPart | SendPiece | BeginFlow) -> None:
        if call := self.calls.get(entry.number):
            give(call.reply, entry)

    def _ended(self, entry: EndStream) -> None:
        if call := self.calls.pop(entry.number, None):
            self.unanswered_bytes -= call.size
            give(call.reply, entry)

    def _serve(self, act: Callable[[Any, Any], None], entry: Any) -> None:
        served = self._served.find(entry.number)
        if isinstance(served, ServedParts | ServedFlow):  # Else its client has gone away.
            act(served, entry)

    def _greeted(self, entry: Greet) -> None:
        if entry.form != FORM:
            raise ProtocolError(f"the other process runs {entry.form}, this one {FORM}")
        self.peer, self.shards, self._served.origin = entry.worker, entry.shards, entry.origin
        self._when_greeted(self)

    # ── The connection ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._announced = self._own_shards()
        self.send(Greet(FORM, self._worker, self._asking.origin, self._announced))

    def announce(self) -> None:
        """Say which shards this worker has, if that has changed."""
        if self._announced != (own := self._own_shards()):
            self._announced = own
            self.send(Announce(own))

    def _own_shards(self) -> dict[int, int]:
        return {shard: self._epochs(shard) for shard in self._ports}

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return  # What was asked is asked again over another link, maybe it was already.
        try:
            for entry in self._frames.receive(data):
                self._actions[type(entry)](entry)
        except ProtocolError as error:
            logger.debug("link_broken", extra={"reason": str(error)})
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._end()
        self._note_unsent()
        self._when_lost(self)

    def close(self) -> None:
        """At once: over the next link, what is under way may be asked again right away."""
        transport, self._transport = self._transport, None
        self._end()
        if transport:
            transport.abort()

    def _end(self) -> None:
        """What the other end has asked is dropped unless it is decided; what it has not answered is asked again."""
        self._served.cancel_all()
        calls, self.calls, self.unanswered_bytes = self.calls, {}, 0
        self._asking.lost([call for call in calls.values() if call.is_asked_again])
        lose_all(call for call in calls.values() if not call.is_asked_again)

    def resume_writing(self) -> None:
        self._note_unsent()

    def _note_unsent(self) -> None:
        """What the other end has not read takes room here."""
        size = self._transport.get_write_buffer_size() if self._transport else 0
        size = size if size > LINK_PART_BYTES else 0
        if self._asking.room and size != self._unsent_bytes:
            self._unsent_bytes = size
            self._asking.room.note_carried(self, size)

    def say_crowded(self, is_crowded: bool) -> None:
        """Whether there is hardly any room here for what the other end answers."""
        self.send(Crowd(is_crowded))

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
        if self._received:
            collected.append(encode(Received(self._received)))
            self._received = 0
        transport = self._transport
        if not collected or transport is None or transport.is_closing():
            return
        transport.write(frame(collected))
        self._note_unsent()
        if transport.get_write_buffer_size() > LINK_UNSENT_BYTES_MAX:
            logger.debug("link_broken", extra={"reason": "the other process does not read"})
            self.close()


def compacted(command: Command, reply: Reply) -> tuple[Command, Reply]:
    """The command as it is to cross, and what its answer goes to."""
    if type(command) is not Publish or len(command.messages) < RUN_MESSAGES_MIN or command.fleeting:
        return command, reply
    messages = command.messages
    if not alike(messages):
        return command, reply
    template = replace(messages[0], body=b"")
    run = PublishRun(command.queue, template, [message.body for message in messages], command.create)
    return run, lambda answer: reply(_spread(answer))


def _spread(answer: Any) -> Any:
    if type(answer) is not Receipts:
        return answer
    sequences = range(answer.first, answer.first + answer.count)
    return [Receipt(answer.queue, sequence, True) for sequence in sequences]
