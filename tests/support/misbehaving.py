"""Functions that misbehave in every way we know: what they raise, return, report, log and leave behind.

`WAYS` are run in threads, in child processes and on the event loop; `LOOP_WAYS` only there, `PROCESS_WAYS` only in
child processes. Each has a text that must be in the reason of its failure, or `SUCCEEDS`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

import penstock
from penstock.worker import LeaseLost, Reject, Retry, TimeLimit

SUCCEEDS = ""


def throws(error: Any) -> Callable[[], NoReturn]:
    def function() -> NoReturn:
        raise error() if callable(error) else error

    return function


def gives(value: Callable[[], Any]) -> Callable[[], Any]:
    return value


def _odd(name: str, **members: Any) -> Callable[[], Exception]:
    """An exception class with members that nobody expects."""
    return lambda: type(name, (Exception,), members)("odd text")


def _refuse(*_args: object, **_more: object) -> NoReturn:
    raise ValueError("refused")


class _NoName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("refused")


class NamelessError(Exception, metaclass=_NoName):
    pass


class DemandingError(Exception):
    def __init__(self, one: int, two: int, three: int) -> None:
        super().__init__(one, two, three)


class RetryWithoutDelay(Retry):
    def __init__(self) -> None:
        pass


class SecretiveError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError("refused")


class OddText(str):
    __slots__ = ()
    encode = _refuse
    __getitem__ = _refuse


@dataclass
class Unready:
    missing: int

    def __init__(self) -> None:
        pass


class Devious(dict[str, int]):
    items = _refuse
    __iter__ = _refuse


def _recursion() -> int:
    return 1 + _recursion()


def _cause_cycle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _long_chain() -> Exception:
    error = ValueError("link 0")
    for number in range(1, 2000):
        following = ValueError(f"link {number}")
        following.__context__ = error
        error = following
    return error


def _with_notes() -> Exception:
    error = ValueError("noted")
    error.__notes__ = 17  # type: ignore[assignment]
    return error


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def _reports(*given: Any) -> Callable[[], str]:
    def function() -> str:
        penstock.current_job().progress(*given)
        return "reported"

    return function


def _many_reports() -> None:
    for number in range(5_000):
        penstock.current_job().progress(number / 5_000)


def _report_from_a_thread_that_stays() -> None:
    job = penstock.current_job()

    def report() -> None:
        while True:
            time.sleep(0.2)
            job.progress(0.5, "still here")

    threading.Thread(target=report, daemon=True).start()


def _fork() -> None:
    os.fork()


def _leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


def _thread_that_raises() -> None:
    thread = threading.Thread(target=_refuse)
    thread.start()
    thread.join()


def _log(*words: object) -> Callable[[], None]:
    return lambda: logging.getLogger("shop").warning(*words)


def _raise_when_collected() -> None:
    type("Dying", (), {"__del__": _refuse})()


def _swallow() -> NoReturn:
    try:
        raise SystemExit(1)
    finally:
        raise ValueError("in finally")


def _change_directory() -> None:
    os.chdir("/")


def _no_output() -> None:
    before, sys.stdout = sys.stdout, None
    try:
        print("unheard")
    finally:
        sys.stdout = before


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    # What it raises.
    "next() of nothing": (lambda: next(iter(())), "StopIteration"),
    "stop iteration": (throws(StopIteration("a value")), "StopIteration"),
    "stop async iteration": (throws(StopAsyncIteration), "StopAsyncIteration"),
    "generator exit": (throws(GeneratorExit), "GeneratorExit"),
    "exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "exit with an object": (throws(SystemExit([object])), "SystemExit"),
    "keyboard interrupt": (throws(KeyboardInterrupt), "KeyboardInterrupt"),
    "recursion": (_recursion, "RecursionError"),
    "memory error": (throws(MemoryError), "MemoryError"),
    "no memory": (lambda: bytearray(1 << 62), "MemoryError"),
    "cancelled": (throws(asyncio.CancelledError), "CancelledError"),
    "timeout": (throws(TimeoutError("slow")), "TimeoutError: slow"),
    "a lease that is not lost": (throws(LeaseLost("says who")), "LeaseLost: says who"),
    "a time limit that is none": (throws(TimeLimit("says who")), "TimeLimit: says who"),
    "retry": (throws(Retry("again")), "Retry: again"),
    "retry after nan": (throws(Retry(delay=math.nan)), "Retry"),
    "retry after inf": (throws(Retry(delay=math.inf)), "Retry"),
    "retry after less than nothing": (throws(Retry(delay=-5)), "Retry"),
    "retry after a text": (lambda: _refuse(Retry(delay="soon")), "TypeError: the delay of Retry is a number"),  # type: ignore[arg-type]
    "retry without a delay": (throws(RetryWithoutDelay), "RetryWithoutDelay"),
    "reject": (throws(Reject("never")), "Reject: never"),
    "reject without a text": (throws(Reject), "Reject"),
    "a client error": (throws(penstock.MessageFailed("of another job")), "MessageFailed: of another job"),
    "an error of decoding": (throws(msgspec.DecodeError("of mine")), "DecodeError: of mine"),
    "an error of unicode": (lambda: b"\xff".decode(), "UnicodeDecodeError"),
    "not an exception": (throws(17), "exceptions must derive from BaseException"),
    "a class that needs arguments": (throws(DemandingError), "missing 3 required positional arguments"),
    "no text": (throws(AssertionError), "AssertionError"),
    "cannot be pickled": (throws(lambda: ValueError(threading.Lock())), "ValueError: <unlocked"),
    "cannot be printed": (throws(_odd("Mute", __str__=_refuse)), "Mute: (its text cannot be made: ValueError)"),
    "prints a number": (throws(_odd("Number", __str__=lambda _: 17)), "its text cannot be made: TypeError"),
    "exits when printed": (
        throws(_odd("Exits", __str__=lambda _: sys.exit(1))),
        "its text cannot be made: SystemExit",
    ),
    "cannot be shown": (throws(_odd("Shy", __repr__=_refuse)), "Shy: odd text"),
    "arguments that cannot be shown": (throws(lambda: KeyError(SecretiveError("x"))), "KeyError: "),
    "cannot be compared": (throws(_odd("Unequal", __eq__=_refuse, __hash__=_refuse)), "Unequal: odd text"),
    "is false": (throws(_odd("Falsy", __bool__=lambda _: False)), "Falsy: odd text"),
    "is neither true nor false": (throws(_odd("Undecided", __bool__=_refuse)), "Undecided: odd text"),
    "has no length": (throws(_odd("Empty", __len__=lambda _: 0)), "Empty: odd text"),
    "lies about its class": (throws(_odd("Liar", __class__=property(_refuse))), "Liar: odd text"),
    "has no name": (throws(lambda: NamelessError("text")), "NamelessError: text"),
    "has no attributes": (throws(lambda: SecretiveError("text")), "SecretiveError: text"),
    "a name with surrogates": (throws(_odd("Odd\udcff")), "UnicodeEncodeError"),
    "a text with surrogates": (throws(ValueError("lone \ud800")), "ValueError: lone \\ud800"),
    "a text with control characters": (throws(ValueError("a\0b\n\x1b[31m")), "ValueError: a\0b\n"),
    "a long text": (throws(lambda: ValueError("x" * 10_000_000)), "ValueError: xxx"),
    "bytes": (throws(ValueError(b"\xff")), "ValueError: b'\\xff'"),
    "a group": (throws(ExceptionGroup("several", [ValueError("one")])), "ExceptionGroup: several"),
    "a group that exits": (throws(BaseExceptionGroup("several", [SystemExit(1)])), "BaseExceptionGroup: several"),
    "its own cause": (throws(_cause_cycle), "ValueError: first"),
    "a long chain": (throws(_long_chain), "ValueError: link 1999"),
    "notes that are none": (throws(_with_notes), "ValueError: noted"),
    "another error in finally": (_swallow, "ValueError: in finally"),
    # What it returns.
    "an object": (gives(object), "cannot be stored as JSON"),
    "a function": (gives(lambda: len), "cannot be stored as JSON"),
    "a generator": (gives(lambda: iter(range(3))), "cannot be stored as JSON"),
    "an exception": (gives(lambda: ValueError("returned")), "cannot be stored as JSON"),
    "a cycle": (gives(_cycle), "cannot be stored as JSON"),
    "a deep list": (gives(_deep), "cannot be stored as JSON"),
    "a result with surrogates": (gives(lambda: "lone \ud800"), "cannot be stored as JSON"),
    "a large result": (gives(lambda: "x" * (1 << 20)), "has 1048578 bytes"),
    "keys that are no text": (gives(lambda: {(1, 2): 3}), "cannot be stored as JSON"),
    "a dataclass without its fields": (gives(Unready), SUCCEEDS),
    "a long number": (gives(lambda: 10**5000), "cannot be stored as JSON"),
    "a lock": (gives(threading.Lock), "cannot be stored as JSON"),
    "a devious mapping": (gives(lambda: Devious(a=1)), SUCCEEDS),
    "an ellipsis": (gives(lambda: ...), "cannot be stored as JSON"),
    # What it reports.
    "progress with surrogates": (_reports(0.5, "lone \ud800"), SUCCEEDS),
    "progress of ten megabytes": (_reports(0.5, "x" * 10_000_000), SUCCEEDS),
    "progress that is nan": (_reports(math.nan), SUCCEEDS),
    "progress that is inf": (_reports(math.inf, "beyond"), SUCCEEDS),
    "progress with an odd text": (_reports(None, OddText("odd")), SUCCEEDS),
    "progress that is a text": (_reports("half"), "TypeError: progress takes a number"),
    "progress with an object": (_reports(None, object()), "TypeError: progress takes a number"),
    "many reports": (_many_reports, SUCCEEDS),
    "reports that do not end": (_report_from_a_thread_that_stays, SUCCEEDS),
    # What else it does.
    "fork": (_fork, SUCCEEDS),
    "a thread that stays": (_leave_a_thread, SUCCEEDS),
    "a thread that raises": (_thread_that_raises, SUCCEEDS),
    "a line that does not fit": (_log("%d", "x"), SUCCEEDS),
    "a line with surrogates": (_log("lone \ud800"), SUCCEEDS),
    "a line of an object": (_log(SecretiveError("x")), SUCCEEDS),
    "raises when it is collected": (_raise_when_collected, SUCCEEDS),
    "goes elsewhere": (_change_directory, SUCCEEDS),
    "has no output": (_no_output, SUCCEEDS),
}


async def _exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 1)
    await asyncio.sleep(0.01)


async def _exits() -> NoReturn:
    sys.exit(3)


async def _exit_in_a_task() -> None:
    await asyncio.create_task(_exits())


async def _exit_in_a_task_alone() -> None:
    asyncio.get_running_loop().create_task(_exits()).add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0.01)


async def _stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def _close_the_loop() -> None:
    asyncio.get_running_loop().close()


async def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0.01)


async def _never_end() -> NoReturn:
    while True:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass


_kept: set[asyncio.Task[Any]] = set()


async def _leave_a_task() -> None:
    _kept.add(asyncio.get_running_loop().create_task(_never_end()))


async def _leave_an_executor() -> None:
    _kept.add(asyncio.get_running_loop().create_task(asyncio.to_thread(time.sleep, 3600)))


async def _coroutine() -> Coroutine[Any, Any, None]:
    never = asyncio.sleep(0)
    never.close()
    return never


LOOP_WAYS: dict[str, tuple[Callable[[], Coroutine[Any, Any, Any]], str]] = {
    "exits in a callback": (_exit_in_a_callback, SUCCEEDS),
    "exits in a task": (_exit_in_a_task, "SystemExit: 3"),
    "exits in a task that nobody awaits": (_exit_in_a_task_alone, SUCCEEDS),
    "stops the loop": (_stop_the_loop, SUCCEEDS),
    "closes the loop": (_close_the_loop, "RuntimeError"),
    "cancels itself": (_cancel_itself, "CancelledError"),
    "leaves a task that does not end": (_leave_a_task, SUCCEEDS),
    "leaves a thread of the executor": (_leave_an_executor, SUCCEEDS),
    "returns a coroutine": (_coroutine, "cannot be stored as JSON"),
}

PROCESS_WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "ends its process": (lambda: os._exit(3), "with code 3"),
    "kills its process": (lambda: os.kill(os.getpid(), signal.SIGKILL), "by signal SIGKILL"),
    "closes all files": (lambda: os.closerange(3, 1000), "ChildDied"),
}


def make(name: str) -> penstock.App:
    """An app whose tasks do all this."""
    app = penstock.App(name=name)

    @app.task(max_attempts=1)
    def plain(way: str) -> Any:
        return (WAYS | PROCESS_WAYS)[way][0]()

    @app.task
    async def asynchronous(way: str) -> Any:
        await asyncio.sleep(0)
        return await LOOP_WAYS[way][0]() if way in LOOP_WAYS else WAYS[way][0]()

    @app.task
    def well(number: int) -> int:
        return number + 1

    @app.task(queue=f"{name}-deaf")
    def sleeps() -> None:
        time.sleep(3600)

    @app.task(queue=f"{name}-deaf")
    async def insists() -> None:
        await _never_end()

    @app.task(queue=f"{name}-deaf")
    def swallows() -> None:
        while True:
            try:
                time.sleep(0.05)
            except BaseException:
                pass

    @app.task(queue=f"{name}-blocks", lease=1)
    async def blocks(seconds: float) -> int:
        time.sleep(seconds)  # noqa: ASYNC251 - This is what it is for.
        return penstock.current_job().attempt

    return app
