"""What a process has asked of others and was not answered yet."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol

from msgspec import Struct

from penstock.broker.room import Room
from penstock.broker.writer.port import Pending, Reply
from penstock.cluster.links.codec import Ask, Hurry, Withdraw
from penstock.errors import Reason
from penstock.model import commands, courier_commands, schedules, tokens
from penstock.model.answers import Refused
from penstock.model.client import Client
from penstock.model.commands import Command, Fetch, Publish
from penstock.model.consuming import Consume
from penstock.model.probe import Probe
from penstock.model.values import Stage

logger = logging.getLogger(__name__)

_READY = Stage.READY
_WHY = "the connection to the process that has this queue was lost"
LOST = Refused(Reason.UNAVAILABLE, _WHY)
_IN_DOUBT = Refused(Reason.OUTCOME_UNKNOWN, _WHY)
# Couriers and lenders of keys ask again themselves.
_REPEATED_BY_ITS_SENDER = frozenset(
    (
        *(courier_commands.CollectParcels, courier_commands.Recall),
        *(courier_commands.OpenLoans, courier_commands.KeepLoans),
        *(courier_commands.BorrowKeys, courier_commands.ReturnKeys),
    )
)
# Done once more, they change nothing, or nothing that anybody would miss.
HARMLESS = _REPEATED_BY_ITS_SENDER | frozenset(
    (
        *(commands.DescribeQueue, commands.ListQueues, commands.DescribeObject, commands.LookUp),
        *(commands.AwaitMessage, commands.AwaitResult, commands.DescribeStaged, commands.ReadClaimed),
        *(schedules.DescribeSchedule, schedules.ListSchedules),
        *(tokens.DescribeToken, tokens.ListTokens),
        *(courier_commands.Locate, courier_commands.CheckDeadLetterQueue, courier_commands.LearnChannel),
        courier_commands.CheckStaged,
        *(courier_commands.ClaimKey, courier_commands.ReleaseKey, courier_commands.NameQueues, Probe),
    )
)


def would_be_missed(command: Command) -> bool:
    """Whether it matters that it may have been done. What was leased comes back by itself."""
    is_lease = command.confirm if type(command) is Fetch else type(command) is Consume and not command.channel
    return type(command) not in HARMLESS and not is_lease


def is_followed(sent: Ask) -> bool:
    """Whether the sender may want to follow what it has published. Its message may go to a consumer before the sender
    can ask for that, so the other end follows it from the beginning, with the negative number of the command."""
    return sent.stage == _READY and type(sent.command) is Publish


class Call(Struct, eq=False):
    """Something that another worker does, or tells when it happens."""

    place: Calls
    number: int
    reply: Reply
    size: int = 0  # What it counts against the link.
    sent: Ask | None = None  # A command, so that it can be asked again,
    client: Client | None = None  # and who has sent it.
    since: float = 0.0  # When a command that waits was sent.
    until: float = 0.0  # When asking again ends, after its link was lost.
    is_missed: bool = False  # It is a question, and it would matter that it may have been done.
    _pending: Pending | None = None  # If the shard has come to this process.

    @property
    def is_asked_again(self) -> bool:
        """Whether it is asked of whoever has the shard next. Couriers repeat their questions themselves."""
        return self.sent is not None and type(self.sent.command) not in _REPEATED_BY_ITS_SENDER

    @property
    def is_waiting(self) -> bool:
        """Whether its answer has not arrived. Only the other worker knows more."""
        return self.number in self.place.calls or (self._pending is not None and self._pending.is_waiting)

    def forward(self, pending: Pending | None) -> None:
        """It is decided in this process now."""
        self._pending = pending

    def cancel(self) -> None:
        if self._pending:
            self._pending.cancel()
        if self.place.calls.pop(self.number, None):
            self.place.send(Withdraw(self.number))

    def give_up(self) -> None:
        if self._pending:
            self._pending.give_up()
        elif self.is_waiting:
            self.place.send(Hurry(self.number))

    def lose(self) -> None:
        """Nobody can be asked what has become of it."""
        is_missed = would_be_missed(self.sent.command) if self.sent else self.is_missed
        give(self.reply, _IN_DOUBT if is_missed else LOST)


class Calls(Protocol):
    """Where calls are that are not answered: a link, or where they wait for the next one."""

    calls: dict[int, Call]

    def send(self, entry: Any) -> None: ...


def lose_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call.lose()


class Asking:
    """What a process asks others, over all links."""

    def __init__(self, lost: Callable[[Iterable[Call]], None] = lose_all) -> None:
        """`lost`: what to do with commands that were not answered when their link was lost."""
        self.origin = secrets.token_bytes(8)
        self.numbers = count(1)
        self.room: Room | None = None  # For the answers; without it, nobody counts them.
        self.lost = lost


def give(reply: Reply, answer: Any) -> None:
    """A client that fails does not take the link with it."""
    try:
        reply(answer)
    except Exception:
        logger.exception("answer_failed")
