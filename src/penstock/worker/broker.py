"""What an app does at its broker: it connects, makes its queues, and publishes jobs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from penstock.client.asynchronous import AsyncClient
from penstock.client.errors import QueueExists, QueueNotFound
from penstock.client.results import Queue, QueueSettings
from penstock.client.runner import Runner
from penstock.worker import payload
from penstock.worker.errors import TaskError
from penstock.worker.handle import AsyncHandle, Handle
from penstock.worker.policy import FAILED_SETTINGS, OWN, Policies, Policy, differences

if TYPE_CHECKING:
    from penstock.worker.app import App
    from penstock.worker.task import Call, Task

T = TypeVar("T")

logger = logging.getLogger("penstock.worker")

_KEY_BYTES_MAX = 128  # Of an idempotency key.


class AppBroker:
    """`app.broker`: for tasks, handles and workers. Programs have no reason to call it."""

    def __init__(self, app: App, url: str | None, token: str | None) -> None:
        self.policies = Policies()
        self._app = app
        self._url, self._token = url, token
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._declared: dict[str, Queue] = {}
        self._runner: Runner | None = None
        self._lock = threading.Lock()
        _brokers.add(self)

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self, call: Call, body: bytes) -> AsyncHandle:
        """Store a job. Used by `Task.send`."""
        task, key = call.task, call.idempotency_key
        if key is None:
            return (await self.publish_many(call, [body]))[0]
        idempotency_key = _idempotency_key(task.queue, task.name, key)
        (message,), options = _messages(call, [body])
        publish = partial(self.client().publish, task.queue, message, idempotency_key=idempotency_key, **options)
        return self.handle(task, (await self._stored(task.queue, publish)).id)

    async def publish_many(self, call: Call, bodies: Sequence[bytes]) -> list[AsyncHandle]:
        """Store many jobs. Used by `Task.send_many`."""
        task = call.task
        if call.idempotency_key is not None:
            raise TaskError(f"task {task.name}: an idempotency_key is for one job; send them one by one")
        messages, options = _messages(call, bodies)
        publish = partial(self.client().publish_many, task.queue, messages, **options)
        return [self.handle(task, each.id) for each in await self._stored(task.queue, publish)]

    async def _stored(self, queue: str, publish: Callable[[], Awaitable[T]]) -> T:
        await self.declare(queue)
        try:
            return await publish()
        except QueueNotFound:  # Somebody has removed it.
            await self.declare(queue, again=True)
            return await publish()

    def handle(self, task: Task[Any, Any], id: str) -> AsyncHandle:
        return AsyncHandle(self._app, id, task.name, task.arguments.result)

    # ── Connections ─────────────────────────────────────────────────────────────────────────────────────────

    def connect_to(self, url: str | None, token: str | None) -> None:
        """See `App.connect_to`."""
        self.close()
        self._declared.clear()
        self._url, self._token = url or self._url, token or self._token

    def client(self) -> AsyncClient:
        """The client of the event loop that runs now."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncClient(self._url, token=self._token, name=self._app.name)
        return client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's own thread, and wait for it."""
        return self._started_runner().run(coroutine)

    def blocking(self, handle: AsyncHandle) -> Handle:
        return Handle(handle, self._started_runner())

    def _started_runner(self) -> Runner:
        with self._lock:
            if self._runner is None:
                self._runner = Runner(f"penstock app {self._app.name}")
            return self._runner

    async def declare(self, queue: str, *, again: bool = False) -> Queue:
        """Make a queue as its tasks want it, once. One that exists keeps its own settings; differences are logged."""
        if again or queue not in self._declared:
            self._declared[queue] = await self._make(queue, self.policies.of(queue))
        return self._declared[queue]

    async def _make(self, queue: str, policy: Policy) -> Queue:
        settings, dead_letters = policy.settings(queue), policy.dead_letters_of(queue)
        if policy.dead_letter_queue == OWN:
            # One that exists is not given a dead-letter queue that nobody has asked for.
            try:
                found = await self.client().queues.get(queue)
            except QueueNotFound:
                pass
            else:
                return self._compared(queue, settings, found, besides=("redrive_policy",))
        if dead_letters is not None:
            await self._create(dead_letters, FAILED_SETTINGS if policy.dead_letter_queue == OWN else {})
        return await self._create(queue, settings)

    async def _create(self, queue: str, settings: QueueSettings) -> Queue:
        queues = self.client().queues
        try:
            return await queues.create(queue, **settings)
        except QueueExists:
            return self._compared(queue, settings, await queues.get(queue))

    @staticmethod
    def _compared(queue: str, settings: QueueSettings, found: Queue, *, besides: Collection[str] = ()) -> Queue:
        """A queue that exists keeps its settings."""
        if different := differences(settings, found, besides=besides):
            logger.warning(
                "queue %s exists with other settings, which are used: %s. Change the queue or the tasks",
                queue,
                "; ".join(different),
            )
        return found

    async def create_progress_queue(self) -> None:
        await self._create(self.progress_queue, {"retention_timeout": self._app.progress_seconds, "keep": "all"})

    def after_fork(self) -> None:
        """In a forked child, without the thread: begin anew. The connections are the parent's, so they stay open."""
        self._before_fork = (self._runner, self._clients)
        self._runner, self._clients, self._lock = None, WeakKeyDictionary(), threading.Lock()

    @property
    def progress_queue(self) -> str:
        """Where reports of progress are published."""
        return f"{self._app.name}.progress"

    def close(self) -> None:
        """See `App.close`."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.run(self.aclose())
            runner.stop()

    async def aclose(self) -> None:
        """See `App.aclose`."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _messages(call: Call, bodies: Sequence[bytes]) -> tuple[list[str | bytes], dict[str, Any]]:
    """What to publish, and how."""
    form = call.task.format
    options = {"delay": call.delay, "priority": call.priority, "expires": call.expires}
    messages = [payload.as_message(body, form) for body in bodies]
    return messages, {"content_type": payload.CONTENT_TYPES[form], **options}


_brokers: WeakSet[AppBroker] = WeakSet()


def _after_fork() -> None:
    for broker in list(_brokers):
        broker.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _idempotency_key(queue: str, task: str, key: str) -> str:
    text = f"{queue}/{task}/{key}"
    fits = len(text) <= _KEY_BYTES_MAX and text.isascii() and text.isprintable()
    return text if fits else hashlib.sha256(text.encode()).hexdigest()
