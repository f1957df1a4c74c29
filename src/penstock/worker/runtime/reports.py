"""Progress of jobs, published to a queue of the app: at most one report a job and second, the newest."""

from __future__ import annotations

import asyncio
import logging

from penstock.client.errors import ClientError
from penstock.worker.app import App
from penstock.worker.context import Progress
from penstock.worker.errors import described

logger = logging.getLogger("penstock.worker")

_PAUSE_SECONDS = 1.0


class Reports:
    """`add` may be called by any thread; `publish_all` runs on the event loop."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._newest: dict[str, Progress] = {}
        self._declared = False

    def add(self, progress: Progress) -> None:
        self._newest[progress.job] = progress

    async def keep_publishing(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self.publish_all()

    async def publish_all(self) -> None:
        """Publish what has been reported since the last time. A report that cannot be published is dropped."""
        reports, self._newest = self._newest, {}
        if not reports:
            return
        try:
            await self._declare()
        except ClientError as error:
            logger.warning("progress cannot be published", extra={"error": str(error)})
            return
        await asyncio.gather(*[self._publish(report) for report in reports.values()])

    async def _publish(self, report: Progress) -> None:
        """One that cannot be published is no reason to drop the others."""
        try:
            await self._app.broker.client().publish(self._app.broker.progress_queue, report, key=report.job)
        except Exception as error:
            logger.warning("progress cannot be published", extra={"job": report.job, "error": described(error)})

    async def _declare(self) -> None:
        if not self._declared:
            await self._app.broker.create_progress_queue()
            self._declared = True
