"""Moves the rows of committed batches into their queues, a few milliseconds at a time.

Each stroke waits until the last one is durable, so that clients are served in between. After a crash the service
continues where it was. It also drops batches that were not committed in time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from penstock.dialects.native.spark.arrow import staged_rows
from penstock.engine.staging import Admission, Chunk
from penstock.errors import DamagedLogError, ProtocolError, Reason
from penstock.limits import ADMITTED_ROWS_MAX
from penstock.model.answers import Answer, Done, Refused
from penstock.model.commands import AdmitRows, CommitBatch, DropStaged
from penstock.model.settings import QueueSettings
from penstock.server.services.contract import Service, answer_to, resolve, when_fetched
from penstock.server.writer.port import ServicePort
from penstock.storage.port import BeingFetchedError

if TYPE_CHECKING:
    from penstock.dialects.native.spark.staged_rows import StagedRows

logger = logging.getLogger(__name__)

_STROKE_SECONDS = 0.002
_LOOK_AROUND_SECONDS = 5.0


class StagedBatches(Service):
    def __init__(self, writer: ServicePort, topic_queues: QueueSettings) -> None:
        super().__init__(writer)
        self._topic_queues = topic_queues  # The settings of queues that rows for topics create.
        self._under_way = False  # Steps were submitted that are not durable yet.
        self._chunk: Chunk | None = None  # The chunk whose rows are in memory.
        self._rows: StagedRows | None = None
        self._most = ADMITTED_ROWS_MAX  # Rows in one step.
        self._waiting: list[tuple[str, asyncio.Future[Answer]]] = []  # Clients that wait for a query's batch.

    async def commit(self, command: CommitBatch) -> Answer:
        """Commit a batch. Returns the answer when all of its rows are in their queues, durably."""
        answer: Answer = await answer_to(self.writer, command)
        if isinstance(answer, Refused) or not (self._under_way or self._is_admitting(command.query)):
            return answer
        admitted: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((command.query, admitted))
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
            steps = await when_fetched(self._submit_steps)
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
            return all(self._is_settled(answer) for answer in await asyncio.gather(*steps))
        finally:
            self._under_way = False

    def _submit_steps(self) -> list[asyncio.Future[Answer]]:
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
            steps.append(answer_to(self.writer, step))
            if staging.stands_at(step.query, step.batch, step.at):
                break  # The step was refused; its answer has the reason.
        return steps

    def _next_step(self, admission: Admission) -> AdmitRows:
        chunk = admission.chunks[admission.chunk]
        if self._rows is None or chunk != self._chunk:
            self._chunk, self._rows = chunk, staged_rows(self.writer.log.read(chunk.position, chunk.size))
        publish, row = self._rows.publish_from(admission.row, self._most, self._topic_queues)
        at = admission.chunk, admission.row
        to = (admission.chunk, row) if row < chunk.rows else (admission.chunk + 1, 0)
        return AdmitRows(admission.query, admission.batch, at, to, publish)

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
