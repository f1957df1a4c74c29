"""A worker: fetches jobs, runs so many at a time, confirms them, and ends in order when it is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any, TypedDict, Unpack

from penstock.client.errors import Timeout, Unavailable
from penstock.client.results import Queue
from penstock.worker.app import App
from penstock.worker.errors import TaskError
from penstock.worker.recurrence import put_schedules
from penstock.worker.runtime.children import Children
from penstock.worker.runtime.execution import Execution
from penstock.worker.runtime.fetching import Fetcher
from penstock.worker.runtime.heartbeat import Heartbeat
from penstock.worker.runtime.jobs import Jobs
from penstock.worker.runtime.leases import Leases
from penstock.worker.runtime.reports import Reports
from penstock.worker.runtime.settling import Settling
from penstock.worker.runtime.threads import Threads

logger = logging.getLogger("penstock.worker")

_END_SECONDS_MAX = 5.0  # For functions to end after they are interrupted, and for the last confirmations.


class WorkerOptions(TypedDict, total=False):
    """How a worker runs."""

    queues: list[str] | None
    concurrency: int | None
    processes: int
    grace: float
    burst: bool
    target: str | None


class Worker:
    """Runs the jobs of an app. `run` blocks; `serve` is for those who have an event loop.

    `queues`: those of all tasks, if none are given. `concurrency`: jobs at a time; 10, or as many as there are
    processes. `processes`: child processes for functions that are not `async`; 0: threads. `grace`: seconds that
    running jobs have after a request to stop, 30. `burst`: end when no job is ready. `target`: where the app is,
    as `module:name`; child processes need it.
    """

    def __init__(self, app: App, **options: Unpack[WorkerOptions]) -> None:
        self._app = app
        self._queues = options.get("queues") or app.queues
        self._processes = options.get("processes", 0)
        self._concurrency = options.get("concurrency") or self._processes or 10
        self._grace = options.get("grace", 30.0)
        self._burst = options.get("burst", False)
        self._target = options.get("target") or ""
        self._name = f"{app.name}@{socket.gethostname()}:{os.getpid()}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = asyncio.Event()
        if not self._queues:
            raise TaskError("the app has no tasks; import the modules that define them")
        if self._processes and not self._target:
            raise TaskError("child processes import the app: give target='module:app'")

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. A second signal ends the process at once."""
        _run(self._serve_until_signal())

    def stop(self) -> None:
        """As the first signal does. Any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked_to_stop.set)

    async def _serve_until_signal(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        await self.serve()

    def _on_signal(self, number: int) -> None:
        if self._asked_to_stop.is_set():
            os._exit(128 + number)
        logger.info("stopping", extra={"signal": signal.Signals(number).name})
        self._asked_to_stop.set()

    async def serve(self) -> None:
        """Work until `stop` is called."""
        self._loop = asyncio.get_running_loop()
        threads = Threads(self._concurrency)
        children = Children(self._processes, self._target) if self._processes else None
        try:
            queues = await self._prepare()
            await self._app.hooks.start.call()
            await self._work(queues, threads, children)
            await self._app.hooks.stop.notify()
        finally:
            threads.close()
            if children is not None:
                await children.close()
            await self._app.aclose()
            self._loop = None
            logger.info("stopped")

    async def _prepare(self) -> dict[str, Queue]:
        """Make queues and schedules, however long the broker takes to be there."""
        while not self._asked_to_stop.is_set():
            try:
                queues = {queue: await self._app.broker.declare(queue) for queue in self._queues}
                await put_schedules(self._app, queues)
            except (Unavailable, Timeout) as error:
                logger.warning("cannot reach the broker; trying again", extra={"error": str(error)})
            else:
                return queues
        return {}

    async def _work(self, queues: dict[str, Queue], threads: Threads, children: Children | None) -> None:
        client, reports = self._app.broker.client(), Reports(self._app)
        execution = Execution(self._app, threads, children, reports)
        jobs = Jobs(self._concurrency, execution, Settling(self._app, client, reports, queues), queues)
        shortest = min((queue.lease for queue in queues.values()), default=1.0)
        heartbeat = Heartbeat(client, self._name, list(queues), jobs)
        background = [
            _background(heartbeat.keep()),
            _background(Leases(client, jobs.held, shortest).keep()),
            _background(reports.keep_publishing()),
        ]
        fetching = self._fetch(jobs, queues)
        logger.info("ready", extra={"queues": list(queues), "concurrency": self._concurrency, "broker": client.url})
        stop = _background(self._asked_to_stop.wait())
        try:
            await asyncio.wait([stop, fetching], return_when=asyncio.FIRST_COMPLETED)
            await _end(fetching)
            await self._drain(jobs)
            await reports.publish_all()
        finally:
            await asyncio.gather(*[_end(task) for task in (*background, stop)])
            await heartbeat.end()

    def _fetch(self, jobs: Jobs, queues: dict[str, Queue]) -> asyncio.Task[Any]:
        fetchers = [Fetcher(self._app, queue, self._name, len(queues), jobs) for queue in queues]
        each = [fetcher.burst() if self._burst else fetcher.run() for fetcher in fetchers]
        return _background(_all(each))

    async def _drain(self, jobs: Jobs) -> None:
        given_back = await jobs.give_back()
        logger.info("draining", extra={"given_back": given_back, "running": len(jobs.held)})
        if not await jobs.finish(self._grace):
            await jobs.abandon(_END_SECONDS_MAX)


async def _all(coroutines: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*coroutines)


def _background(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it. Raises the error that it ended with."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:  # It is not made for every system.
        asyncio.run(main)
    else:
        uvloop.run(main)
