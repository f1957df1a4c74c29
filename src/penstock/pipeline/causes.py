"""Keeps our errors short where Spark prints them, so that the line with the cause is easy to find."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.errors import PenstockError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def plainly(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Raise our own errors without the frames of our code: Spark prints the whole traceback."""

    @wraps(method)
    def call(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return method(*given, **named)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return call
