"""What can go wrong with a task, what a task raises to say what happens next, and how an error is written."""

from __future__ import annotations

import traceback

from penstock.errors import PenstockError

TEXT_CHARACTERS_MAX = 4096
TRACE_BYTES_MAX = 8 << 10


class TaskError(PenstockError):
    """A task is declared or used in a way that cannot work. The sentence says how to change it."""


class Reject(PenstockError):
    """Raised by a task: the job has failed, and another attempt would not help."""


class Retry(PenstockError):
    """Raised by a task: try again later. Without a delay, the back-off of the queue decides when."""

    def __init__(self, text: str = "the task asked for another attempt", *, delay: float | None = None) -> None:
        if delay is not None and not isinstance(delay, int | float):
            raise TypeError(f"the delay of Retry is a number of seconds, got {type(delay).__name__}")
        super().__init__(text)
        self.delay = delay


class TimeLimit(PenstockError):
    """Raised inside a task that has run for longer than its `timeout`. The job is tried again."""


class LeaseLost(PenstockError):
    """The broker may give the job to another worker: whatever this one still does with it does not count."""


class ChildDied(PenstockError):
    """The process that ran the job has ended. The job is tried again."""


def printable(text: str) -> str:
    """A text that can be stored: not too long, and without the lone surrogates that UTF-8 has no bytes for."""
    return text[:TEXT_CHARACTERS_MAX].encode(errors="backslashreplace").decode()


def described(error: BaseException) -> str:
    """The type and the text of an error, whatever its class makes of them."""
    name = type.__dict__["__name__"].__get__(type(error))  # Its metaclass may have another idea.
    try:
        text = str(error)
    except BaseException as second:
        text = f"(its text cannot be made: {type(second).__name__})"
    return printable(f"{name}: {text}")


def traced(error: BaseException) -> str:
    """The end of its traceback, where the error is."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # The reason is kept all the same.
        return ""
    return text.encode(errors="backslashreplace")[-TRACE_BYTES_MAX:].decode(errors="ignore")
