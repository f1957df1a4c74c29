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
from penstock.client.runner import new_loop
from penstock.worker.app import App
from penstock.worker.errors import TaskError, described
from penstock.worker.recurrence import put_schedules
from penstock.worker.runtime.background import Background
from penstock.worker.runtime.beginning import Beginning
from penstock.worker.runtime.children import Children
from penstock.worker.runtime.execution import Execution
from penstock.worker.runtime.fetching import Fetcher
from penstock.worker.runtime.heartbeat import Heartbeat
from penstock.worker.runtime.jobs import Jobs
from penstock.worker.runtime.reports import Reports
from penstock.worker.runtime.settling import Settling
from penstock.worker.runtime.threads import Threads
from penstock.worker.runtime.watch import Watch

logger = logging.getLogger("penstock.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_SECONDS_MAX = 5.0  # For functions to end after they are interrupted, and for the last confirmations.
_EXIT_SECONDS_MAX = 2 * _END_SECONDS_MAX  # After the grace time, with a function that blocks the event loop.
_LEAVE_SECONDS_MAX = 1.0  # For what functions have left on the event loop.


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
        self._signalled = False
        self._watch: Watch | None = None
        if not self._queues:
            raise TaskError("the app has no tasks; import the modules that define them")
        if strangers := [queue for queue in self._queues if queue not in app.queues]:
            known = ", ".join(app.queues)
            raise TaskError(f"no task of the app has the queue {strangers[0]}; its queues are {known}")
        if self._processes and not self._target:
            raise TaskError("child processes import the app: give target='module:app'")

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. A second signal ends the process at once."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            _run(self._serve_until_signal())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """As the first signal does. Any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked_to_stop.set)

    async def _serve_until_signal(self) -> None:
        # Handlers of the event loop would have to wait for a function that blocks it.
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        await self.serve()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        if self._watch is not None:
            self._watch.exit_within(self._grace + _EXIT_SECONDS_MAX)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_in_order, number)

    def _stop_in_order(self, number: int) -> None:
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
        beginning = Beginning(client, queues)
        jobs = Jobs(self._concurrency, beginning, execution, Settling(self._app, client, reports, queues), queues)
        shortest = min((queue.lease for queue in queues.values()), default=1.0)
        heartbeat = Heartbeat(client, self._name, list(queues), jobs)
        self._watch = Watch(self._app, jobs.held, shortest)
        self._watch.start()
        background, fetching = Background(), Background()
        background.keep("heartbeat", heartbeat.keep)
        background.keep("progress", reports.keep_publishing)
        logger.info("ready", extra={"queues": list(queues), "concurrency": self._concurrency, "broker": client.url})
        try:
            await self._fetch(fetching, jobs, queues)
            await self._drain(jobs)
            await reports.publish_all()
        finally:
            await fetching.end()
            await background.end()
            await heartbeat.end()
            await self._watch.end()

    async def _fetch(self, fetching: Background, jobs: Jobs, queues: dict[str, Queue]) -> None:
        """Until the worker is asked to stop, or has nothing more to do."""
        fetchers = [Fetcher(self._app, queue, self._name, len(queues), jobs) for queue in queues]
        each = [
            fetching.keep(f"jobs of {queue}", fetcher.burst if self._burst else fetcher.run)
            for queue, fetcher in zip(queues, fetchers, strict=True)
        ]
        stop = fetching.keep("stop", self._asked_to_stop.wait)
        all_fetched = asyncio.ensure_future(asyncio.wait(each or [stop]))
        await asyncio.wait([stop, all_fetched], return_when=asyncio.FIRST_COMPLETED)
        await fetching.end()
        await all_fetched

    async def _drain(self, jobs: Jobs) -> None:
        given_back = await jobs.give_back()
        logger.info("draining", extra={"given_back": given_back, "running": len(jobs.held)})
        if not await jobs.finish(self._grace):
            await jobs.abandon(_END_SECONDS_MAX)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, but functions can neither end the loop nor keep it from ending."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    try:
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:  # SystemExit of a task or callback that a function has started.
                if task.done():
                    raise
                logger.warning("a function would have ended the worker", extra={"error": described(error)})
    finally:
        _leave(loop)


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LEAVE_SECONDS_MAX))
    asyncio.set_event_loop(None)
    loop.close()
