"""Functions that can be sent: `@app.task` makes one, `send` publishes a job, a direct call runs it in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack

from msgspec import Struct, structs

from penstock.renamed import SEND_OPTIONS, takes_old_names
from penstock.worker import payload
from penstock.worker.arguments import Arguments
from penstock.worker.handle import AsyncHandle, Handle
from penstock.worker.payload import Format, Next
from penstock.worker.policy import PolicyOptions
from penstock.worker.recurrence import recurrence_of

if TYPE_CHECKING:
    from penstock.worker.app import App

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(PolicyOptions, total=False):
    """What can be said about a task, and with `PolicyOptions` about its queue."""

    queue: str
    name: str
    timeout: float
    payload: Format
    priority: int
    no_retry: Sequence[type[BaseException]]
    schedule: str
    every: float
    time_zone: str


class SendOptions(TypedDict, total=False):
    """How a job may be sent in another way."""

    delay: float | None
    priority: int | None
    idempotency_key: str | None
    expires: float | None


class Task(Generic[P, R]):
    """A function with a queue."""

    def __init__(self, app: App, function: Callable[P, R], name: str, queue: str, options: TaskOptions) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.timeout = options.get("timeout")
        self.format = options.get("payload", "json")
        self.priority = options.get("priority", 0)
        self.no_retry = tuple(options.get("no_retry", ()))
        self.recurrence = recurrence_of(name, options.get("schedule"), options.get("every"), options.get("time_zone"))
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here and now: no broker takes part."""
        return self.function(*args, **kwargs)

    @cached_property
    def arguments(self) -> Arguments:
        # On first use, so that annotations may name what is defined later in the module.
        return Arguments(self.name, self.function, self.format)

    @property
    def _plain(self) -> Call:
        return Call(self, priority=self.priority)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Publish a job, and return when it is on the broker's disk.

        `send_email.send("ann@example.com", subject="Hello")`

        Raises TypeError if the arguments do not fit the function.
        """
        return self._plain.send(*args, **kwargs)

    delay = send

    def send_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle]:
        """Publish many jobs at once, given as tuples of arguments, or as mappings of named ones.

        `send_email.send_many([("ann@example.com", "Hello"), ("bob@example.com", "Hello")])`
        """
        return self._plain.send_many(calls)

    def job(self, id: str) -> Handle:
        """A job that was sent before, also by another process.

        `send_email.job(stored_id).status()`
        """
        return self.app.broker.blocking(self.app.broker.handle(self, id))

    @property
    def a(self) -> AsyncCall:
        """The same for asyncio: `await send_email.a.send(…)`."""
        return self._plain.a

    @takes_old_names(SEND_OPTIONS)
    def with_options(self, **options: Unpack[SendOptions]) -> Call:
        """This task, to be sent in another way.

        `send_email.with_options(delay=3600, idempotency_key="welcome-17").send("ann@example.com", "Hello")`

        `delay`: seconds until it may run; the broker waits, no worker does. `priority`: higher first.
        `idempotency_key`: however often a job is sent with the same one, it is stored once. `expires`: seconds after
        which it is dropped.
        """
        return self._plain.with_options(**options)

    def then(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> Call:
        """A chain: the result of this task is the first argument of the next one, further arguments follow it.

        `fetch.then(resize, 800).then(store).send("http://example.com/a.png")`
        """
        return self._plain.then(task, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.queue}>"


class Call(Struct, frozen=True):
    """How a task is to be sent."""

    task: Task[Any, Any]
    delay: float | None = None
    priority: int = 0
    idempotency_key: str | None = None
    expires: float | None = None
    chain: tuple[Next, ...] = ()

    @takes_old_names(SEND_OPTIONS)
    def with_options(self, **options: Unpack[SendOptions]) -> Call:
        """See `Task.with_options`."""
        if unknown := options.keys() - SendOptions.__annotations__.keys():
            raise TypeError(f"with_options() has no option {min(unknown)}")
        return structs.replace(self, **{name: value for name, value in options.items() if value is not None})

    def then(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> Call:
        """See `Task.then`."""
        arguments = task.arguments
        named = arguments.named_after(*args, **kwargs)
        step = Next(task.name, task.queue, arguments.first, named, task.priority)
        return structs.replace(self, chain=(*self.chain, step))

    def send(self, *args: Any, **kwargs: Any) -> Handle:
        """See `Task.send`."""
        broker = self.task.app.broker
        return broker.blocking(broker.run(broker.publish(self, self.body(*args, **kwargs))))

    def send_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle]:
        """See `Task.send_many`."""
        broker = self.task.app.broker
        return [broker.blocking(handle) for handle in broker.run(broker.publish_many(self, self.bodies(calls)))]

    @property
    def a(self) -> AsyncCall:
        """The same for asyncio."""
        return AsyncCall(self)

    def body(self, *args: Any, **kwargs: Any) -> bytes:
        """The message for these arguments. Raises TypeError if they do not fit."""
        task = self.task
        named = task.arguments.named(*args, **kwargs)
        task.arguments.check(named)
        return payload.encode(task.name, named, self.chain, task.format)

    def bodies(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[bytes]:
        return [self.body(**each) if isinstance(each, Mapping) else self.body(*each) for each in calls]


class AsyncCall:
    """How a task is to be sent, by asyncio."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def send(self, *args: Any, **kwargs: Any) -> AsyncHandle:
        """See `Task.send`."""
        call = self._call
        return await call.task.app.broker.publish(call, call.body(*args, **kwargs))

    delay = send

    async def send_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[AsyncHandle]:
        """See `Task.send_many`."""
        return await self._call.task.app.broker.publish_many(self._call, self._call.bodies(calls))

    def job(self, id: str) -> AsyncHandle:
        """See `Task.job`."""
        return self._call.task.app.broker.handle(self._call.task, id)

    def with_options(self, **options: Any) -> AsyncCall:
        """See `Task.with_options`."""
        return AsyncCall(self._call.with_options(**options))

    def then(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> AsyncCall:
        """See `Task.then`."""
        return AsyncCall(self._call.then(task, *args, **kwargs))
