"""Values that a client sends and that are sent on as HTTP headers. They are checked in both directions: earlier
versions stored them unchecked, so what cannot be a header value is left out.
"""

from __future__ import annotations

import re

from penstock.errors import ProtocolError
from penstock.limits import CONTENT_TYPE_BYTES_MAX, HEADER_VALUE_BYTES_MAX
from penstock.remembering import remembered

OCTETS = "application/octet-stream"

_control_character = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search  # A header may contain tabs.


def is_header_value(value: bytes) -> bool:
    return _control_character(value) is None


def checked_header_value(value: bytes, name: str, bytes_max: int = HEADER_VALUE_BYTES_MAX) -> bytes:
    """Raises `ProtocolError` for a value that cannot come back as a header."""
    if len(value) > bytes_max:
        raise ProtocolError(f"{name} has at most {bytes_max} bytes, got {len(value)}")
    if not is_header_value(value):
        raise ProtocolError(f"{name} must not have control characters")
    return value


@remembered(1024)
def content_type_of(header: bytes) -> str:
    """The content type that a request gives a message. Raises `ProtocolError` for what cannot be one."""
    return checked_header_value(header, "Content-Type", CONTENT_TYPE_BYTES_MAX).decode("latin-1") or OCTETS


def checked_media_type(text: str, field: str) -> str:
    """A content type in a document. Raises `ProtocolError` for what cannot be a header in other dialects."""
    if not text.isascii():
        raise ProtocolError(f"{field} must be ASCII")
    if len(text) > CONTENT_TYPE_BYTES_MAX:
        raise ProtocolError(f"{field} has at most {CONTENT_TYPE_BYTES_MAX} bytes, got {len(text)}")
    if not text.isprintable():
        raise ProtocolError(f"{field} must not have control characters")
    return text


@remembered(1024)
def content_type_header(content_type: str) -> bytes:
    """The value of a `Content-Type` header for a message."""
    value = (content_type or OCTETS).encode("latin-1", "replace")
    return value if is_header_value(value) else OCTETS.encode()
