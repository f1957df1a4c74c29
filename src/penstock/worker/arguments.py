"""The arguments of a task: checked when it is called, decoded with their types when it runs.

The parameters of the function are the fields of a struct, so both sides use the same rule: what can be encoded and
decoded with these types is accepted. An argument that arrives has the type that the function declares.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.worker.errors import TaskError
from penstock.worker.payload import Format, readable, refuse_lost_numbers

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_REASON = re.compile(r"(?P<reason>.+?) - at `\$\.(?P<argument>[^.\[`]+)(?P<inside>[^`]*)`")


class Arguments:
    """The parameters of one function."""

    def __init__(self, task: str, function: Callable[..., Any], form: Format = "json") -> None:
        self._task = task
        self.form = form
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise TaskError(
                f"task {task}: {error.name} is unknown; define the types of arguments at module level"
            ) from None
        self.result: Any = hints.get("return", Any)
        fields = [(each.name, *_field(each, hints.get(each.name, Any))) for each in self._parameters]
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._decode_json = self._decoder(msgspec.json.Decoder)
        self._decode_msgpack = self._decoder(msgspec.msgpack.Decoder)

    @property
    def first(self) -> str:
        """The parameter that gets the result of the task before, in a chain."""
        for parameter in self._parameters:
            if parameter.kind not in _SEVERAL:
                return parameter.name
        raise TaskError(f"task {self._task} has no argument for the result of the task before it")

    def named(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call by their names. Raises TypeError if they do not fit."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"task {self._task}: {error}") from None

    def named_after(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As `named`, where the first argument is not there yet."""
        named = self.named(None, *args, **kwargs)
        del named[self.first]
        return named

    def check(self, named: Mapping[str, Any]) -> None:
        """Raises TypeError, with the task, the argument and the type that is expected."""
        try:
            encoded = msgspec.json.encode(named)
            self._decode_json(encoded)
            if self.form == "json":
                refuse_lost_numbers(named, encoded)
        except msgspec.ValidationError as error:
            raise TypeError(f"task {self._task}: {explained(str(error))}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"task {self._task}: {error}; arguments are sent as JSON or msgpack") from None

    def decode(self, encoded: msgspec.Raw | bytes, *, as_json: bool) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments for the function. Raises `msgspec.DecodeError`."""
        with readable():
            values = (self._decode_json if as_json else self._decode_msgpack)(encoded)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(values, parameter.name)
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    positional += value
                case inspect.Parameter.VAR_KEYWORD:
                    named |= value
                case inspect.Parameter.KEYWORD_ONLY:
                    named[parameter.name] = value
                case _:
                    positional.append(value)
        return positional, named

    def _decoder(self, kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
        try:
            decode: Callable[[Any], Any] = kind(self._struct).decode
        except TypeError as error:
            raise TaskError(f"task {self._task}: its arguments cannot be sent: {error}") from None
        return decode


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    """The type and, if there is one, the default of a field."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return list[hint], msgspec.field(default_factory=list)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return dict[str, hint], msgspec.field(default_factory=dict)
    if parameter.default is inspect.Parameter.empty:
        return (hint,)
    default = parameter.default
    return hint, msgspec.field(default_factory=lambda: default)


def explained(reason: str) -> str:
    """`Expected int, got str - at $.amount` with the argument first."""
    found = _REASON.fullmatch(reason)
    if found is None:
        return reason[:1].lower() + reason[1:]
    inside = f" (at {found['inside'].lstrip('.')})" if found["inside"] else ""
    what = found["reason"]
    return f"argument {found['argument']}{inside}: {what[:1].lower()}{what[1:]}"
