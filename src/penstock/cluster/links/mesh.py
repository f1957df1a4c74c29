"""The links of one worker to all others. Each pair has one: the worker with the higher number connects.

Each worker says which shards it has, when a link begins and whenever that changes. A link that is lost is made again
as soon as the other worker listens. Until then its queues are unavailable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from penstock.broker.room import Room
from penstock.broker.writer.port import OwnedPort
from penstock.cluster.links.asking_again import AskingAgain
from penstock.cluster.links.codec import Announce
from penstock.cluster.links.link import Link
from penstock.cluster.links.remote_port import RemotePort
from penstock.cluster.links.wires import Wires
from penstock.cluster.routing.ports import ShardPort
from penstock.limits import LINK_RETRY_SECONDS

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
        own: Mapping[int, OwnedPort],
        epochs: Callable[[int], int] = lambda _: 0,
        ask_again_seconds: float = 10.0,
        room: Room | None = None,
    ) -> None:
        """`workers`: how many there are; 0 if `know` says who there is. `own`: the shards of this worker; `changed`
        says that they have changed. `epochs`: how often each of them was taken over, if that happens.
        `ask_again_seconds`: how long commands wait whose link was lost. `room`: for the answers."""
        self._worker = worker
        self._wires = wires
        self._own = own
        self.served = own  # What other workers use; may be replaced until `start`.
        self._epochs = epochs
        self.others = set(range(workers)) - {worker}
        self.links: dict[int, Link] = {}  # By the number of the other worker.
        self.errors: dict[int, str] = {}  # Why there is no link, as far as it is known here.
        self.acts: dict[type, Callable[[Link, Any], None]] = {Announce: self._announced}  # Filled until `start`.
        self.when_linked: list[Callable[[Link], None]] = []
        self.when_lost: list[Callable[[Link], None]] = []
        self.when_moved: list[Callable[[], None]] = []  # A shard is somewhere else.
        self._again = AskingAgain(ask_again_seconds, own, self._successor)
        self._again.asking.room = self._room = room
        if room:
            room.on_crowded.append(self._say_crowded)
        self._remote = [RemotePort(shard, self._link()) for shard in range(shards)]
        self.ports: list[ShardPort] = [ShardPort(own.get(shard) or each) for shard, each in enumerate(self._remote)]
        self._server: asyncio.Server | None = None
        self._dialing: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._server = await self._wires.listen(self._worker, self._link)
        self._dial_all()

    def stop(self) -> None:
        """Close all links. What becomes of what is under way is not known."""
        for task in self._dialing.values():
            task.cancel()
        if self._server:
            self._server.close()
        for link in list(self.links.values()):
            link.close()
        self._again.close()

    @property
    def is_complete(self) -> bool:
        """Whether there is a link to every other worker."""
        return self.others <= self.links.keys()

    def link_to(self, shard: int) -> Link | None:
        """The link to the worker that has a shard; None if it is this one, or not known."""
        link = self._remote[shard].link
        return link if shard not in self._own and self.links.get(link.peer or 0) is link else None

    def reaches(self, shard: int) -> bool:
        """Whether commands for a shard arrive where it is served, as far as this worker knows."""
        link = self.link_to(shard)
        return shard in self._own or (link is not None and shard in link.shards)

    def know(self, others: Collection[int]) -> None:
        """These other workers are there. Links to those that are not are left to their end."""
        gone = self.others - set(others)
        self.others = set(others)
        for other in gone:
            if task := self._dialing.pop(other, None):
                task.cancel()
        self._dial_all()

    def changed(self) -> None:
        """This worker has other shards than before."""
        for shard, port in enumerate(self.ports):
            port.lead_to(self._own.get(shard) or self._remote[shard])
        for link in self.links.values():
            link.announce()
        for shard in self._own:
            self._again.ask(shard)
        self._moved()

    def _successor(self, shard: int) -> Link | None:
        return self.link_to(shard) if self.reaches(shard) else None

    def _dial_all(self) -> None:
        for other in self.others:
            if self._server and other < self._worker and other not in self._dialing:
                self._dialing[other] = asyncio.create_task(self._dial(other))

    def _link(self, lost: asyncio.Event | None = None) -> Link:
        own = (self.acts, self._epochs, self._again.asking)
        return Link(self._worker, self.served, self._greeted, partial(self._lost, lost), *own)

    async def _dial(self, other: int) -> None:
        while True:
            lost = asyncio.Event()
            try:
                await self._wires.connect(other, partial(self._link, lost))
                await lost.wait()
            except OSError as error:  # It does not listen yet, or is not the one that it should be.
                self.errors[other] = str(error)
            await asyncio.sleep(LINK_RETRY_SECONDS)

    def _greeted(self, link: Link) -> None:
        assert link.peer is not None
        if earlier := self.links.get(link.peer):
            earlier.close()  # The other worker has left it, or connects again when it is closed: one of both is dead.
        self.links[link.peer] = link
        self.errors.pop(link.peer, None)
        logger.debug("linked", extra={"worker": link.peer})
        if self._room and self._room.is_crowded:
            link.say_crowded(True)
        link.announce()  # Shards may have come since the greeting was sent.
        self._use(link)
        for callback in self.when_linked:
            callback(link)

    def _say_crowded(self, is_crowded: bool) -> None:
        for link in self.links.values():
            link.say_crowded(is_crowded)

    def _announced(self, link: Link, entry: Announce) -> None:
        link.shards = entry.shards
        self._use(link)

    def _use(self, link: Link) -> None:
        """Send what is for the shards of the other worker there, unless another one has taken them over since."""
        for shard, epoch in link.shards.items():
            remote = self._remote[shard]
            if remote.link.peer == link.peer or remote.link.shards.get(shard, -1) <= epoch:
                remote.link = link
                self._again.ask(shard)
        self._moved()

    def _moved(self) -> None:
        for callback in self.when_moved:
            callback()

    def _lost(self, lost: asyncio.Event | None, link: Link) -> None:
        if lost:
            lost.set()
        if link.peer is not None and self.links.get(link.peer) is link:
            del self.links[link.peer]
            logger.debug("link_lost", extra={"worker": link.peer})
            for callback in self.when_lost:
                callback(link)
