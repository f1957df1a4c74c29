"""Bounds on JSON that are checked before it is decoded.

The decoder builds a list or an object whole before anybody can look at its length: 16 MB of `{}` are five million
objects and seconds of work. What is here stops at the first element too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.errors import ProtocolError

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a JSON decoder raises. The last one is for values that are nested too deeply."""

_HARMLESS_BYTES = 32 << 10  # A list of no more than this is decoded in a few milliseconds, whatever is in it.

# A string, or a key with the colon after it. Outside of strings there are no quotes.
_strings = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL).finditer


def longer_than(most: int) -> Callable[[bytes], bool]:
    """A check whether a JSON list has too many elements. Short texts always pass.

    To the decoder, the elements are the fields of one object. It counts these as it reads."""
    fields = [(f"element_{index}", Raw | UnsetType, UNSET) for index in range(most)]
    elements = msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True)
    decode = msgspec.json.Decoder(elements).decode

    def is_longer(body: bytes) -> bool:
        if len(body) <= _HARMLESS_BYTES:
            return False
        try:
            decode(body)
        except msgspec.ValidationError:
            return True
        except NOT_JSON:
            pass  # Whoever decodes it says what is wrong.
        return False

    return is_longer


def check_keys(body: bytes, most: int) -> None:
    """Raises `ProtocolError` if all objects of a JSON text together have too many keys."""
    if body.count(b":") <= most:
        return  # Nearly always. What has many colons has them in texts, or has too many keys.
    keys = (found for found in _strings(body) if found[1])
    if next(islice(keys, most, None), None):
        raise ProtocolError(f"the JSON objects of a request have at most {most} keys in all")
