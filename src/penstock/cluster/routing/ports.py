"""A shard, as others know it: one of this process, one of another or one that has moved, and one whose clients are
connected elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.broker.quotas.meter import meter_of
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.quotas.uses import CREATED
from penstock.broker.quotas.work import paying
from penstock.broker.services.channels_elsewhere import ChannelsElsewhere
from penstock.broker.writer.port import Answering, ClientPort, OwnedPort, Pending, Reply, ServicePort, through
from penstock.cluster.routing.keyed import KEYED, Key, keys_of
from penstock.limits import PROMISES_SECONDS_MAX
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.client import Pending as PendingAnswer
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
from penstock.model.queries import Query
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


class ShardPort:
    """Its methods are those of the port that it leads to, so that a command takes no further step."""

    def __init__(self, target: ClientPort) -> None:
        self.lead_to(target)

    def lead_to(self, target: ClientPort) -> None:
        self.submit, self.submit_as, self.refusal = target.submit, target.submit_as, target.refusal
        self.decide_collected, self.waiting = target.decide_collected, target.waiting
        self.hindrance, self.ask = target.hindrance, target.ask
        self.when, self.reach = target.when, target.reach
        self.watch, self.follow = target.watch, target.follow


class CountedPort:
    """Everything else is that of the port."""

    def __init__(self, port: OwnedPort, quotas: Quotas, exists: Callable[[str], bool]) -> None:
        self._submit_as, self._ask = port.submit_as, port.ask
        self._quotas = quotas
        self._exists = exists
        self.submit, self.refusal, self.decide_collected = port.submit, port.refusal, port.decide_collected
        self.when, self.reach, self.watch = port.when, port.reach, port.watch
        self.follow, self.waiting = port.follow, port.waiting
        self.origin, self.answer_again, self.hindrance = port.origin, port.answer_again, port.hindrance

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        names = CREATED[type(command)](command) if type(command) in CREATED else ()
        created = sum([not self._exists(name) for name in names])
        meter = meter_of(self._quotas, client.access, client.address) if created else None
        if meter is not None and (refused := meter.creation_refused(created)):
            reply(refused)
            return None
        return self._submit_as(client, command, reply, stage)

    def ask(self, client: Client, query: Query, reply: Reply) -> PendingAnswer | None:
        """What is done for the answer is charged to the accounts that the client has here."""
        with paying(meter_of(self._quotas, client.access, client.address)):
            return self._ask(client, query, reply)
