"""Puts the server on one core and the load on another, so that neither takes the other's time."""

import contextlib
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ALLOWED = sorted(os.sched_getaffinity(0))
SERVER_CORE = ALLOWED[0]
LOAD_MEMORY_BYTES_MAX = 4 << 30
LOAD_CORE = ALLOWED[1 % len(ALLOWED)]


@contextlib.contextmanager
def on_server_core() -> Iterator[None]:
    """Processes started inside inherit the server's core, from their first instruction on."""
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ALLOWED)


def on_load_core(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Call the function in a separate process that is pinned to the load's core."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_confine) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _confine() -> None:
    """Limit the memory of the load, so that a bug in it does not exhaust the machine."""
    os.sched_setaffinity(0, {LOAD_CORE})
    resource.setrlimit(resource.RLIMIT_AS, (LOAD_MEMORY_BYTES_MAX, LOAD_MEMORY_BYTES_MAX))
