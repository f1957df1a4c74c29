"""Queues, channels and schedules: what an operator makes, changes and removes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from msgspec import Struct

from penstock.client.encoding import path, query
from penstock.client.jobs import finished
from penstock.client.results import ChannelSettings, Job, Push, Queue, QueueSettings
from penstock.client.session import Session
from penstock.renamed import SETTINGS, has_old_names, takes_old_names

_PAGE = 1000


class _Page(Struct):
    next: int | None = None
    queues: list[Queue] = []
    channels: list[Queue] = []


async def _all(session: Session, resource: str) -> list[Queue]:
    found: list[Queue] = []
    offset: int | None = 0
    while offset is not None:
        page = await session.get(path(resource) + query(offset=offset, limit=_PAGE), _Page)
        found += page.queues or page.channels
        offset = page.next
    return found


class AsyncQueues:
    """`client.queues`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, name: str) -> Queue:
        """A queue, with its settings and how many messages are where.

        `client.queues.get("orders").status.ready`
        """
        return await self._session.get(path("queues", name), Queue)

    @takes_old_names(SETTINGS)
    async def create(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Make a queue. It is no error if it is there with these very settings.

        `client.queues.create("orders", lease=60, max_attempts=5)`
        """
        return await self._session.change("PUT", path("queues", name), Queue, settings)

    @takes_old_names(SETTINGS)
    async def change(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Change some settings; the others stay.

        `client.queues.change("orders", retention_timeout=86400)`
        """
        return await self._session.change("PATCH", path("queues", name), Queue, settings)

    async def delete(self, name: str) -> None:
        """Remove a queue with its messages."""
        await self._session.delete(path("queues", name))

    async def purge(self, name: str) -> Job:
        """Delete every message of a queue.

        `client.queues.purge("orders").deleted`
        """
        job = await self._session.change("DELETE", path("queues", name, "messages"), Job)
        return await finished(self._session, job, "purges")

    async def list(self) -> list[Queue]:
        """All queues, channels included, the oldest first.

        `[queue.name for queue in client.queues.list()]`
        """
        return await _all(self._session, "queues")


@has_old_names("client.channels.")
class AsyncChannels:
    """`client.channels`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, name: str) -> Queue:
        """A channel, with its settings and how many messages are where."""
        return await self._session.get(path("channels", name), Queue)

    @takes_old_names(SETTINGS)
    async def create(self, name: str, topics: Sequence[str], **settings: Unpack[ChannelSettings]) -> Queue:
        """Make a channel that gets a copy of every message with one of these topics, or give it these settings.

        `client.channels.create("mail", ["fruit.*"])`
        """
        document: dict[str, Any] = {"topics": topics, **settings}
        return await self._session.change("PUT", path("channels", name), Queue, document)

    @takes_old_names(SETTINGS)
    async def change(
        self, name: str, topics: Sequence[str] | None = None, **settings: Unpack[ChannelSettings]
    ) -> Queue:
        """Change the topics or some settings; the others stay. The channel is read and then written, so of two who
        change it at the same time one may undo what the other has done.

        `client.channels.change("mail", lease=60)`
        """
        now = await self.get(name)
        document: dict[str, Any] = {setting: getattr(now, setting) for setting in ChannelSettings.__annotations__}
        if now.push:  # It is shown with how pushing goes.
            document["push"] = {setting: now.push[setting] for setting in Push.__annotations__}
        document |= {"topics": topics or now.topics, **settings}
        return await self._session.change("PUT", path("channels", name), Queue, document)

    async def delete(self, name: str) -> None:
        """Remove a channel with its messages."""
        await self._session.delete(path("channels", name))

    async def list(self) -> list[Queue]:
        """All channels, the oldest first."""
        return await _all(self._session, "channels")
