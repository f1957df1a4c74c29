"""A shard of another worker, as shells know a writer."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.writer.port import Lost, Pending, Reply, Report, nobody
from penstock.cluster.links.calls import LOST
from penstock.cluster.links.link import Link
from penstock.model.access import EVERYTHING
from penstock.model.answers import Refused
from penstock.model.client import Cancelable, Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.commands import Command
from penstock.model.permissions import forbidden
from penstock.model.queries import Query
from penstock.model.values import Stage


class RemotePort:
    """`link` is replaced when it was lost and there is a new one."""

    def __init__(self, shard: int, link: Link) -> None:
        self._shard = shard
        self.link = link

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        return self.link.submit(self._shard, None, command, reply, stage)

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        return self.link.submit(self._shard, client, command, reply, stage)

    def ask(self, client: Client, query: Query, reply: Reply) -> PendingAnswer | None:
        return self.link.ask(self._shard, client, query, reply)

    def refusal(self, client: Client, command: Command) -> Refused | None:
        """What a command about the number of a queue needs, only the owner of the queue knows."""
        if client.access is EVERYTHING:
            return None
        return forbidden(client.access, command, lambda _: None)

    def decide_collected(self) -> None:
        self.link.decide_collected(self._shard)

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        self.reach(stage, lambda answer: None if isinstance(answer, Refused) else callback())

    def reach(self, stage: Stage, reply: Reply) -> None:
        self.link.reach(self._shard, stage, reply)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        return self.link.watch(self._shard, queue, wake)

    def follow(self, queue: int, sequence: int, report: Report, lost: Lost = nobody) -> Cancelable:
        return self.link.follow(self._shard, (queue, sequence), report, lost)

    def hindrance(self) -> Refused | None:
        return None if self.link.is_open else LOST

    def waiting(self, queue: str) -> int:  # noqa: ARG002 - It takes a question to know.
        """Not known here. 0 is safe: messages for a queue in which nobody waits are stored."""
        return 0
