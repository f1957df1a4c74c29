"""What is kept with a message beside its body: names and values in msgpack, in the field `headers`.

mqs keeps request headers, NQ a tag, the native API the fields in `message_fields.py` and the headers that the
producer chose. mqs and NQ read their own and pass over the others; the native API shows all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote_from_bytes

import msgspec

from penstock.errors import ProtocolError
from penstock.limits import USER_HEADER_NAME_BYTES_MAX, USER_HEADERS_BYTES_MAX, USER_HEADERS_MAX
from penstock.model.header_values import is_header_value
from penstock.model.message_fields import BY_KEY

encode_headers = msgspec.msgpack.Encoder().encode
decode_headers = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode

KEPT_HEADERS = {b"content-encoding": b"Content-Encoding", b"x-trace-id": b"X-TRACE-ID"}
CAUSE = b"caused-by"  # The id of the message because of which a message was published.

_is_token = re.compile(rb"[!#$%%&'*+.^_`|~0-9A-Za-z-]{1,%d}" % USER_HEADER_NAME_BYTES_MAX).fullmatch
SAFE = "!#$&'()*+-./:;=?@[]^_`{|}~ "  # In a header line, everything else is percent-encoded.


def checked_headers(given: Mapping[str, str]) -> dict[bytes, bytes]:
    """The headers that a producer gives a message. Raises `ProtocolError` for those that cannot be kept."""
    if len(given) > USER_HEADERS_MAX:
        raise ProtocolError(f"a message has at most {USER_HEADERS_MAX} headers, got {len(given)}")
    headers = {name.encode(): value.encode() for name, value in given.items()}
    size = sum([len(name) + len(value) for name, value in headers.items()])
    if size > USER_HEADERS_BYTES_MAX:
        raise ProtocolError(f"headers have at most {USER_HEADERS_BYTES_MAX} bytes in all, got {size}")
    for name in headers:
        if not _is_token(name):
            raise ProtocolError(
                f"a header name has 1 to {USER_HEADER_NAME_BYTES_MAX} characters: letters, digits and !#$%&'*+-.^_`|~"
            )
        if name in BY_KEY:
            raise ProtocolError(f"no header can be called {name.decode()}; use the field {name.decode()}")
    return headers


def cause_bytes(cause: str) -> bytes:
    """What the headers of a message contain that was published because of the one with this id."""
    return encode_headers(CAUSE) + encode_headers(cause.encode())


def kept_header_lines(headers: bytes) -> bytes:
    """Request headers that were kept with a message, to come back with it."""
    kept = decode_headers(headers)
    return b"".join(
        [
            b"%b: %b\r\n" % (KEPT_HEADERS[name], value)
            for name, value in kept.items()
            if name in KEPT_HEADERS and is_header_value(value)
        ]
    )


def own_header_lines(headers: bytes) -> bytes:
    """The headers that a producer chose, percent-encoded in lines that are all called `X-Penstock-Header-…`, and the
    fields that are kept with them."""
    lines = []
    for name, value in decode_headers(headers).items():
        text = quote_from_bytes(value, SAFE).encode("ascii")
        if name in BY_KEY:
            lines.append(b"%b: %b\r\n" % (BY_KEY[name].line, text))
        elif name not in KEPT_HEADERS and _is_token(name):
            lines.append(b"X-Penstock-Header-%b: %b\r\n" % (name, text))
    return b"".join(lines)
