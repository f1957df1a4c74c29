"""What becomes of a job after its function has returned or raised."""

from __future__ import annotations

import traceback
from typing import Any, Literal

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.limits import RESULT_BYTES_MAX
from penstock.worker import payload
from penstock.worker.errors import LeaseLost, Reject, Retry

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


def returned(task: str, result: Any) -> Outcome:
    # If it cannot be stored, another attempt would do the work again, and fail again.
    try:
        encoded = payload.encode_result(result)
    except (TypeError, ValueError, OverflowError) as error:
        return Outcome("invalid", error=f"the result of {task} cannot be stored as JSON: {error}")
    if (size := len(encoded.encode())) > RESULT_BYTES_MAX:
        return Outcome(
            "invalid", error=f"the result of {task} has {size} bytes; at most {RESULT_BYTES_MAX} are stored"
        )
    return Outcome("success", encoded)


def raised(error: BaseException, no_retry: tuple[type[BaseException], ...] = ()) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, LeaseLost):
        return Outcome("lost", error=text)
    if isinstance(error, Stopping):
        return Outcome("retry", delay=AT_ONCE_SECONDS, error=text)
    if isinstance(error, Retry):
        delay = None if error.delay is None else max(error.delay, AT_ONCE_SECONDS)
        return Outcome("retry", delay=delay, error=text)
    if isinstance(error, Reject):
        return Outcome("invalid", error=text)
    # Where an error of ours was raised says nothing about the task.
    trace = "" if isinstance(error, PenstockError) else "".join(traceback.format_exception(error))
    return Outcome("invalid" if isinstance(error, no_retry) else "retry", error=text, trace=trace)
