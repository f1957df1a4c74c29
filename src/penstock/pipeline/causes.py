"""Errors of ours on the driver, as Spark shows them: the line that names the cause comes last."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.errors import PenstockError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def plainly(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Spark prints the traceback of what Python raises: without the frames of our code it is a few lines."""

    @wraps(method)
    def call(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return method(*given, **named)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return call
