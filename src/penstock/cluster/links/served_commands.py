"""The commands of the other worker that are carried out here, at the end of a link that has their shards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from penstock.broker.quotas.quotas import client_of
from penstock.broker.writer.asked import Asked, through
from penstock.broker.writer.port import ClientPort, OwnedPort, Reply
from penstock.cluster.links.calls import HARMLESS, is_followed
from penstock.cluster.links.codec import (
    Answered,
    Ask,
    AskAgain,
    AskWithRoom,
    Crowd,
    Decide,
    Dismiss,
    EndAskAgain,
    Follow,
    Happened,
    Hurry,
    Introduce,
    Question,
    Reach,
    Received,
    WatchQueue,
    Withdraw,
)
from penstock.cluster.links.parts import ServedFlow, ServedParts
from penstock.errors import ProtocolError, Reason
from penstock.model.answer_bytes import pack
from penstock.model.answers import Done, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS
from penstock.model.streams import Flow
from penstock.model.values import Place, Stage

ELSEWHERE = Refused(Reason.UNAVAILABLE, "the queue is not in this process")
_GONE = Refused(Reason.OUTCOME_UNKNOWN, "the process that has the queue cannot tell now")
_STAGES = list(Stage)


class ServedClient:
    """A client of the process at the other end. It holds its answers there; here, the link may hold them."""

    __slots__ = ("_served", "access", "address", "carrier", "dialect", "has_room", "holder")

    def __init__(self, served: ServedCommands, client: Client, holder: ServedClient | None = None) -> None:
        """`holder`: the same client, if this one is for a command with room."""
        self._served = served
        self.access, self.address, self.dialect = client.access, client.address, client.dialect
        self.carrier = served.carrier
        self.has_room = holder is not None
        self.holder = holder or self

    @property
    def is_turned_away(self) -> bool:
        return self._served.is_crowded_there and not self.has_room

    @property
    def client(self) -> Hashable:
        """Whose turns it takes."""
        return client_of(self.access, self.address)

    def abort(self) -> None:
        """It holds nothing."""


class ServedCommands:
    """Those that are not answered, and the clients that they come from."""

    def __init__(self, ports: Mapping[int, OwnedPort], send: Callable[[Any], None], carrier: Hashable) -> None:
        """`carrier`: the link, as what it has not sent is counted."""
        self.carrier = carrier
        self.is_crowded_there = False  # There is hardly any room for answers at the other end.
        self.origin = b""  # The process at the other end.
        self.is_over = False  # The link is lost.
        self.clients: dict[int, ServedClient] = {}
        self._ports = ports
        self._send = send
        self._begun = 0  # The command that is being submitted; 0 if it is answered already.
        self._waiting: dict[int, Cancelable] = {}
        self.sent = self.arrived = 0  # Answers; and those of them that are known to have arrived, the first ones.
        self.actions: dict[type, Callable[[Any], None]] = {
            Ask: self._asked,
            AskWithRoom: self._asked,
            AskAgain: self._asked_again,
            Question: self._questioned,
            Crowd: self._note_crowd,
            EndAskAgain: self._ended_asking,
            Received: self._received,
            Reach: self._reach,
            WatchQueue: self._watch,
            Follow: self._follow,
            Withdraw: lambda entry: self.withdraw(entry.number),
            Hurry: self._hurry,
            Decide: self._decide,
            Introduce: self._introduce,
            Dismiss: self._dismiss,
        }

    # ── What the other worker sends ─────────────────────────────────────────────────────────────────────────

    def _asked(self, entry: Ask) -> None:
        if port := self._ports.get(entry.shard):
            self._submit(port, entry, self._reply_to(port, entry))
        else:
            self.answer(entry.number, ELSEWHERE)

    def _questioned(self, entry: Question) -> None:
        reply, port = self._begin(entry.number), self._ports.get(entry.shard)
        if port is None:
            reply(ELSEWHERE)
        else:
            give = partial(self._give_parts, entry.number)
            self._waits(entry.number, port.ask(self._client(entry.client), entry.query, give))

    def _give_parts(self, number: int, answer: Any) -> None:
        if number == self._begun:
            self._begun = 0
        over = partial(self.forget, number)
        if isinstance(answer, Flow):
            self.keep(number, ServedFlow(number, answer, self._send, over))
        else:
            self.keep(number, parts := ServedParts(number, answer, self._send, over))
            parts.pull()

    def _client(self, number: int) -> ServedClient:
        if client := self.clients.get(number):
            return client
        raise ProtocolError(f"client {number} was not introduced")

    def _asked_again(self, entry: AskAgain) -> None:
        port = self._ports.get(entry.shard)
        if port is None or port.hindrance():
            self.answer(entry.number, _GONE)  # It is asked once more, here or elsewhere.
            return
        reply = self._reply_to(port, entry)
        if not port.answer_again(port.origin(self.origin), entry.number, reply, _STAGES[entry.stage]):
            self._submit(port, entry, reply)

    def _reply_to(self, port: OwnedPort, entry: Ask) -> Reply:
        """What becomes of a command that changes something is logged, until the other end has the answer."""
        if type(entry.command) in HARMLESS:
            return self._begin(entry.number)
        self._begun = entry.number
        reply: Reply = Asked(port.origin(self.origin), entry.number, self)
        if is_followed(entry):
            reply = through(reply, partial(self._follow_stored, port, entry.number, reply))
        return reply

    def _submit(self, port: OwnedPort, entry: Ask, reply: Reply) -> None:
        if entry.client == 0:
            self._waits(entry.number, port.submit(entry.command, reply, _STAGES[entry.stage]))
        else:
            client = self._client(entry.client)
            client = ServedClient(self, client, client) if type(entry) is AskWithRoom else client
            self._waits(entry.number, port.submit_as(client, entry.command, reply, _STAGES[entry.stage]))

    def _ended_asking(self, entry: EndAskAgain) -> None:
        if port := self._ports.get(entry.shard):
            port.origin(self.origin).ended_asking(self)

    def _follow_stored(self, port: ClientPort, number: int, reply: Reply, answer: Any) -> None:
        if place := place_in(answer):
            self._waits(-number, self._followed(-number, port, place))
        reply(answer)

    def _reach(self, entry: Reach) -> None:
        reply = self._begin(entry.number)
        if port := self._ports.get(entry.shard):
            port.reach(_STAGES[entry.stage], reply)
        else:
            reply(ELSEWHERE)

    def _watch(self, entry: WatchQueue) -> None:
        reply = self._begin(entry.number)
        if port := self._ports.get(entry.shard):
            self._waits(entry.number, port.watch(entry.queue, partial(reply, Done())))
        else:
            reply(ELSEWHERE)

    def _follow(self, entry: Follow) -> None:
        reply = self._begin(entry.number)
        if port := self._ports.get(entry.shard):
            self._waits(entry.number, self._followed(entry.number, port, (entry.queue, entry.sequence)))
        else:
            reply(ELSEWHERE)

    def _followed(self, number: int, port: ClientPort, place: Place) -> Cancelable:
        return port.follow(*place, partial(self._report, number), partial(self.answer, number, ELSEWHERE))

    def _introduce(self, entry: Introduce) -> None:
        self.clients[entry.client] = ServedClient(self, entry)

    def _dismiss(self, entry: Dismiss) -> None:
        self.clients.pop(entry.client, None)

    def _decide(self, entry: Decide) -> None:
        if port := self._ports.get(entry.shard):
            port.decide_collected()

    def _received(self, entry: Received) -> None:
        self.arrived += entry.count

    def _note_crowd(self, entry: Crowd) -> None:
        self.is_crowded_there = entry.is_crowded

    def _hurry(self, entry: Hurry) -> None:
        pending: Any = self._waiting.get(entry.number)
        if pending:
            pending.give_up()

    # ── What it is sent ─────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, number: int) -> Reply:
        self._begun = number
        return partial(self.answer, number)

    def find(self, number: int) -> Cancelable | None:
        return self._waiting.get(number)

    def keep(self, number: int, pending: Cancelable) -> None:
        self._waiting[number] = pending

    def forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _waits(self, number: int, pending: Cancelable | None) -> None:
        """What was submitted may have to wait, unless it is answered."""
        if pending is not None and (self._begun == number or number < 0):
            self._waiting[number] = pending

    def answer(self, number: int, answer: Any) -> None:
        if number == self._begun:
            self._begun = 0
        self._waiting.pop(number, None)
        self.sent += 1
        self._send(Answered(number, pack(answer)))

    def _report(self, number: int, what: Happening) -> None:
        if what.kind in ENDS:
            self._waiting.pop(number, None)
        self._send(Happened(number, what))

    def withdraw(self, number: int) -> None:
        if pending := self._waiting.pop(number, None):
            pending.cancel()

    def cancel_all(self) -> None:
        self.is_over = True
        for number in list(self._waiting):
            self.withdraw(number)


def place_in(answer: Any) -> Place | None:
    """The place of the one message that was published and stored."""
    if isinstance(answer, Refused) or len(answer) != 1 or not answer[0].sequence:
        return None
    return answer[0].queue, answer[0].sequence
