"""Who is connected, and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from penstock.model.answers import QueueDescription
from penstock.model.commands import Command, DescribeQueue
from penstock.model.queries import Page, Pages, Query
from penstock.model.values import Packed


class ConnectionState(Struct, frozen=True):
    """One open connection."""

    protocol: str
    address: str
    seconds: float  # Since it was opened.
    busy: bool  # It waits for the broker, or follows a stream.
    unsent_bytes: int  # What the client has not read.


class WaitingClient(Struct, frozen=True):
    """A client that waits for a message or a result."""

    kind: str  # worker, receiver or result.
    queue: str
    consumer: str | None


class ListConnections(Pages, frozen=True):
    """The connections of a process, and the clients that wait for messages of a shard."""

    waits_for_log: ClassVar[bool] = False
    queues: frozenset[str] | None = None  # Only who waits for a message of one of these.


class ConnectionList(Page, frozen=True):
    """Two lists side by side: each page has its part of both."""

    rows: list[ConnectionState]
    total_waiting: int
    waiting: list[WaitingClient]

    @property
    def shown(self) -> int:
        return max(len(self.rows), len(self.waiting))

    @property
    def all(self) -> int:
        return max(self.total, self.total_waiting)

    def extend(self, page: ConnectionList) -> None:
        self.rows.extend(page.rows)
        self.waiting.extend(page.waiting)


class CountReaders(Query, frozen=True):
    """A queue, and how many clients wait for a message of it."""

    queue: str

    def needs(self) -> Command:
        return DescribeQueue(self.queue)


class Readers(Packed, frozen=True):
    queue: QueueDescription
    waiting: int


def joined(query: ListConnections, lists: Sequence[ConnectionList]) -> ConnectionList:
    """Those of the first shard come first."""
    part = slice(query.offset, query.offset + query.limit)
    return ConnectionList(
        sum([each.total for each in lists]),
        [row for each in lists for row in each.rows][part],
        sum([each.total_waiting for each in lists]),
        [client for each in lists for client in each.waiting][part],
    )
