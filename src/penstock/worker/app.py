"""The tasks of a program, and its connection to the broker."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary, WeakSet

from penstock.client.asynchronous import AsyncClient
from penstock.client.errors import QueueExists, QueueNotFound
from penstock.client.results import Queue, QueueSettings
from penstock.client.runner import Runner
from penstock.worker import payload
from penstock.worker.errors import TaskError
from penstock.worker.handle import AsyncHandle, Handle
from penstock.worker.hooks import Hooks
from penstock.worker.policy import Policies, differences
from penstock.worker.task import Call, Task, TaskOptions

if TYPE_CHECKING:
    from penstock.worker.runtime.worker import Worker, WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("penstock.worker")

_KEY_BYTES_MAX = 128  # Of an idempotency key.


class App:
    """Tasks that share a broker.

    ```python
    app = penstock.App()

    @app.task(queue="emails", retries=5)
    def send_email(to: str, subject: str) -> None: ...

    send_email.send("ann@example.com", "Hello")
    ```

    `url` and `token` are taken from PENSTOCK_URL and PENSTOCK_TOKEN if they are not given. `name` is the queue of
    tasks that name none. An app may be used by many threads and event loops.
    """

    progress_seconds = 3600.0  # How long a report of progress can be read.

    def __init__(self, url: str | None = None, *, token: str | None = None, name: str = "tasks") -> None:
        self.name = name
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.policies = Policies()
        self.starting, self.stopping = Hooks(), Hooks()
        self.before, self.after, self.failed = Hooks(), Hooks(), Hooks()
        self._url, self._token = url, token
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._declared: dict[str, Queue] = {}
        self._runner: Runner | None = None
        self._lock = threading.Lock()
        _apps.add(self)

    # ── Tasks ───────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task.

        `queue`: where its jobs wait; tasks may share one. `name`: what it is called in messages; the name of the
        function. `timeout`: seconds after which it is stopped and tried again. `payload`: json or msgpack.
        `priority`: higher first. `no_retry`: exceptions after which it is not tried again. `schedule`, a cron
        expression in `time_zone`, or `every`, seconds: it runs by itself.

        Settings of its queue: `retries` (5 after the first attempt; None: without end), `backoff` (fixed, linear,
        exponential), `delay` before the first retry (1 s), `delay_max` (3600 s), `jitter` (0.1), `lease` (30 s),
        `dead_letter_queue`.
        """
        if function is not None:
            return self._add(function, {})
        return lambda function: self._add(function, options)

    def _add(self, function: Callable[P, R], options: TaskOptions) -> Task[P, R]:
        name = options.get("name") or function.__name__
        if unknown := options.keys() - TaskOptions.__annotations__.keys():
            raise TaskError(f"task {name}: unknown options: {', '.join(sorted(unknown))}")
        if name in self.tasks:
            raise TaskError(f"two tasks are called {name}; give one of them another name with name=…")
        task = self.tasks[name] = Task(self, function, name, options.get("queue") or self.name, options)
        self.policies.add(task.queue, name, options)
        return task

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""
        return list(dict.fromkeys(task.queue for task in self.tasks.values()))

    # ── Hooks ───────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self, function: Callable[[], T]) -> Callable[[], T]:
        """Called when a worker starts. An error ends it."""
        return self.starting.add(function)

    def on_stop(self, function: Callable[[], T]) -> Callable[[], T]:
        """Called when a worker has stopped running jobs."""
        return self.stopping.add(function)

    def before_task(self, function: Callable[..., T]) -> Callable[..., T]:
        """Called with the `Job` before its function. An error fails this attempt."""
        return self.before.add(function)

    def after_task(self, function: Callable[..., T]) -> Callable[..., T]:
        """Called with the `Job` after its function has returned."""
        return self.after.add(function)

    def on_failure(self, function: Callable[..., T]) -> Callable[..., T]:
        """Called with the `Job` and the text of the error, after every attempt that failed."""
        return self.failed.add(function)

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self, call: Call, body: bytes) -> AsyncHandle:
        """Store a job. Used by `Task.send`."""
        task, key = call.task, call.key
        if key is None:
            return (await self.publish_many(call, [body]))[0]
        idempotency_key = _idempotency_key(task.queue, task.name, key)
        (message,), options = _messages(call, [body])
        publish = partial(self.client().publish, task.queue, message, idempotency_key=idempotency_key, **options)
        return self.handle(task, (await self._stored(task.queue, publish)).id)

    async def publish_many(self, call: Call, bodies: Sequence[bytes]) -> list[AsyncHandle]:
        """Store many jobs. Used by `Task.send_many`."""
        task = call.task
        if call.key is not None:
            raise TaskError(f"task {task.name}: a key is for one job; send them one by one")
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
        return AsyncHandle(self, id, task.name, task.arguments.result)

    # ── The broker ──────────────────────────────────────────────────────────────────────────────────────────

    def connect_to(self, url: str | None, token: str | None = None) -> None:
        """Use another broker from now on. None: leave it as it is."""
        self.close()
        self._declared.clear()
        self._url, self._token = url or self._url, token or self._token

    def client(self) -> AsyncClient:
        """The client of the event loop that runs now."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncClient(self._url, token=self._token, name=self.name)
        return client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's own thread, and wait for it."""
        return self._started_runner().run(coroutine)

    def blocking(self, handle: AsyncHandle) -> Handle:
        return Handle(handle, self._started_runner())

    def _started_runner(self) -> Runner:
        with self._lock:
            if self._runner is None:
                self._runner = Runner(f"penstock app {self.name}")
            return self._runner

    async def declare(self, queue: str, *, again: bool = False) -> Queue:
        """Make a queue as its tasks want it, once. One that exists keeps its own settings; differences are logged."""
        if again or queue not in self._declared:
            policy = self.policies.of(queue)
            if policy.dead_letter_queue:
                await self._create(policy.dead_letter_queue, {})
            self._declared[queue] = await self._create(queue, policy.settings())
        return self._declared[queue]

    async def _create(self, queue: str, settings: QueueSettings) -> Queue:
        queues = self.client().queues
        try:
            return await queues.create(queue, **settings)
        except QueueExists:
            found = await queues.get(queue)
        if different := differences(settings, found):
            logger.warning(
                "queue %s exists with other settings, which are used: %s. Change the queue or the tasks",
                queue,
                "; ".join(different),
            )
        return found

    async def create_progress_queue(self) -> None:
        await self._create(self.progress_queue, {"retention_timeout": self.progress_seconds, "keep": "all"})

    def after_fork(self) -> None:
        """In a forked child, without the thread: begin anew. The connections are the parent's, so they stay open."""
        self._before_fork = (self._runner, self._clients)
        self._runner, self._clients, self._lock = None, WeakKeyDictionary(), threading.Lock()

    @property
    def progress_queue(self) -> str:
        """Where reports of progress are published."""
        return f"{self.name}.progress"

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Something that runs the jobs of this app: `app.worker(concurrency=10).run()`."""
        from penstock.worker.runtime.worker import Worker  # Programs that only send need none of it.

        return Worker(self, **options)

    def close(self) -> None:
        """Close the connections that `send` uses. An app may be used again after that."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.run(self.aclose())
            runner.stop()

    async def aclose(self) -> None:
        """Close the connections of the event loop that runs now."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _messages(call: Call, bodies: Sequence[bytes]) -> tuple[list[str | bytes], dict[str, Any]]:
    """What to publish, and how."""
    form = call.task.format
    options = {"delay": call.delay, "priority": call.priority, "expires": call.expires}
    messages = [payload.as_message(body, form) for body in bodies]
    return messages, {"content_type": payload.CONTENT_TYPES[form], **options}


_apps: WeakSet[App] = WeakSet()


def _after_fork() -> None:
    for app in list(_apps):
        app.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _idempotency_key(queue: str, task: str, key: str) -> str:
    text = f"{queue}/{task}/{key}"
    fits = len(text) <= _KEY_BYTES_MAX and text.isascii() and text.isprintable()
    return text if fits else hashlib.sha256(text.encode()).hexdigest()
