"""Telling the broker what became of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from penstock.client.asynchronous import AsyncClient
from penstock.client.encoding import OutcomeName
from penstock.client.errors import Conflict, NotFound, Timeout, Unavailable
from penstock.client.results import Queue
from penstock.worker.app import App
from penstock.worker.context import Progress
from penstock.worker.errors import described, printable
from penstock.worker.outcome import Outcome
from penstock.worker.runtime.held import Held
from penstock.worker.runtime.reports import Reports

logger = logging.getLogger("penstock.worker")


class Settling:
    """Confirms what succeeded, and gives back what did not."""

    def __init__(self, app: App, client: AsyncClient, reports: Reports, queues: Mapping[str, Queue]) -> None:
        self._app = app
        self._client = client
        self._reports = reports
        self._queues = queues

    async def settle(self, held: Held, outcome: Outcome, seconds: float) -> None:
        """Returns when the broker has answered, or the job is lost. If the broker is away, it is asked again until
        the lease has run out."""
        if outcome.what == "lost" and not held.lost:  # The function has raised LeaseLost of its own accord.
            outcome = structs.replace(outcome, what="retry")
        if outcome.error:
            await self._note_failure(held, outcome)
        elif self._app.hooks.after and held.job is not None:
            await self._app.hooks.after.notify(held.job)
        if held.lost:
            return
        try:
            await self._report(held, outcome)
        except (Conflict, NotFound) as error:  # It is not ours any more.
            logger.warning("outcome discarded", extra=_facts(held, outcome=outcome.what, error=str(error)))
        except Exception as error:
            await self._report_refused(held, outcome, error)
        else:
            if logger.isEnabledFor(logging.INFO) and outcome.what == "success" and not held.lost:
                logger.info("job done", extra=_facts(held, seconds=round(seconds, 6)))

    async def _report(self, held: Held, outcome: Outcome) -> None:
        assert outcome.what != "lost"
        final = self._is_final(held, outcome)
        what: OutcomeName = "failed" if final else outcome.what
        reason = outcome.reason if final else outcome.error
        facts: dict[str, Any] = {"result": outcome.result or None, "delay": outcome.delay, "reason": reason}
        while not held.lost:
            try:
                await self._client.settle(held.message, what, begun=held.begun, **facts)
            except (Unavailable, Timeout):
                continue
            return

    def _is_final(self, held: Held, outcome: Outcome) -> bool:
        """Whether the job fails for good. What has not begun has not failed."""
        if not held.begun or outcome.what == "success":
            return False
        return outcome.what == "invalid" or self._queues[held.message.queue].has_failed_after(held.message.receives)

    async def _report_refused(self, held: Held, outcome: Outcome, error: Exception) -> None:
        """The broker does not take this outcome. The job ends all the same, and says why."""
        logger.warning("outcome discarded", extra=_facts(held, outcome=outcome.what, error=described(error)))
        reason = printable(f"its outcome cannot be stored: {described(error)}")
        try:
            await self._report(held, Outcome("retry", error=reason))
        except Exception as again:
            logger.warning("job left to its lease", extra=_facts(held, error=described(again)))

    async def _note_failure(self, held: Held, outcome: Outcome) -> None:
        final = self._is_final(held, outcome)
        what = "lost" if outcome.what == "lost" else "failed for good" if final else "to be tried again"
        more = {"outcome": what, "error": outcome.error} | ({"traceback": outcome.trace} if outcome.trace else {})
        logger.warning("job failed", extra=_facts(held, **more))
        job = held.job
        if job is None or outcome.what == "lost":
            return
        if self._app.hooks.failure:
            await self._app.hooks.failure.notify(job, outcome.error)
        if final:
            # Before it is settled, so that whoever waits for the result finds it.
            self._reports.add(Progress(job.id, job.task, job.attempt, text=outcome.error, failed=True))
            await self._reports.publish_all()


def _facts(held: Held, **more: Any) -> dict[str, Any]:
    task = {"task": held.job.task} if held.job else {}
    return {"job": held.message.id, **task, "queue": held.message.queue, "attempt": held.message.receives, **more}
