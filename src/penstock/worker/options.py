"""The options of `@app.task`, checked where they are given: a wrong one would otherwise be found by the first job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from penstock.decoding import convert
from penstock.limits import INT32_MAX
from penstock.worker.arguments import explained
from penstock.worker.errors import TaskError
from penstock.worker.payload import Format
from penstock.worker.policy import Backoff

_Seconds = Annotated[float, Meta(ge=0, le=INT32_MAX)]
_Some = Annotated[float, Meta(gt=0, le=INT32_MAX)]
_Name = Annotated[str, Meta(min_length=1)]


class _Options(Struct, forbid_unknown_fields=True):
    """Each with its type and its bounds; the broker checks names and expressions."""

    queue: _Name | None = None
    name: _Name | None = None
    timeout: _Some | None = None
    payload: Format = "json"
    priority: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    schedule: _Name | None = None
    every: _Some | None = None
    time_zone: str | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    retry_backoff: Backoff = "exponential"
    retry_delay: _Seconds = 0
    retry_delay_max: _Seconds | None = None
    retry_jitter: Annotated[float, Meta(ge=0, le=1)] = 0
    lease: _Some = 1
    dead_letter_queue: str | None = None


def check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raises TaskError, with the task, the option and what is expected."""
    given = dict(options)
    no_retry = given.pop("no_retry", ())
    if not isinstance(no_retry, list | tuple | set | frozenset) or not all(map(_is_exception, no_retry)):
        raise TaskError(
            f"task {task}: no_retry is a list of exception classes, such as [ValueError], got {no_retry!r:.100}"
        )
    try:
        convert(given, _Options)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task}: {explained(str(error)).replace('argument ', 'option ', 1)}") from None


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
