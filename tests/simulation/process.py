"""A simulated process with an event loop of asyncio in virtual time: what runs in it is the code of the broker."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.limits import SECOND_NS
from tests.simulation.scheduler import Planned, ProcessScheduler, VirtualTime

if TYPE_CHECKING:
    from tests.simulation.network import Network

CALL_NS_MAX = SECOND_NS // 500  # Of a call in a thread.


class Process(ProcessScheduler):
    """Everything that it plans happens within its event loop."""

    def __init__(self, number: int, time: VirtualTime, random: Random, network: Network) -> None:
        super().__init__(time, random)
        self.number = number
        self.loop = ProcessLoop(self, time, random, network)  # type: ignore[abstract]

    def end(self) -> None:
        self.run(self.loop.end)
        self.alive = False

    def run(self, callback: Callable[[], None]) -> None:
        """Call now, within the event loop."""
        before = events._get_running_loop()
        events._set_running_loop(self.loop)
        try:
            super().run(callback)
        finally:
            events._set_running_loop(before)


class _Task(asyncio.Task[Any]):
    """Its hash is a number, so that sets of tasks have the same order in each life of a seed."""

    _number: int

    def __new__(cls, *_: Any, loop: ProcessLoop, **__: Any) -> _Task:
        task = super().__new__(cls)
        task._number = next(loop.task_numbers)
        return task

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the broker uses between its processes."""

    def __init__(self, process: Process, time: VirtualTime, random: Random, network: Network) -> None:
        self._process = process
        self._time = time
        self._random = random
        self._network = network
        self.task_numbers = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready: deque[Planned] = deque()  # What is called soon.

    def end(self) -> None:
        """End all tasks now."""
        for task in list(self._tasks):
            task.cancel()
        while self._ready:
            self._step()

    def time(self) -> float:
        return self._time.now / SECOND_NS

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        planned = Planned(lambda: callback(*args), lambda: 0)
        self._ready.append(planned)
        self._process.soon(self._step)
        return planned

    def _step(self) -> None:
        if self._ready and (callback := self._ready.popleft().callback):
            callback()

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self._process.after(max(0, int(delay * SECOND_NS)), lambda: callback(*args))

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """The call takes place at one moment, and its result comes some time later."""
        return self.create_task(self._called(func, *args))

    async def _called(self, func: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self._random.randint(0, CALL_NS_MAX) / SECOND_NS)
        result = func(*args)
        await asyncio.sleep(self._random.randint(0, CALL_NS_MAX) / SECOND_NS)
        return result

    async def create_unix_server(self, factory: Any, path: Any) -> Any:  # type: ignore[override]
        return self._network.listen(self._process, str(path), factory)

    async def create_unix_connection(self, factory: Any, path: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(self._network.delay() / SECOND_NS)
        return self._network.connect(self._process, str(path), factory)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of a process that is dead are destroyed while they wait."""
