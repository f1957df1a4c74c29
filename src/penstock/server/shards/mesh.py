"""The links of one worker to all others. Each pair has one: the worker with the higher number connects.

A link that is lost is made again as soon as the other worker listens. Until then its queues are unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.limits import LINK_RETRY_SECONDS
from penstock.server.shards.link import Link
from penstock.server.shards.remote_port import RemotePort
from penstock.server.shards.remote_requests import RemoteRequests, RequestPort
from penstock.server.shards.wires import Wires
from penstock.server.writer.port import ClientPort

logger = logging.getLogger(__name__)


def owner_of(shard: int, workers: int) -> int:
    return shard % workers


class Mesh:
    def __init__(
        self,
        worker: int,
        workers: int,
        shards: int,
        wires: Wires,
        own: Mapping[int, ClientPort],
        own_requests: Mapping[int, RequestPort] | None = None,
    ) -> None:
        """`own`, `own_requests`: the shards of this worker, for commands and for whole requests. The latter may be
        filled until `start`."""
        self._worker = worker
        self._workers = workers
        self._wires = wires
        self.served = own  # What other workers use; may be replaced until `start`.
        self._own_requests = {} if own_requests is None else own_requests
        self.links: dict[int, Link] = {}  # By the number of the other worker.
        self.acts: dict[type, Callable[[Link, Any], None]] = {}  # What is not about a shard; filled until `start`.
        self.when_linked: list[Callable[[Link], None]] = []
        self.when_lost: list[Callable[[Link], None]] = []
        self.ports: list[ClientPort] = [own.get(shard) or RemotePort(shard, self._link()) for shard in range(shards)]
        self._remote = {shard: RemoteRequests(shard, self._link()) for shard in range(shards) if shard not in own}
        self._server: asyncio.Server | None = None
        self._dialing: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._server = await self._wires.listen(self._worker, self._link)
        self._dialing = [asyncio.create_task(self._dial(other)) for other in range(self._worker)]

    def stop(self) -> None:
        """Close all links. What is under way is answered as unavailable."""
        for task in self._dialing:
            task.cancel()
        if self._server:
            self._server.close()
        for link in list(self.links.values()):
            link.close()

    def requests(self, shard: int) -> RequestPort:
        """Whole requests for a shard."""
        return self._remote.get(shard) or self._own_requests[shard]

    @property
    def is_complete(self) -> bool:
        """Whether there is a link to every other worker."""
        return len(self.links) == self._workers - 1

    def _link(self, lost: asyncio.Event | None = None) -> Link:
        return Link(
            self._worker, self.served, self._greeted, partial(self._lost, lost), self._own_requests, self.acts
        )

    async def _dial(self, other: int) -> None:
        while True:
            lost = asyncio.Event()
            with contextlib.suppress(OSError):  # It does not listen yet.
                await self._wires.connect(other, partial(self._link, lost))
                await lost.wait()
            await asyncio.sleep(LINK_RETRY_SECONDS)

    def _greeted(self, link: Link) -> None:
        assert link.peer is not None
        if earlier := self.links.get(link.peer):
            earlier.close()  # The other worker has left it, or connects again when it is closed: one of both is dead.
        self.links[link.peer] = link
        for shard, port in enumerate(self.ports):
            if owner_of(shard, self._workers) == link.peer and isinstance(port, RemotePort):
                port.link = self._remote[shard].link = link
        logger.debug("linked", extra={"worker": link.peer})
        for callback in self.when_linked:
            callback(link)

    def _lost(self, lost: asyncio.Event | None, link: Link) -> None:
        if lost:
            lost.set()
        if link.peer is not None and self.links.get(link.peer) is link:
            del self.links[link.peer]
            logger.debug("link_lost", extra={"worker": link.peer})
            for callback in self.when_lost:
                callback(link)
