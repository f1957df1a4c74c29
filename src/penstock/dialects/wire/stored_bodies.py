"""Answers that are stored bodies, in the content types that their producers chose. All of them are made here.

A producer may choose `text/html`: a page with its script would have the broker's own origin, and could do there what
the console can. So a browser gets a body only for a script that asks for it (`fetch`). A browser that does not say
why it asks shows the body, without running anything in it.
"""

from __future__ import annotations

from penstock.dialects.wire.http import Headers, Response
from penstock.errors import Fault, RequestError
from penstock.model.header_values import content_type_header

_FETCHED = b"empty"  # What a browser says of a request whose answer goes to a script.
_SHUT = b"Content-Security-Policy: sandbox\r\nX-Content-Type-Options: nosniff\r\n"


def check_use(headers: Headers) -> None:
    """Raises `RequestError` if a browser asks, and would show or run what it gets. Ask before a message is taken."""
    use = headers.get(b"sec-fetch-dest", _FETCHED)
    if use != _FETCHED or headers.get(b"sec-fetch-mode") == b"navigate":
        raise RequestError(Fault.FORBIDDEN_USE, f"Sec-Fetch-Dest is {use[:_SHOWN_BYTES].decode('latin-1')}")


def stored_body(body: bytes, content_type: str, headers: bytes) -> Response:
    """`headers`: further header lines."""
    return Response(200, body, content_type_line(content_type) + headers + _SHUT)


def stored_bodies(parts: bytes, boundary: bytes) -> Response:
    """Several, as `join_parts` has joined them."""
    return Response(200, parts, b"Content-Type: multipart/mixed; boundary=" + boundary + b"\r\n" + _SHUT)


def content_type_line(content_type: str) -> bytes:
    return b"Content-Type: %b\r\n" % content_type_header(content_type)


_SHOWN_BYTES = 50
