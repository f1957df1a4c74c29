"""Takes what other shards owe to this one: asks each of them, and puts the messages into their queues, each once.

There is one question under way for each shard. The next one is asked when the answer is durable, which is flow
control: a shard that does not keep up is owed more, and is sent no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.broker.figures.measures import Samples
from penstock.broker.services.contract import Service, answer_to, durable, resolve
from penstock.broker.writer.port import ClientPort, ServicePort
from penstock.limits import COURIER_RETRY_SECONDS, COURIER_WAIT_SECONDS, SECOND_NS
from penstock.model.answers import Discarded, Parcels, Refused
from penstock.model.courier_commands import Admit, CollectParcels
from penstock.model.settings import QueueSettings
from penstock.model.values import LearnedVersion, Nanos

logger = logging.getLogger(__name__)


class _Awaiting:
    """Somebody waits until all is here that another shard owed at a moment."""

    def __init__(self, after: int) -> None:
        self.after = after  # How many questions had been asked then.
        self.until: int | None = None  # Where the log there ended then, or a little later; None: not known yet.
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Source:
    """Another shard, and how far this one has come there."""

    def __init__(self, port: ClientPort) -> None:
        self.port = port
        self.messages = 0  # That it has sent, since the start.
        self.behind_since: Nanos | None = None  # The time of the oldest message that is known not to be here.
        self.is_refused = False
        self.dead_letters: Sequence[str] = ()  # Queues here that have its dead letters.
        self.told: int | None = None  # The changes of channels that it knows.
        self._changes = 0  # Of channels, when the question was asked that is not answered.
        self._answered: asyncio.Future[Any] | None = None
        self._questions = 0  # How many were asked.
        self._awaiting: list[_Awaiting] = []

    async def ask(self, question: CollectParcels, changes: int) -> Parcels | Refused | None:
        """The answer, however long it takes; None if channels have changed. The question is withdrawn if nobody waits
        for the answer any more."""
        self._changes = self.told = changes
        self._questions += 1
        answered = self._answered = asyncio.get_running_loop().create_future()
        pending = self.port.submit(question, partial(resolve, answered))
        found: Parcels | Refused | None = None
        try:
            found = await answered
        finally:
            self._answered = None
            if found is None and pending:
                pending.cancel()
        return found

    def channels_changed(self, changes: int) -> None:
        """A question with the patterns of before finds too little."""
        if self._answered and self._changes != changes:
            resolve(self._answered, None)

    async def has_come(self) -> None:
        """Wait until all is here that is owed now. What was asked before may not find all of it."""
        awaiting = _Awaiting(self._questions)
        self._awaiting.append(awaiting)
        if self._answered:
            resolve(self._answered, None)
        await awaiting.came

    @property
    def is_awaited(self) -> bool:
        self._awaiting = [each for each in self._awaiting if not each.came.done()]
        return bool(self._awaiting)

    def has_reached(self, offset: int, end: int) -> None:
        """What was owed before this offset is here; the log ended at `end` when the last question was answered."""
        for each in self._awaiting:
            if each.after < self._questions:
                each.until = end if each.until is None else each.until
                if offset >= each.until:
                    resolve(each.came, None)

    def lag_seconds(self, now: Nanos) -> float:
        return 0.0 if self.behind_since is None else max(0.0, (now - self.behind_since) / SECOND_NS)


class CourierTarget(Service):
    def __init__(self, writer: ServicePort, new_queue: QueueSettings) -> None:
        """`new_queue`: the settings of queues that messages create."""
        super().__init__(writer)
        self._new_queue = new_queue
        self._sources: dict[int, _Source] = {}
        self.on_versions: Callable[[Sequence[LearnedVersion]], None] = lambda _: None

    async def has_come(self, shard: int) -> None:
        """Wait until all that another shard owes now is here, durably."""
        await self._sources[shard].has_come()

    def connect(self, sources: Mapping[int, ClientPort]) -> None:
        """`sources`: all other shards."""
        self._sources = {shard: _Source(port) for shard, port in sources.items()}
        self.writer.on_queue.append(self._after_queue)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for shard, source in self._sources.items():
                group.create_task(self._follow(shard, source))

    def lags(self) -> dict[int, float]:
        """By shard: how long the oldest message waits that it owes to this one, in seconds."""
        now = self.writer.now()
        return {shard: source.lag_seconds(now) for shard, source in sorted(self._sources.items())}

    def lag_seconds(self) -> float | None:
        """The longest of these; None with one shard."""
        return max(self.lags().values(), default=None)

    def dead_letters(self) -> set[str]:
        """The queues here that queues of other shards name as their dead-letter queue."""
        return {name for source in self._sources.values() for name in source.dead_letters}

    def state(self) -> Iterable[tuple[str, Samples]]:
        if self._sources:
            yield "penstock_courier_lag_seconds", [((str(shard),), lag) for shard, lag in self.lags().items()]
            messages: Samples = [((str(shard),), each.messages) for shard, each in sorted(self._sources.items())]
            yield "penstock_courier_messages_total", messages

    def _after_queue(self, _: int) -> None:
        for source in self._sources.values():
            source.channels_changed(self.writer.engine.routing.changes)

    def _channels(self) -> dict[str, tuple[str, ...]]:
        found = [self.writer.engine.queues[number] for number in self.writer.engine.routing.all_channels()]
        return {queue.name: queue.settings.topics for queue in found}

    async def _follow(self, shard: int, source: _Source) -> None:
        await durable(self.writer)  # The source forgets what this shard says that it has.
        while True:
            source.is_refused = await self._take(shard, source)
            if source.is_refused:
                source.behind_since = source.behind_since or self.writer.now()
                await asyncio.sleep(COURIER_RETRY_SECONDS)

    async def _take(self, shard: int, source: _Source) -> bool:
        """Ask once, and take what comes. Whether it was refused, there or here."""
        if self.writer.failure:
            return True  # The cursor in memory may not be durable, and the source forgets what comes before it.
        engine = self.writer.engine
        at, changes = engine.couriers.cursor(shard), engine.routing.changes
        # Whether it is still behind, it wants to know at once.
        is_behind = source.behind_since is not None or source.is_awaited
        wait_ns = 0 if is_behind else COURIER_WAIT_SECONDS * SECOND_NS
        channels = None if source.told == changes else self._channels()
        question = CollectParcels(engine.shard, at, engine.routing.patterns(), wait_ns, channels)
        answer = await source.ask(question, changes)
        if isinstance(answer, Refused):
            source.told = None  # It may have forgotten.
        if answer is None or isinstance(answer, Refused):
            return answer is not None
        source.dead_letters = answer.dead_letters
        if answer.to == at:
            source.behind_since = None
            source.has_reached(answer.end, answer.end)
            return False
        ahead = self.writer.now() - answer.now
        source.behind_since = min([parcel.time + ahead for parcel in answer.parcels], default=None)
        came = (answer.parcels, ahead, self._new_queue, answer.versions)
        admitted = await answer_to(self.writer, Admit(shard, at, answer.to, changes, *came))
        if isinstance(admitted, Refused):
            if not source.is_refused:
                logger.warning("courier_waits", extra={"reason": admitted.sentence, "shard": shard})
            return True
        if not isinstance(admitted, Discarded):
            source.messages += len(answer.parcels)
            source.behind_since = None
            self.on_versions(answer.versions)
            source.has_reached(answer.to.offset, answer.end)
        return False
