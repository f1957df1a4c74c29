"""Bodies in JSON answers: JSON as JSON where nothing is lost by it, else text exactly as it was stored.

A client parses the whole answer, body and all. So a body is given as JSON only if every parser makes the same of it:
valid, no key twice in an object, and no number that a double cannot hold. A body that is a JSON string stays text:
then a `message` that is a string is always the text that was stored, as it is in a publish.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.errors import ProtocolError
from penstock.remembering import remembered

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_text = msgspec.json.Decoder(str).decode
_escape = re.compile(rb"\\.")
_string = re.compile(rb'"[^"]*"')
# Up to 15 digits, and 99 as an exponent, are safe in a double.
_long_number = re.compile(rb"[0-9][0-9.eE+-]{15,}|[0-9.]+[eE][+-]?[0-9]{3,}")
_number = re.compile(rb"[0-9][0-9.eE+-]*")
_long_integer = re.compile(rb"(?<![0-9.eE+])[0-9]{16,}(?![0-9.eE])")
_EXACT_INTEGER_MAX = 1 << 53


def given_bytes(
    raw: Raw, encoded: str | UnsetType, field: str
) -> tuple[bytes, Literal["text", "json", "bytes"]] | None:
    """What a request gives as JSON in a field, or in base64 in another: text is text, any other JSON is kept as it
    was written. None if it gives neither. Raises `ProtocolError`."""
    data = bytes(raw)
    if encoded is not UNSET:
        if data:
            raise ProtocolError(f"{field} and {field}_base64 are both given; give one")
        try:
            return b64decode(encoded, validate=True), "bytes"
        except ValueError:
            raise ProtocolError(f"{field}_base64 is not base64") from None
    if not data:
        return None
    if not data.startswith(b'"'):
        return data, "json"
    try:
        return _decode_text(data).encode(), "text"
    except (ValueError, msgspec.DecodeError):  # Whoever decoded the request has not looked into this field.
        raise ProtocolError(f"{field} is not valid text") from None


def text_or_base64(field: str, data: bytes) -> dict[str, Any]:
    """Bytes as text if they are text, else in base64 under a name that says so."""
    try:
        return {field: data.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": b64encode(data).decode()}


def message_field(body: bytes, content_type: str, *, raw: bool) -> dict[str, Any]:
    """A body as the field of a document. `raw`: as text, whatever its type."""
    found = None if raw else json_of(body, content_type)
    return text_or_base64("message", body) if found is None else {"message": Raw(found)}


def json_of(body: bytes, content_type: str) -> bytes | None:
    """The body without blanks between its tokens, if its type says JSON and it can be given as such."""
    if not says_json(content_type):
        return None
    try:
        compact = msgspec.json.format(body, indent=-1)
        if compact.startswith(b'"'):
            return None
        again = _encode(_decode(compact))
        is_kept = compact == again or _keeps_all(compact, again)
    except (*NOT_JSON, InvalidOperation):  # The last one is for an exponent such as that of 0e9999999999999999999.
        return None
    return compact if is_kept and _are_exact(compact) else None


@remembered(4096)
def says_json(content_type: str) -> bool:
    media_type, *parameters = [part.strip().lower() for part in content_type.split(";")]
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")]
    is_json = media_type in ("application/json", "text/json") or media_type.endswith("+json")
    return is_json and all(charset in ("utf-8", "utf8", "us-ascii") for charset in charsets)


def _keeps_all(compact: bytes, again: bytes) -> bool:
    """Whether nothing was lost when it was parsed and written again."""
    before, after = _without_escapes(compact), _without_escapes(again)
    if before.count(b'":') != after.count(b'":'):
        return False
    # The same number may be short in one way of writing it and long in another.
    return _numbers(before, _long_number) == _numbers(after, _long_number) or (
        _numbers(before, _number) == _numbers(after, _number)
    )


def _are_exact(compact: bytes) -> bool:
    """Whether a double can hold all whole numbers."""
    found = _long_number.search(compact) and _long_integer.findall(_string.sub(b"", _without_escapes(compact)))
    return all(len(number) == 16 and int(number) <= _EXACT_INTEGER_MAX for number in found or ())


def _without_escapes(text: bytes) -> bytes:
    return _escape.sub(b"", text) if b"\\" in text else text


def _numbers(text: bytes, which: re.Pattern[bytes]) -> list[Decimal]:
    """By value: 1.5e+20 and 1.5e20 are the same."""
    found = which.findall(_string.sub(b"", text)) if which.search(text) else ()
    return [Decimal(number.decode()) for number in found]
