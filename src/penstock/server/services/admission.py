"""Committed batches on their way into their queues: a few milliseconds at a time, each stroke when the last one is
durable, so that nobody waits for them; and, after a crash, on from where they were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.dialects.native.staging import StagedRows
from penstock.engine.staging import Admission, Chunk
from penstock.errors import DamagedLogError, Reason
from penstock.limits import ADMITTED_ROWS_MAX
from penstock.model.answers import Answer, Done, Refused
from penstock.model.commands import AdmitRows, CommitBatch, DropStaged
from penstock.model.settings import QueueSettings
from penstock.server.writer.port import ServicePort

logger = logging.getLogger(__name__)

_STROKE_SECONDS = 0.002

Respond = Callable[[Answer], None]


class Admitter:
    def __init__(self, loop: ServicePort, topic_queues: QueueSettings) -> None:
        self._loop = loop
        self._topic_queues = topic_queues  # What those are like that rows to topics make.
        self._stopped = False
        self._under_way = 0  # Steps that are not durable yet.
        self._chunk: Chunk | None = None  # Whose rows are at hand.
        self._rows: StagedRows | None = None
        self._most = ADMITTED_ROWS_MAX  # Rows in one step.
        self._waiting: list[tuple[CommitBatch, Respond]] = []

    def commit(self, command: CommitBatch, respond: Respond) -> None:
        """Commit a batch; the answer comes when all of its rows are in their queues, and that is durable."""

        def committed(answer: Answer) -> None:
            if not isinstance(answer, Refused) and (self._under_way or self._is_admitting(command.query)):
                self._waiting.append((command, respond))
                self.resume()
            else:
                respond(answer)

        self._loop.submit(command, committed)

    def resume(self) -> None:
        """Go on with what is committed, if nobody is at it."""
        if not (self._under_way or self._stopped or self._loop.failure):
            self._stroke()

    def stop(self) -> None:
        """The broker is about to stop: what is left follows when it starts again."""
        self._stopped = True
        self._give_up(Refused(Reason.UNAVAILABLE, "the broker stops"))

    def look_around(self) -> None:
        """Called now and then: go on where something was in the way, and drop what nobody commits any more."""
        self.resume()
        staging, now = self._loop.engine.staging, self._loop.now()
        if any(batch.expires_at <= now for batch in staging.batches.values()):
            self._loop.submit(DropStaged(), lambda _: logger.warning("staged_rows_expired"))

    def _stroke(self) -> None:
        """Steps for a few milliseconds. The next ones come when these are durable."""
        staging = self._loop.engine.staging
        end = time.perf_counter() + _STROKE_SECONDS
        while staging.admissions and time.perf_counter() < end:
            step = self._step(staging.admissions[0])
            if step is None:
                return
            self._under_way += 1
            self._loop.submit(step, self._step_ended)
            if staging.stands_at(step.query, step.batch, step.at):
                return  # It was refused: why, its answer says.

    def _step(self, admission: Admission) -> AdmitRows | None:
        chunk = admission.chunks[admission.chunk]
        try:
            if self._rows is None or chunk != self._chunk:
                self._chunk, self._rows = chunk, StagedRows(self._loop.log.read(chunk.position, chunk.size))
        except DamagedLogError as error:
            logger.critical("staged_rows_damaged", extra={"reason": str(error), "query": admission.query})
            self._give_up(Refused(Reason.DAMAGED, str(error)))
            return None
        publish, row = self._rows.publish_from(admission.row, self._most, self._topic_queues)
        at = admission.chunk, admission.row
        to = (admission.chunk, row) if row < chunk.rows else (admission.chunk + 1, 0)
        return AdmitRows(admission.query, admission.batch, at, to, publish)

    def _step_ended(self, answer: Answer) -> None:
        """A step is durable, or never will be."""
        self._under_way -= 1
        if isinstance(answer, Refused) and answer.reason is Reason.TOO_MANY_DELIVERIES and self._most > 1:
            self._most = 1  # One message may go to every channel there is.
        elif isinstance(answer, Refused):
            told = {"reason": f"{answer.reason.value}: {answer.detail}"}
            if answer.reason is not Reason.NO_QUEUE:
                logger.warning("staged_rows_wait", extra=told)
                self._give_up(answer)
                return
            logger.warning("staged_rows_dropped", extra=told)
        if not self._under_way:
            self._answer()
            self.resume()

    def _answer(self) -> None:
        """Tell those whose batch is in. Only when no step is under way it is durable, too."""
        told = [each for each in self._waiting if not self._is_admitting(each[0].query)]
        self._waiting = [each for each in self._waiting if self._is_admitting(each[0].query)]
        for _, respond in told:
            respond(Done())

    def _is_admitting(self, query: str) -> bool:
        return any(admission.query == query for admission in self._loop.engine.staging.admissions)

    def _give_up(self, refused: Refused) -> None:
        """What is committed stays so; but nobody waits for it any more."""
        self._chunk = self._rows = None
        waiting, self._waiting = self._waiting, []
        for _, respond in waiting:
            respond(refused)
