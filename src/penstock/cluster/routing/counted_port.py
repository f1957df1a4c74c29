"""A shard of this worker, for clients that are connected to others: the queues that they create count for their
quotas here, because only the owner of a queue knows whether it exists, and so does the work for what they ask."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.quotas.meter import meter_of
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.quotas.uses import CREATED
from penstock.broker.quotas.work import paying
from penstock.broker.writer.port import OwnedPort, Pending, Reply
from penstock.model.client import Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.commands import Command
from penstock.model.queries import Query
from penstock.model.values import Stage


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
