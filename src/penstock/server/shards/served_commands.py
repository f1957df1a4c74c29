"""The commands of the other worker that are carried out here, at the end of a link that has their shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.dialects.wire.conversation import Cancelable
from penstock.errors import ProtocolError, Reason
from penstock.model.answer_bytes import pack
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS
from penstock.model.values import Place, Stage
from penstock.server.shards.calls import changes_something, is_followed
from penstock.server.shards.codec import (
    Answered,
    Ask,
    AskAgain,
    Decide,
    Dismiss,
    EndAskAgain,
    Follow,
    Happened,
    Hurry,
    Introduce,
    Reach,
    Received,
    WatchQueue,
    Withdraw,
)
from penstock.server.writer.asked import Asked, through
from penstock.server.writer.port import ClientPort, OwnedPort, Reply

ELSEWHERE = Refused(Reason.UNAVAILABLE, "the queue is not in this process")
_GONE = Refused(Reason.OUTCOME_UNKNOWN, "the process that has the queue cannot tell now")
_STAGES = list(Stage)


class ServedCommands:
    """Those that are not answered, and the clients that they come from."""

    def __init__(self, ports: Mapping[int, OwnedPort], send: Callable[[Any], None]) -> None:
        self.origin = b""  # The process at the other end.
        self.is_over = False  # The link is lost.
        self.clients: dict[int, Client] = {}
        self._ports = ports
        self._send = send
        self._begun = 0  # The command that is being submitted; 0 if it is answered already.
        self._waiting: dict[int, Cancelable] = {}
        self._sent: deque[Asked | None] = deque()  # Answers that are not known to have arrived.
        self.actions: dict[type, Callable[[Any], None]] = {
            Ask: self._asked,
            AskAgain: self._asked_again,
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
        port = self._ports.get(entry.shard)
        if port is None:
            self.answer(entry.number, ELSEWHERE)
            return
        self._submit(port, entry, self._reply_to(port, entry))

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
        if not changes_something(entry.command):
            return self._begin(entry.number)
        self._begun = entry.number
        reply: Reply = Asked(port.origin(self.origin), entry.number, self._give, self)
        if is_followed(entry.command, _STAGES[entry.stage]):
            return through(reply, partial(self._follow_stored, port, entry.number, reply))
        return reply

    def _submit(self, port: OwnedPort, entry: Ask, reply: Reply) -> None:
        if entry.client == 0:
            self._waits(entry.number, port.submit(entry.command, reply, _STAGES[entry.stage]))
        elif client := self.clients.get(entry.client):
            self._waits(entry.number, port.submit_as(client, entry.command, reply, _STAGES[entry.stage]))
        else:
            raise ProtocolError(f"client {entry.client} was not introduced")

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
        self.clients[entry.client] = entry

    def _dismiss(self, entry: Dismiss) -> None:
        self.clients.pop(entry.client, None)

    def _decide(self, entry: Decide) -> None:
        if port := self._ports.get(entry.shard):
            port.decide_collected()

    def _received(self, entry: Received) -> None:
        for _ in range(min(entry.count, len(self._sent))):
            if asked := self._sent.popleft():
                asked.origin.arrived(asked)

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

    def answer(self, number: int, answer: Any, asked: Asked | None = None) -> None:
        if number == self._begun:
            self._begun = 0
        self._waiting.pop(number, None)
        self._sent.append(asked)
        self._send(Answered(number, pack(answer)))

    def _give(self, asked: Asked, answer: Any) -> None:
        self.answer(asked.number, answer, asked)

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
