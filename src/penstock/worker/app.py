"""The tasks of a program, and its connection to the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from penstock.renamed import TASK_OPTIONS, has_old_names, takes_old_names
from penstock.worker.broker import AppBroker
from penstock.worker.errors import TaskError
from penstock.worker.hooks import Event, Hooks
from penstock.worker.options import check_options
from penstock.worker.task import Task, TaskOptions

if TYPE_CHECKING:
    from penstock.worker.runtime.worker import Worker, WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@has_old_names("app.")
class App:
    """Tasks that share a broker.

    ```python
    app = penstock.App()

    @app.task(queue="emails", max_attempts=5)
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
        self.hooks = Hooks()
        self.broker = AppBroker(self, url, token)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    @takes_old_names(TASK_OPTIONS)
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task.

        `queue`: where its jobs wait; tasks may share one. `name`: what it is called in messages; the name of the
        function. `timeout`: seconds after which it is stopped and tried again. `payload`: json or msgpack.
        `priority`: higher first. `no_retry`: exceptions after which it is not tried again. `schedule`, a cron
        expression in `time_zone`, or `every`, seconds: it runs by itself.

        Settings of its queue: `max_attempts` (6; None: without end), `retry_delay` before the second one (1 s),
        `retry_backoff` (fixed, linear, exponential), `retry_delay_max` (3600 s), `retry_jitter` (0.1), `lease`
        (30 s), `dead_letter_queue`.
        """
        if function is not None:
            return self._add(function, {})
        return lambda function: self._add(function, options)

    def _add(self, function: Callable[P, R], options: TaskOptions) -> Task[P, R]:
        name = options.get("name") or function.__name__
        if unknown := options.keys() - TaskOptions.__annotations__.keys():
            raise TaskError(f"task {name}: unknown options: {', '.join(sorted(unknown))}")
        check_options(name, options)
        if name in self.tasks:
            raise TaskError(f"two tasks are called {name}; give one of them another name with name=…")
        task = self.tasks[name] = Task(self, function, name, options.get("queue") or self.name, options)
        self.broker.policies.add(task.queue, name, options)
        return task

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""
        return list(dict.fromkeys(task.queue for task in self.tasks.values()))

    def on(self, event: Event) -> Callable[[F], F]:
        """Call a function, `async` or not, when something happens in a worker.

        `@app.on("failure")`

        `start`: a worker starts; an error ends it. `stop`: it has stopped running jobs. `before`: a job is about to
        run; an error fails this attempt. `after`: its function has returned. `failure`: an attempt has failed. The
        last three get the `Job`, and `failure` also the text of the error.
        """
        return self.hooks.of(event).add

    def connect_to(self, url: str | None, token: str | None = None) -> None:
        """Use another broker from now on. None: leave it as it is."""
        self.broker.connect_to(url, token)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Something that runs the jobs of this app: `app.worker(concurrency=10).run()`."""
        from penstock.worker.runtime.worker import Worker  # Programs that only send need none of it.

        return Worker(self, **options)

    def close(self) -> None:
        """Close the connections that `send` uses. An app may be used again after that."""
        self.broker.close()

    async def aclose(self) -> None:
        """Close the connections of the event loop that runs now."""
        await self.broker.aclose()
