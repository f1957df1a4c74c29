"""A shard of this worker, as other shards know it. What needs the log is answered by services: what others are owed,
and what happened to messages that they follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.broker.services.channels_elsewhere import ChannelsElsewhere
from penstock.broker.writer.port import Answering, Pending, Reply, ServicePort, through
from penstock.cluster.routing.keyed import KEYED, Key, keys_of
from penstock.limits import PROMISES_SECONDS_MAX
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.commands import Command, DeleteQueue, DescribeObject, PublishOnce, PublishTopics
from penstock.model.courier_commands import (
    BorrowKeys,
    CollectParcels,
    KeepLoans,
    LearnChannel,
    OpenLoans,
    Recall,
    ReturnKeys,
)
from penstock.model.schedules import SetSchedule
from penstock.model.values import Stage

_TO_TOPICS = frozenset((PublishTopics, PublishOnce))
_PROMISING = frozenset((SetSchedule, DeleteQueue))  # Other shards have to forget something.


class Collecting(Protocol):
    channels: ChannelsElsewhere

    def collect(self, command: CollectParcels, reply: Reply) -> asyncio.Task[None]: ...

    async def all_took(self) -> None: ...


class Recalling(Protocol):
    def recall(self, command: Recall, reply: Reply) -> None: ...


class Borrowing(Protocol):
    def carry_out(
        self, keys: Sequence[Key], submit: Callable[[Reply, Stage], object], reply: Reply, stage: Stage
    ) -> None: ...

    def naming(self, reply: Reply) -> Reply: ...

    def open(self, command: OpenLoans, reply: Reply) -> None: ...

    def keep(self, command: KeepLoans, reply: Reply) -> Pending | None: ...


class Lending(Protocol):
    def borrow(self, command: BorrowKeys, reply: Reply) -> None: ...

    def take_back(self, command: ReturnKeys, reply: Reply) -> None: ...


class OwnPort:
    """What is not here is that of the writer. `submit` is for services, `submit_as` for clients."""

    def __init__(
        self,
        writer: ServicePort,
        courier_source: Collecting,
        recalls: Recalling,
        borrower: Borrowing,
        lender: Lending,
    ) -> None:
        self._writer = writer
        self._submit, self._submit_as = writer.submit, writer.submit_as
        self._courier_source = courier_source
        self._recalls = recalls
        self._borrower = borrower
        self._promises: set[asyncio.Task[None]] = set()
        self._acts: dict[type[Command], Callable[[Any, Reply], Pending | None]] = {
            CollectParcels: lambda command, reply: Answering(courier_source.collect(command, reply)),
            Recall: recalls.recall,
            OpenLoans: borrower.open,
            KeepLoans: borrower.keep,
            BorrowKeys: lender.borrow,
            ReturnKeys: lender.take_back,
        }
        self.refusal, self.decide_collected = writer.refusal, writer.decide_collected
        self.when, self.reach, self.watch = writer.when, writer.reach, writer.watch
        self.follow, self.waiting = writer.follow, writer.waiting
        self.ask = writer.ask
        self.origin, self.answer_again, self.hindrance = writer.origin, writer.answer_again, writer.hindrance

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        kind = type(command)
        if act := self._acts.get(kind):
            return act(command, reply)
        if kind in KEYED and (keys := keys_of(command, self._writer.engine)):
            self._borrower.carry_out(keys, partial(self._submit, command), reply, stage)
            return None
        return self._submit(command, reply, stage)

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        if type(command) is LearnChannel:
            self._courier_source.channels.learn_one(command)
            reply(Done())
            return None
        kind = type(command)
        if kind in _PROMISING:
            reply = through(reply, partial(self._when_kept, reply))
        if kind in _TO_TOPICS and (change := self._courier_source.channels.naming(command)):
            reply = through(reply, _changing(reply, change), change)
        if kind in KEYED and (keys := keys_of(command, self._writer.engine)):
            if kind is DescribeObject:
                reply = self._borrower.naming(reply)
            self._borrower.carry_out(keys, partial(self._submit_as, client, command), reply, stage)
            return None
        return self._submit_as(client, command, reply, stage)

    def _when_kept(self, reply: Reply, answer: Any) -> None:
        """When the other shards have done their part, so that the client sees it; but it does not wait for long for
        one that is away: what was promised is kept then, too."""
        if isinstance(answer, Refused):
            reply(answer)
        else:
            task = asyncio.create_task(self._give_when_kept(reply, answer))
            self._promises.add(task)
            task.add_done_callback(self._promises.discard)

    async def _give_when_kept(self, reply: Reply, answer: Any) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROMISES_SECONDS_MAX):
                    await self._courier_source.all_took()
        finally:
            reply(answer)


def _changing(reply: Reply, change: Callable[[Any], Any]) -> Reply:
    return lambda answer: reply(change(answer))
