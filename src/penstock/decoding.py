"""Decodes bytes into types, from any thread.

msgspec learns a type when it first decodes one, and that is not safe: a second thread that decodes the same type at
that moment crashes the process (msgspec 0.22). So types are learned here, by one thread at a time.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

_EXPECTED = re.compile(
    r"Expected `(?P<kind>[^`]+)`(?P<bound>.*?)(?:, got `(?P<got>[^`]+)`)?(?: - at `(?P<place>\$[^`]*)`)?"
)
_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_KINDS_MAX = 1024  # Callers have types too, and may make some while they run.
_learning = threading.Lock()


def decode_json(data: bytes | str | memoryview, kind: type[T]) -> T:
    """Raises `ValueError`: as a rule `msgspec.DecodeError`, and `msgspec.ValidationError` if the data is of another
    type."""
    found: T = _decoded(_json_decoder(cast("Hashable", kind)).decode, data)
    return found


def decode_msgpack(data: bytes | memoryview, kind: type[T]) -> T:
    """The same for MessagePack."""
    found: T = _decoded(_msgpack_decoder(cast("Hashable", kind)).decode, data)
    return found


def _decoded(decode: Callable[[Any], Any], data: bytes | str | memoryview) -> Any:
    try:
        return decode(data)
    except RecursionError:  # No caller thinks of it: to all of them this is data that cannot be decoded.
        raise msgspec.DecodeError("the data is nested too deeply") from None


def convert(data: Any, kind: type[T]) -> T:
    """The same for what is decoded already."""
    _json_decoder(cast("Hashable", kind))
    return msgspec.convert(data, kind)


def in_words(sentence: str) -> str:
    """What msgspec says of a wrong value, in words for somebody who does not know its types."""
    found = _EXPECTED.fullmatch(sentence)
    if found is None:
        return sentence
    place = (found["place"] or "").removeprefix("$").removeprefix(".") or "the document"
    got = f", not {_words(found['got'])}" if found["got"] else ""
    return f"{place} must be {_words(found['kind'])}{found['bound']}{got}"


def _words(kinds: str) -> str:
    return " or ".join([_WORDS.get(kind, kind) for kind in kinds.split(" | ")])


@lru_cache(_KINDS_MAX)
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _learning:
        return msgspec.json.Decoder(kind)


@lru_cache(_KINDS_MAX)
def _msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _learning:
        return msgspec.msgpack.Decoder(kind)
