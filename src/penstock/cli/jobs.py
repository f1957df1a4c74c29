"""Work that goes on in the broker, such as a purge, with a bar that shows how far it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exits import CommandError

if TYPE_CHECKING:
    from penstock.client import Client, Job

_LOOK_SECONDS = 0.2


def run_with_progress(client: Client, queue: str, what: str, start: Callable[[], Job]) -> Job:
    """Run a job that takes messages out of a queue, and watch the queue become smaller."""
    total = client.queues.get(queue).status.messages
    with ThreadPoolExecutor(1) as threads, output.progress(what, total, "messages") as advance:
        running = threads.submit(start)
        while not _is_over(running):
            advance(total - client.queues.get(queue).status.messages)
        job = running.result()
    if job.state == "failed":
        raise CommandError(f"the broker stopped {what}: {job.error}")
    if job.state == "running":
        output.say(f"job {job.job} goes on in the broker")
    return job


def _is_over(running: Future[Job]) -> bool:
    try:
        running.exception(_LOOK_SECONDS)
    except StillRunning:
        return False
    return True
