"""multipart/mixed: several messages in one body (RFC 2046)."""

from __future__ import annotations

import re

from penstock.dialects.wire.http import Headers
from penstock.errors import ProtocolError
from penstock.limits import PART_HEADERS_MAX
from penstock.model.header_values import is_header_value

_BOUNDARY = re.compile(rb"""boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)


def is_multipart(content_type: bytes) -> bool:
    return content_type[:16].lower().rstrip(b" \t;") == b"multipart/mixed"


def boundary_of(content_type: bytes) -> bytes | None:
    """The boundary of a multipart/mixed content type; None for any other type."""
    if not is_multipart(content_type):
        return None
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise ProtocolError("multipart/mixed needs a boundary of 1 to 70 characters")
    return found[1] or found[2]


def split_parts(body: bytes, boundary: bytes, most: int) -> list[tuple[Headers, bytes]]:
    """The parts of a body, each with its headers. Raises `ProtocolError` for what is not well formed."""
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter, most + 2)
    if len(pieces) - 2 > most:
        raise ProtocolError(f"at most {most} messages per request, got more")
    if len(pieces) < 3 or pieces[-1][:2] != b"--":
        raise ProtocolError("the multipart body has no parts, or its closing boundary is missing")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> tuple[Headers, bytes]:
    start = piece.find(b"\r\n")
    if start < 0 or piece[:start].strip(b" \t"):
        raise ProtocolError("a multipart boundary must be followed by a new line")
    if piece[start : start + 4] == b"\r\n\r\n":
        return {}, piece[start + 4 :]
    end = piece.find(b"\r\n\r\n", start)
    if end < 0:
        raise ProtocolError("a part of the multipart body has no empty line after its headers")
    headers: Headers = {}
    lines = piece[start + 2 : end].split(b"\r\n", PART_HEADERS_MAX)
    if len(lines) > PART_HEADERS_MAX:
        raise ProtocolError(f"a part of the multipart body has at most {PART_HEADERS_MAX} headers")
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise ProtocolError("a part of the multipart body has a header without a name")
        if not is_header_value(line):
            raise ProtocolError("a part of the multipart body has a control character in a header")
        headers[name.strip().lower()] = value.strip()
    return headers, piece[end + 4 :]


def join_parts(parts: list[tuple[bytes, bytes]], seed: bytes) -> tuple[bytes, bytes]:
    """A body of several parts (header lines, content), and the boundary, which is in none of them."""
    boundary = b"penstock-" + seed
    while any(boundary in content for _, content in parts):
        boundary += b"x"
    lines = [b"--%b\r\n%b\r\n%b\r\n" % (boundary, headers, content) for headers, content in parts]
    return boundary, b"".join(lines) + b"--" + boundary + b"--\r\n"
