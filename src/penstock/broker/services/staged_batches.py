"""Moves the rows of committed batches into their queues, a few milliseconds at a time.

Each stroke waits until the last one is durable, so that clients are served in between. After a crash the service
continues where it was. It also drops batches that were not committed in time.

Rows for queues of other shards are sent there, one step at a time: the next follows when the other shard has the
rows, and this one has recorded it, both durably.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

from msgspec.structs import replace

from penstock.broker.services.contract import Service, answer_to, resolve, when_fetched
from penstock.broker.writer.port import ClientPort, ServicePort
from penstock.engine.routing import roots
from penstock.engine.staging import Admission, Chunk
from penstock.errors import DamagedLogError, ProtocolError, Reason
from penstock.limits import ADMITTED_ROWS_MAX
from penstock.model.answers import Answer, Done, Refused, RowsTaken
from penstock.model.client import Client
from penstock.model.commands import (
    AdmitRows,
    DropStaged,
    NewMessage,
    Publish,
    PublishRun,
    PublishTopics,
    TakeRows,
)
from penstock.model.settings import QueueSettings
from penstock.model.staging import CommitStaged
from penstock.storage.port import BeingFetchedError

logger = logging.getLogger(__name__)

_STROKE_SECONDS = 0.002
_LOOK_AROUND_SECONDS = 5.0


_HERE = 0  # The shard that has all batches.
Rows = Publish | PublishRun | PublishTopics


class StagedRows(Protocol):
    """The rows of a chunk."""

    def publish_from(self, row: int, most: int, create: QueueSettings) -> tuple[Rows, int]:
        """Some rows from this one on that one command publishes, and the row after them."""


class StagedBatches(Service):
    def __init__(
        self, writer: ServicePort, topic_queues: QueueSettings, rows_of: Callable[[bytes], StagedRows]
    ) -> None:
        super().__init__(writer)
        self._shard_of: Callable[[str], int] = lambda _: _HERE
        self._ports: Sequence[ClientPort] = (writer,)
        self._rows_of = rows_of
        self._topic_queues = topic_queues  # The settings of queues that rows for topics create.
        self._under_way = False  # Steps were submitted that are not durable yet.
        self._chunk: Chunk | None = None  # The chunk whose rows are in memory.
        self._rows: StagedRows | None = None
        self._most = ADMITTED_ROWS_MAX  # Rows in one step.
        self._waiting: list[tuple[str, asyncio.Future[Answer]]] = []  # Clients that wait for a query's batch.

    def spread(self, shard_of: Callable[[str], int], ports: Sequence[ClientPort]) -> None:
        """There are several shards: which one has a queue, and the port of each."""
        self._shard_of, self._ports = shard_of, ports

    async def commit(self, _: Client, query: CommitStaged) -> Answer:
        """Answered when all rows of the batch are in their queues, durably."""
        answer: Answer = await answer_to(self.writer, query.needs())
        if isinstance(answer, Refused) or not (self._under_way or self._is_admitting(query.query)):
            return answer
        admitted: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((query.query, admitted))
        self.wake()
        return await admitted

    async def run(self) -> None:
        while True:
            if not self.writer.failure:
                while self.writer.engine.staging.admissions and await self._stroke():
                    self._answer()
                self._answer()
                self._drop_expired()
            await self.rest(_LOOK_AROUND_SECONDS)

    async def stop(self) -> None:
        """Stop admitting rows. The service continues with them when the broker starts again."""
        await super().stop()
        self._give_up(Refused(Reason.UNAVAILABLE, "the broker is stopping"))

    def _drop_expired(self) -> None:
        staging, now = self.writer.engine.staging, self.writer.now()
        if any(batch.expires_at <= now for batch in staging.batches.values()):
            self.writer.submit(DropStaged(), lambda _: logger.warning("staged_rows_expired"))

    async def _stroke(self) -> bool:
        """Submit steps for a few milliseconds, and wait until they are durable. Returns whether to continue."""
        try:
            steps, away = await when_fetched(self._submit_steps)
        except DamagedLogError as error:
            query = self.writer.engine.staging.admissions[0].query
            logger.critical("staged_rows_damaged", extra={"reason": str(error), "query": query})
            self._give_up(Refused(Reason.DAMAGED, str(error)))
            return False
        except ProtocolError as error:  # These rows were staged by a broker that had Arrow.
            logger.critical("staged_rows_wait", extra={"reason": str(error)})
            self._give_up(Refused(Reason.UNAVAILABLE, str(error)))
            return False
        self._under_way = True
        try:
            settled = all(self._is_settled(answer) for answer in await asyncio.gather(*steps))
            return settled and (away is None or await self._send(away))
        finally:
            self._under_way = False

    def _submit_steps(self) -> tuple[list[asyncio.Future[Answer]], TakeRows | None]:
        """The answers to come, and the step after them if it is for another shard."""
        staging = self.writer.engine.staging
        end = time.perf_counter() + _STROKE_SECONDS
        steps: list[asyncio.Future[Answer]] = []
        while staging.admissions and time.perf_counter() < end:
            try:
                step = self._next_step(staging.admissions[0])
            except BeingFetchedError:
                if steps:
                    break
                raise
            if self._home(step.publish) != _HERE:
                return steps, step
            steps.append(
                answer_to(self._ports[_HERE], AdmitRows(step.query, step.batch, step.at, step.to, step.publish))
            )
            if staging.stands_at(step.query, step.batch, step.at):
                break  # It was refused; its answer has the reason. Or it waits for keys of other shards.
        return steps, None

    async def _send(self, step: TakeRows) -> bool:
        """Let another shard publish rows, and record that. If either answer is lost, the step is sent again."""
        answer = await answer_to(self._ports[self._home(step.publish)], step)
        is_settled = self._is_settled(answer)
        if isinstance(answer, Refused) and answer.reason is not Reason.NO_QUEUE:
            return is_settled
        to = (answer.chunk, answer.row) if isinstance(answer, RowsTaken) else step.to
        return self._is_settled(await answer_to(self.writer, AdmitRows(step.query, step.batch, step.at, to, None)))

    def _home(self, publish: Rows) -> int:
        if isinstance(publish, PublishTopics):
            return self._home_of(publish.messages[0])
        return self._shard_of(publish.queue)

    def _home_of(self, message: NewMessage) -> int:
        """The shard of the first queue that topics name: from there the message goes to the others."""
        return self._shard_of(next(iter(roots(message.topics, message.object))))

    def _next_step(self, admission: Admission) -> TakeRows:
        chunk = admission.chunks[admission.chunk]
        if self._rows is None or chunk != self._chunk:
            self._chunk, self._rows = chunk, self._rows_of(self.writer.log.read(chunk.position, chunk.size))
        publish, row = self._rows.publish_from(admission.row, self._most, self._topic_queues)
        if isinstance(publish, PublishTopics) and len(self._ports) > 1:
            publish = self._of_one_shard(publish)
            row = admission.row + len(publish.messages)
        at = admission.chunk, admission.row
        to = (admission.chunk, row) if row < chunk.rows else (admission.chunk + 1, 0)
        return TakeRows(admission.query, admission.batch, at, to, publish)

    def _of_one_shard(self, publish: PublishTopics) -> PublishTopics:
        home = self._home_of(publish.messages[0])
        return replace(publish, messages=list(takewhile(lambda each: self._home_of(each) == home, publish.messages)))

    def _is_settled(self, answer: Answer) -> bool:
        """Whether the next step can follow. If not, the service tries again later."""
        if not isinstance(answer, Refused):
            return True
        if answer.reason is Reason.TOO_MANY_DELIVERIES and self._most > 1:
            self._most = 1  # One message may go to every channel.
            return True
        reason = {"reason": answer.sentence}
        if answer.reason is Reason.NO_QUEUE:
            logger.warning("staged_rows_dropped", extra=reason)
            return True
        logger.warning("staged_rows_wait", extra=reason)
        self._give_up(answer)
        return False

    def _answer(self) -> None:
        """Answer the clients whose batch is in its queues. No step is in progress, so it is durable too."""
        waiting, self._waiting = self._waiting, []
        for query, admitted in waiting:
            if self._is_admitting(query):
                self._waiting.append((query, admitted))
            else:
                resolve(admitted, Done())

    def _is_admitting(self, query: str) -> bool:
        return any(admission.query == query for admission in self.writer.engine.staging.admissions)

    def _give_up(self, refused: Refused) -> None:
        """Answer the clients that wait. Their batches stay committed."""
        self._chunk = self._rows = None
        waiting, self._waiting = self._waiting, []
        for _, admitted in waiting:
            resolve(admitted, refused)
