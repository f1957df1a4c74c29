"""Who is connected, and who waits for a message."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from penstock.broker.services.contract import Service, answer_to
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.model.access import EVERY_NAME, Need, Verb
from penstock.model.answers import Refused
from penstock.model.client import Client
from penstock.model.commands import AwaitResult, DescribeQueue, Fetch, Pull, Receive, Waiting
from penstock.model.connections import (
    ConnectionList,
    ConnectionState,
    CountReaders,
    ListConnections,
    Readers,
    WaitingClient,
)

_ADMIN: Need = ((Verb.ADMIN,), EVERY_NAME)


class Described(Protocol):
    def describe(self) -> ConnectionState: ...


class Listening(Protocol):
    """Somebody who accepts connections."""

    @property
    def connections(self) -> Collection[Described]: ...


class Connections(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self.servers: list[Listening] = []
        """All that listen; added when they exist."""
        self.answers: Answers = {CountReaders: self.readers, ListConnections: self.connections}

    async def connections(self, client: Client, query: ListConnections) -> ConnectionList:
        """The oldest connections first. Only who administers sees them."""
        access, queues, end = client.access, query.queues, query.offset + query.limit
        found = self._open() if access.allows(_ADMIN) and not queues else []
        seen = [each for each in self._waiting() if access.sees(each.queue)]
        waiting = [each for each in seen if not queues or each.queue in queues]
        return ConnectionList(len(found), found[query.offset : end], len(waiting), waiting[query.offset : end])

    async def readers(self, _: Client, query: CountReaders) -> Readers | Refused:
        found = await answer_to(self.writer, DescribeQueue(query.queue))
        return found if isinstance(found, Refused) else Readers(found, self.writer.waiting(query.queue))

    def _open(self) -> list[ConnectionState]:
        found = [connection.describe() for server in self.servers for connection in server.connections]
        return sorted(found, key=lambda each: (-each.seconds, each.address))

    def _waiting(self) -> list[WaitingClient]:
        found = [client for command in self.writer.waiting_commands() for client in clients_of(command)]
        return sorted(found, key=lambda client: (client.queue, client.kind, client.consumer or ""))


def waiting_consumers(writer: ServicePort) -> dict[str, list[str | None]]:
    """Who waits for a message, by queue, each as often as it does."""
    waiting: dict[str, list[str | None]] = {}
    for command in writer.waiting_commands():
        for client in clients_of(command):
            if client.kind != "result":
                waiting.setdefault(client.queue, []).append(client.consumer)
    return waiting


def clients_of(command: Waiting) -> Iterator[WaitingClient]:
    """What a client that waits is waiting for."""
    if isinstance(command, Fetch):
        yield WaitingClient("worker", command.queue, command.consumer or None)
    elif isinstance(command, Receive):
        yield WaitingClient("receiver", command.queue, command.consumer)
    elif isinstance(command, Pull):
        for draw in command.draws:
            yield WaitingClient("receiver", draw.queue, command.receiver)
    elif isinstance(command, AwaitResult):
        yield WaitingClient("result", command.queue, command.receiver or None)
