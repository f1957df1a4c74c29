"""How a job is written in a message: the task, its arguments by name, and what follows it.

JSON or msgpack, never pickle:

{"task": "resize", "args": {"image": "a.png"}, "then": [{"task": "store", "queue": "images", "into": "data"}]}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.decoding import decode_json

Format = Literal["json", "msgpack"]

CONTENT_TYPES: dict[Format, str] = {"json": "application/json", "msgpack": "application/msgpack"}


class Next(Struct, omit_defaults=True):
    """A task of a chain. The result of the task before becomes the argument `into`."""

    task: str
    queue: str
    into: str
    args: dict[str, Any] = {}
    priority: int = 0


class Payload(Struct, omit_defaults=True):
    task: str
    args: Raw = Raw(b"")
    then: list[Next] = []


class _Call(Struct, omit_defaults=True):
    """A payload that is being written."""

    task: str
    args: dict[str, Any] = {}
    then: tuple[Next, ...] = ()


_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_json = msgspec.json.Decoder(Payload).decode
_decode_msgpack = msgspec.msgpack.Decoder(Payload).decode
_NO_ARGUMENTS = {True: Raw(b"{}"), False: Raw(b"\x80")}


def encode(task: str, args: dict[str, Any], then: tuple[Next, ...] = (), form: Format = "json") -> bytes:
    call = _Call(task, args, then)
    return _encode_json(call) if form == "json" else _encode_msgpack(call)


def as_message(body: bytes, form: Format) -> str | bytes:
    """As the client publishes it: text needs no base64."""
    return body.decode() if form == "json" else body


def is_json(content_type: str | None) -> bool:
    return content_type != CONTENT_TYPES["msgpack"]


def decode(body: bytes, *, as_json: bool) -> Payload:
    """Raises `msgspec.DecodeError` if this is no job."""
    with readable():
        payload = _decode_json(body) if as_json else _decode_msgpack(body)
    if not payload.args:
        payload.args = _NO_ARGUMENTS[as_json]
    return payload


@contextmanager
def readable() -> Iterator[None]:
    """Raises `msgspec.DecodeError` for whatever cannot be decoded."""
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def follow_up(then: list[Next], result: str) -> tuple[Next, bytes]:
    """The first task of the rest of a chain, and its payload in JSON, as the result of the task before is."""
    first, *rest = then
    value = Raw(result.encode()) if result else None
    return first, encode(first.task, first.args | {first.into: value}, tuple(rest))


def encode_result(result: Any) -> str:
    """Results are JSON. None is stored as nothing, which the broker does fastest. Raises ValueError for a number that
    JSON does not have."""
    if result is None:
        return ""
    encoded = _encode_json(result)
    refuse_lost_numbers(result, encoded)
    return encoded.decode()


def refuse_lost_numbers(value: Any, encoded: bytes) -> None:
    """Infinity and NaN became null in JSON."""
    if b"null" not in encoded:
        return
    waiting = [msgspec.to_builtins(value)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            raise ValueError(f"JSON has no number {each}")
        if isinstance(each, dict | list | tuple):
            waiting += each.values() if isinstance(each, dict) else each


def decode_result(text: str, kind: Any) -> Any:
    return decode_json(text, kind) if text else None
