"""Finds a message that has left the shard in its id, and sends it a command there.

The shard in the id knows for which shards messages of the queue have left, and so does each of these. So a message is
found by asking one after the other, and most commands ask nobody: their message is where its id says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.broker.writer.port import ClientPort, Reply
from penstock.errors import Reason
from penstock.limits import LOCATE_QUESTIONS_PER_SHARD
from penstock.model.answers import Discarded, Location, Refused
from penstock.model.commands import (
    Cancel,
    Command,
    Delete,
    Extend,
    Finish,
    FinishMany,
    LookUp,
    Release,
    Reschedule,
    Settle,
    SettleMany,
)
from penstock.model.courier_commands import Locate
from penstock.model.permissions import UNSEEN
from penstock.model.probe import Probe
from penstock.model.values import Place

_BY_ID = frozenset((Finish, Release, Settle, Extend, Delete, Cancel, Reschedule, LookUp))
BY_ID = _BY_ID | {Probe}  # Which may be about one of these.
BY_IDS = frozenset((FinishMany, SettleMany))
_NOWHERE = -1  # Where a message has left that is asked for in its home.
_ON_ITS_WAY = Refused(Reason.UNAVAILABLE, "the message is on its way to another shard")

Send = Callable[[int, Command, Reply], object]  # To a shard.


def is_missing(answer: Any) -> bool:
    """Whether the message may be elsewhere."""
    if isinstance(answer, list):  # Of several items about it, which are decided together.
        return is_missing(answer[0])
    if isinstance(answer, Refused):
        return answer.reason is Reason.NO_MESSAGE and answer != UNSEEN
    return isinstance(answer, Discarded)


def follow(home: int, ports: Sequence[ClientPort], send: Send, command: Any, reply: Reply) -> Reply:
    """A reply that sends a command on if the message was not found in its home."""

    about = command.head if type(command) is Probe else command
    if type(about) not in _BY_ID:
        return reply

    def answered(answer: Any) -> None:
        if is_missing(answer):
            _Search(home, ports, send, command, answer, reply).begin()
        else:
            reply(answer)

    return answered


def follow_each(home: int, ports: Sequence[ClientPort], send: Send, command: Any, reply: Reply) -> Reply:
    """As `follow`, for a command about several messages. Several items about one message are sent on together, and
    decided as in its home: the first that is not refused counts."""
    kind, items = type(command), command.finishes if isinstance(command, FinishMany) else command.settles
    by_message: dict[Place, list[int]] = {}
    for at, item in enumerate(items):
        by_message.setdefault((item.queue, item.sequence), []).append(at)

    def answered(answers: Any) -> None:
        missing = (
            [] if isinstance(answers, Refused) else [at for at in by_message.values() if is_missing(answers[at[0]])]
        )
        found, left = list(answers) if missing else answers, len(missing)

        def replace(some: Sequence[int], answer: Any) -> None:
            nonlocal left
            for at, each in zip(some, [answer] * len(some) if isinstance(answer, Refused) else answer, strict=True):
                found[at] = each
            left -= 1
            if left == 0:
                reply(found)

        for some in missing:
            about, before = kind([items[at] for at in some]), [answers[at] for at in some]
            _Search(home, ports, send, about, before, partial(replace, some)).begin()
        if not missing:
            reply(answers)

    return answered


def _place_of(command: Any) -> Place:
    if isinstance(command, Probe):
        return _place_of(command.head)
    if isinstance(command, FinishMany):
        return _place_of(command.finishes[0])
    if isinstance(command, SettleMany):
        return _place_of(command.settles[0])
    return command.queue, command.sequence


class _Search:
    """For one message. If no shard has it, the answer is that of its home.

    Messages may move while they are looked for, so it is not enough to ask each shard once: where one may have gone,
    it is looked for when everything that left for there has arrived, and not before.
    """

    def __init__(
        self, home: int, ports: Sequence[ClientPort], send: Send, command: Any, answer: Any, reply: Reply
    ) -> None:
        self._ports, self._send = ports, send
        self._command, self._answer, self._reply = command, answer, reply
        self._place = _place_of(command)
        self._asked: dict[
            tuple[int, int], int
        ] = {}  # By shard and the one that the message left: up to which serial.
        self._left = [(home, _NOWHERE, 0)]  # What is to be asked, in the same order.
        self._questions = 0

    def begin(self) -> None:
        while self._left:
            shard, source, serial = self._left.pop()
            if self._asked.get((shard, source), -1) < serial:
                self._ask(shard, source, serial)
                return
        self._reply(self._answer)

    def _ask(self, shard: int, source: int, serial: int) -> None:
        self._asked[shard, source] = serial
        self._questions += 1
        if self._questions > LOCATE_QUESTIONS_PER_SHARD * len(self._ports):
            self._reply(_ON_ITS_WAY)
            return
        where = Locate(*self._place, source, serial)
        self._ports[shard].submit(where, partial(self._located, shard))

    def _located(self, shard: int, found: Location | Refused) -> None:
        if isinstance(found, Refused):
            self._reply(found)
        elif found.here:
            self._send(shard, self._command, partial(self._answered, shard, found))
        elif found.is_due:
            self._reply(_ON_ITS_WAY)
        else:
            self._go_on(shard, found)

    def _answered(self, shard: int, found: Location, answer: Any) -> None:
        """It was there a moment ago."""
        if is_missing(answer) and found.away:
            self._answer = answer
            self._go_on(shard, found)
        else:
            self._reply(answer)

    def _go_on(self, shard: int, found: Location) -> None:
        self._left += [(each, shard, serial) for each, serial in found.away.items()]
        self.begin()
