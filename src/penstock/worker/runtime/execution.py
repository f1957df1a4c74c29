"""Running one job: decode it, call its function in the right place, and see what becomes of it."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

import msgspec

from penstock.client.errors import ClientError
from penstock.worker import payload
from penstock.worker.app import App
from penstock.worker.context import Job
from penstock.worker.errors import TimeLimit, printable
from penstock.worker.outcome import Outcome, misfit, performed, raised, returned
from penstock.worker.payload import Next, Payload
from penstock.worker.runtime.children import Children
from penstock.worker.runtime.frames import Order
from penstock.worker.runtime.held import Held, State
from penstock.worker.runtime.reports import Reports
from penstock.worker.runtime.threads import Threads
from penstock.worker.task import Task


class Execution:
    """Functions that are `async` run on the event loop, others in threads, or in child processes if there are any."""

    def __init__(self, app: App, threads: Threads, children: Children | None, reports: Reports) -> None:
        self._app = app
        self._threads = threads
        self._children = children
        self._reports = reports
        self._process = os.getpid()

    async def run(self, held: Held) -> Outcome:
        """The outcome of a job, whatever happens to it."""
        message = held.message
        as_json = payload.is_json(message.content_type)
        try:
            call = payload.decode(message.body, as_json=as_json)
        except msgspec.DecodeError as error:
            return _begun(held, Outcome("invalid", error=printable(f"this is no job: {error}"), kind="no job"))
        task = self._app.tasks.get(call.task)
        if task is None:
            # Another version of the program may know it.
            return _begun(held, Outcome("retry", error=printable(f"this worker has no task called {call.task}")))
        job = Job(message.id, task.name, message.queue, message.receives, message.created, self._reports.add)
        held.job = job
        held.become(State.RUNNING)
        job.enter()
        outcome = await self._attempt(task, call, held, job, as_json=as_json)
        held.become(State.SETTLING)
        if call.then and outcome.what == "success":
            return await self._continue(job, call.then, outcome)
        return outcome

    async def _attempt(self, task: Task[Any, Any], call: Payload, held: Held, job: Job, *, as_json: bool) -> Outcome:
        timer = _Timer(task, held)
        try:
            if self._app.hooks.before:
                await self._app.hooks.before.call(job)
            outcome = await self._call(task, call, job, timer, as_json=as_json)
        except BaseException as error:  # SystemExit too: it ends a job, not the worker.
            _resume()
            outcome = raised(error, task.no_retry)
        finally:
            timer.cancel()
        if os.getpid() != self._process:  # The function has forked, and has returned in the child too.
            os._exit(0)
        # What a function makes of the error that stops it is not why it has failed.
        return raised(job.stopped) if job.stopped is not None and outcome.error else outcome

    async def _call(self, task: Task[Any, Any], call: Payload, job: Job, timer: _Timer, *, as_json: bool) -> Outcome:
        if self._children is not None and not task.is_async:
            order = Order(job.id, job.task, job.queue, job.attempt, job.created, bytes(call.args), as_json)
            return await self._children.run(order, self._reports.add, timer.start)
        try:
            args, kwargs = task.arguments.decode(call.args, as_json=as_json)
        except msgspec.DecodeError as error:
            return misfit(task.name, error)
        timer.start()
        if task.is_async:
            return returned(task.name, await task.function(*args, **kwargs))
        function = partial(performed, task.name, task.no_retry, partial(task.function, *args, **kwargs))
        outcome: Outcome = await self._threads.run(function, lambda: job.stopped)
        return outcome

    async def _continue(self, job: Job, then: list[Next], outcome: Outcome) -> Outcome:
        """Publish the next job of a chain. Its key follows from this job, so another attempt does not double it."""
        step, body = payload.follow_up(then, outcome.result)
        try:
            await self._app.broker.declare(step.queue)
            await self._app.broker.client().publish(
                step.queue,
                payload.as_message(body, "json"),
                content_type=payload.CONTENT_TYPES["json"],
                priority=step.priority,
                idempotency_key=f"then {job.id}",
            )
        except ClientError as error:
            # An earlier attempt, with another result, has published it: that one counts.
            if error.code != "idempotency_key_reused":
                return Outcome("retry", error=f"the next task, {step.task}, cannot be published: {error}")
        return outcome


class _Timer:
    """Stops a function that takes longer than the timeout of its task. It starts when the function does."""

    def __init__(self, task: Task[Any, Any], held: Held) -> None:
        self._task = task
        self._held = held
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if (seconds := self._task.timeout) is not None:
            reason = TimeLimit(f"{self._task.name} took longer than its timeout of {seconds:g} s")
            self._handle = asyncio.get_running_loop().call_later(seconds, self._held.stop, reason)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def _begun(held: Held, outcome: Outcome) -> Outcome:
    held.become(State.SETTLING)
    return outcome


def _resume() -> None:
    """A cancellation was meant for the function of the job. Its runner goes on, and settles the job."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
