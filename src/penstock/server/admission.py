"""Committed batches on their way into their queues: a few milliseconds at a time, each stroke when the last one is
durable, so that nobody waits for them; and, after a crash, on from where they were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.dialects.staging import StagedRows
from penstock.engine.staging import Admission, Chunk
from penstock.errors import DamagedLogError, Reason
from penstock.model import AdmitRows, Answer, CommitBatch, Done, DropStaged, Refused
from penstock.server.loop import Loop

logger = logging.getLogger(__name__)

_STROKE_SECONDS = 0.003  # The step that goes over it still ends.

Respond = Callable[[Answer], None]


class Admitter:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._at_work = False
        self._chunk: Chunk | None = None  # Whose rows are at hand.
        self._rows: StagedRows | None = None
        self._waiting: list[tuple[CommitBatch, Respond]] = []
        self.rows_total = 0

    def commit(self, command: CommitBatch, respond: Respond) -> None:
        """Commit a batch; the answer comes when all of its rows are in their queues, and that is durable."""

        def committed(answer: Answer) -> None:
            if not isinstance(answer, Refused) and (self._at_work or self._is_under_way(command.query)):
                self._waiting.append((command, respond))
                self.resume()
            else:
                respond(answer)

        self._loop.submit(command, committed)

    def resume(self) -> None:
        """Go on with what is committed, if nobody is at it."""
        if self._loop.engine.staging.admissions and not self._at_work and not self._loop.failure:
            self._stroke()

    def look_around(self) -> None:
        """Called now and then: go on where something was in the way, and drop what nobody commits any more."""
        self.resume()
        staging, now = self._loop.engine.staging, self._loop.now()
        if any(batch.expires_at <= now for batch in staging.batches.values()):
            self._loop.submit(DropStaged(), lambda _: logger.warning("staged_rows_expired"))

    def _stroke(self) -> None:
        self._at_work = True
        end = time.perf_counter() + _STROKE_SECONDS
        while self._loop.engine.staging.admissions:
            step = self._step(self._loop.engine.staging.admissions[0])
            if step is None:
                return
            if len(self._loop.engine.staging.admissions[0].chunks) == step.to[0] or time.perf_counter() >= end:
                self._loop.submit(step, self._stroke_ended)
                return
            self._loop.submit(step, _noted)

    def _step(self, admission: Admission) -> AdmitRows | None:
        chunk = admission.chunks[admission.chunk]
        try:
            if self._rows is None or chunk != self._chunk:
                self._chunk, self._rows = chunk, StagedRows(self._loop.log.read(chunk.position, chunk.size))
        except DamagedLogError as error:
            logger.critical("staged_rows_damaged", extra={"reason": str(error), "query": admission.query})
            self._give_up(Refused(Reason.DAMAGED, str(error)))
            return None
        publish, row = self._rows.publish_from(admission.row)
        self.rows_total += row - admission.row
        at = admission.chunk, admission.row
        to = (admission.chunk, row) if row < chunk.rows else (admission.chunk + 1, 0)
        return AdmitRows(admission.query, admission.batch, at, to, publish)

    def _stroke_ended(self, answer: Answer) -> None:
        """What the last stroke did is durable, or never will be."""
        self._at_work = False
        _noted(answer)
        if isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE:
            self._give_up(answer)
        else:
            self._answer()
            self.resume()

    def _answer(self) -> None:
        """Tell those whose batch is in. Only a stroke that has ended knows that it is durable, too."""
        told = [each for each in self._waiting if not self._is_under_way(each[0].query)]
        self._waiting = [each for each in self._waiting if self._is_under_way(each[0].query)]
        for _, respond in told:
            respond(Done())

    def _is_under_way(self, query: str) -> bool:
        return any(admission.query == query for admission in self._loop.engine.staging.admissions)

    def _give_up(self, refused: Refused) -> None:
        """What is committed stays so; but nobody waits for it any more."""
        self._at_work = False
        self._chunk = self._rows = None
        waiting, self._waiting = self._waiting, []
        for _, respond in waiting:
            respond(refused)


def _noted(answer: Answer) -> None:
    if isinstance(answer, Refused) and answer.reason is not Reason.UNAVAILABLE:
        logger.warning("staged_rows_dropped", extra={"reason": f"{answer.reason.value}: {answer.detail}"})
