"""What becomes of a job after its function has returned or raised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.limits import DELAY_SECONDS_MAX, RESULT_BYTES_MAX
from penstock.worker import payload
from penstock.worker.errors import LeaseLost, Reject, Retry, described, printable, traced

Kind = Literal["raised", "rejected", "no retry", "no job", "arguments", "result"]

_ERROR_CHARACTERS_KEPT = 256
AT_ONCE_SECONDS = 0.001  # A delay of 0 would ask for the back-off of the queue.


class Stopping(Exception):
    """The worker stops, and the grace time is over."""


class Outcome(Struct, omit_defaults=True):
    """It is sent between processes as it is."""

    what: Literal["success", "retry", "invalid", "lost"]
    result: str = ""  # JSON.
    delay: float | None = None  # Of a retry; None: the back-off of the queue.
    error: str = ""
    trace: str = ""
    kind: Kind = "raised"  # Of a failure.

    @property
    def reason(self) -> str:
        """What is kept with a job that has failed for good."""
        return "\n\n".join(filter(None, [self.error[:_ERROR_CHARACTERS_KEPT], f"kind: {self.kind}", self.trace]))


def performed(task: str, no_retry: tuple[type[BaseException], ...], function: Callable[[], Any]) -> Outcome:
    """Call a function, and make a value of whatever comes of it. Nothing that it raises gets any further."""
    try:
        return returned(task, function())
    except BaseException as error:
        return raised(error, no_retry)


def misfit(task: str, error: Exception) -> Outcome:
    """The arguments of a job are not those of its task. Another attempt would change nothing."""
    return Outcome("invalid", error=printable(f"the arguments of {task} do not fit: {error}"), kind="arguments")


def returned(task: str, result: Any) -> Outcome:
    # If it cannot be stored, another attempt would do the work again, and fail again.
    try:
        encoded = payload.encode_result(result)
    except Exception as error:  # Objects may run code of their own when they are encoded.
        text = printable(described(error).partition(": ")[2])
        return Outcome("invalid", error=f"the result of {task} cannot be stored as JSON: {text}", kind="result")
    if (size := len(encoded.encode())) > RESULT_BYTES_MAX:
        text = f"the result of {task} has {size} bytes; at most {RESULT_BYTES_MAX} are stored"
        return Outcome("invalid", error=text, kind="result")
    return Outcome("success", encoded)


def raised(error: BaseException, no_retry: tuple[type[BaseException], ...] = ()) -> Outcome:
    text, kind = described(error), type(error)  # `isinstance` would also ask the error what it is.
    if issubclass(kind, LeaseLost):
        return Outcome("lost", error=text)
    if issubclass(kind, Stopping):
        return Outcome("retry", delay=AT_ONCE_SECONDS, error=text)
    if issubclass(kind, Retry):
        return Outcome("retry", delay=_delay_of(error), error=text)
    if issubclass(kind, Reject):
        return Outcome("invalid", error=text, kind="rejected")
    # Where an error of ours was raised says nothing about the task.
    trace = "" if issubclass(kind, PenstockError) else traced(error)
    if issubclass(kind, no_retry):
        return Outcome("invalid", error=text, trace=trace, kind="no retry")
    return Outcome("retry", error=text, trace=trace)


def _delay_of(error: BaseException) -> float | None:
    """The delay that a `Retry` asks for, as far as the broker can wait. None, or no number: its queue decides."""
    delay = getattr(error, "delay", None)
    if not isinstance(delay, int | float) or math.isnan(delay):
        return None
    return min(max(delay, AT_ONCE_SECONDS), DELAY_SECONDS_MAX)
