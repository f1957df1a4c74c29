"""What a fuzz target is: a name, a function that takes any bytes, and bytes to begin with."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

SECONDS_MAX = 5.0  # Of the processor, for one input. A real one takes microseconds.


class Target(NamedTuple):
    """`run` returns for all bytes: it catches the errors that its decoder promises, and nothing else. It asserts what
    else has to be true."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


class TooSlowError(Exception):
    """One input took longer than any may."""


def run_bounded(target: Target, data: bytes) -> None:
    """Raises what the target raises, and `TooSlowError`, also if it would never return."""
    began = time.process_time()
    with _alarm():
        target.run(data)
    if time.process_time() - began > SECONDS_MAX:
        raise TooSlowError(f"{target.name} took more than {SECONDS_MAX:g} s for {len(data)} bytes")


@contextmanager
def _alarm() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TooSlowError(f"it used the processor for more than {SECONDS_MAX:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
