"""Clients that speak another protocol than the port that they connect to.

A web page can make a browser send HTTP or TLS to the line port, with a body that holds JSON lines. So such a client
must be recognised before its first line is carried out.
"""

from __future__ import annotations

import re

from penstock.dialects.wire.http import error_response
from penstock.errors import Fault

_OTHER = re.compile(
    rb"[A-Z][A-Z-]{1,30} "  # A method. No command begins like this: they are JSON objects.
    rb"|[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/\d"
    rb"|\x16\x03"  # As `_TLS`.
)
PLAIN_PORT = "a client uses TLS on a port without TLS: set tls.certificate and tls.key, or let it use http://"
TLS_PORT = "a client without TLS connects to a port with TLS: let it use https://"
_TLS = b"\x16\x03"  # The first record of TLS.


def http_answer(fault: Fault) -> bytes:
    """A whole answer for a client that speaks HTTP where it is not understood."""
    answer = error_response(fault)
    head = b"HTTP/1.1 400 Bad Request\r\n%bConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (answer.headers, len(answer.body)) + answer.body


def is_tls(start: bytes | bytearray) -> bool:
    """Whether a client begins with a TLS handshake."""
    return start.startswith(_TLS)


def is_misdirected(start: bytes | bytearray) -> bool:
    """Whether a client that begins like this speaks another protocol. `start`: its first line, or part of it."""
    return _OTHER.match(start) is not None
