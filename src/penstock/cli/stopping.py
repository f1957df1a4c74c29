"""Counts SIGTERM and Ctrl-C for a loop to check, so that no exception is raised at an arbitrary line."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context in which signals are counted: the first asks to stop, the second to stop at once."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.take_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_back(self) -> None:
        """Install the handlers again, after a library may have replaced them, as Spark does for Ctrl-C."""
        for number in _SIGNALS:
            signal.signal(number, self._count_one)

    def _count_one(self, *_: object) -> None:
        self._count += 1

    @property
    def asked(self) -> bool:
        return self._count > 0

    @property
    def asked_again(self) -> bool:
        return self._count > 1
