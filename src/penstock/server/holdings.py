"""The shards that a node has: it acquires what is placed here, and hands over what is placed at another node.

    acquire ──► serve ──► forget ──► hand over
                  └──────► lose: another node has it

Each shard changes by itself, so that one that takes long does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.broker.recovery import Recovered
from penstock.cluster.nodes.member import Share
from penstock.errors import LeaseHeldError, PenstockError
from penstock.limits import NODE_REFUSED_SECONDS
from penstock.server.shard import Shard

logger = logging.getLogger(__name__)


class Holdings:
    def __init__(
        self,
        make: Callable[[int], Shard],
        serve: Callable[[int, Shard, Recovered], None],
        forget: Callable[[int], None],
        when_settled: Callable[[], None],
    ) -> None:
        """`make`: a shard that is not open. `serve`, `forget`: begin and end to serve it. `when_settled`: called when
        a change has ended."""
        self._make = make
        self._serve = serve
        self._forget = forget
        self._when_settled = when_settled
        self.held: dict[int, Shard] = {}  # Those that are served.
        self.changing: dict[int, asyncio.Task[None]] = {}  # Those that are about to come or to go.
        self.lost: list[Shard] = []  # Those whose directory was lost.
        self._refused: dict[int, float] = {}  # Those that could not be opened, and when to try again.

    @property
    def known(self) -> set[int]:
        return self.held.keys() | self.changing.keys()

    def begin(self, share: Share) -> None:
        """Begin to acquire and hand over what the node should."""
        now = asyncio.get_running_loop().time()
        for number in share.acquire:
            if self._refused.get(number, 0) <= now:
                self._change(number, self._acquire(number))
        for number, node in share.hand_over.items():
            if number not in self.changing:
                logger.info("handing_over", extra={"shard": number, "to": node})
                self._change(number, self._hand_over(number))

    async def hand_over_all(self) -> None:
        await self.settled()
        for number in list(self.held):
            self._change(number, self._hand_over(number))
        await self.settled()

    async def settled(self) -> None:
        await asyncio.gather(*self.changing.values(), return_exceptions=True)

    def epoch_of(self, number: int) -> int:
        store = self.held[number].store
        assert store is not None
        return store.epoch

    def _change(self, number: int, change: Coroutine[Any, Any, None]) -> None:
        task = self.changing[number] = asyncio.create_task(change)
        task.add_done_callback(partial(self._changed, number))

    def _changed(self, number: int, task: asyncio.Task[None]) -> None:
        del self.changing[number]
        self._when_settled()
        if not task.cancelled() and (error := task.exception()):
            logger.critical("shard_change_failed", extra={"shard": number}, exc_info=error)

    async def _acquire(self, number: int) -> None:
        """Own a shard and serve it, unless another node is faster or it cannot be read."""
        shard = self._make(number)
        running = asyncio.get_running_loop()

        def on_lost(error: BaseException) -> None:
            running.call_soon_threadsafe(shard.fail, error)

        assert shard.store is not None
        shard.store.on_lost = on_lost
        shard.on_end = partial(self._end, number, shard)
        try:
            await asyncio.to_thread(shard.take)
            await asyncio.to_thread(shard.store.acquire, shard.directory)
            recovered = await asyncio.to_thread(shard.recover)
        except LeaseHeldError:
            shard.let_go()
            return
        except PenstockError as error:
            logger.error("shard_refused", extra={"shard": number, "reason": str(error)})
            self._refused[number] = running.time() + NODE_REFUSED_SECONDS
            await asyncio.to_thread(shard.give_up)
            return
        self.held[number] = shard
        self._serve(number, shard, recovered)

    async def _hand_over(self, number: int) -> None:
        shard = self.held[number]
        await shard.snapshots.shorten_replay()  # While it is served: the next owner then has little to replay.
        if self.held.get(number) is shard:
            await self._end_serving(number, shard)

    def _end(self, number: int, shard: Shard) -> None:
        """Another node has the shard, or the directory is lost."""
        if not shard.is_deposed:
            self.lost.append(shard)
            self._when_settled()
        elif self.held.get(number) is shard and number not in self.changing:  # Else it is being handed over.
            self._change(number, self._end_serving(number, shard))

    async def _end_serving(self, number: int, shard: Shard) -> None:
        del self.held[number]
        self._forget(number)
        await shard.hand_over()
