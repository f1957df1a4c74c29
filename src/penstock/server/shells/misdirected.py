"""Clients of the line port that speak another protocol: HTTP, or TLS.

A web page can make a browser send either to this port, with a body that holds JSON lines. So such a client must be
recognised before its first line is carried out.
"""

from __future__ import annotations

import re

from penstock.dialects.wire.http import error_response
from penstock.errors import Fault

_OTHER = re.compile(
    rb"[A-Z][A-Z-]{1,30} "  # A method. No command begins like this: they are JSON objects.
    rb"|[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/\d"
    rb"|\x16\x03"  # The first record of TLS.
)
_answer = error_response(Fault.WRONG_PORT)
HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\n%bConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
    *(_answer.headers, len(_answer.body), _answer.body),
)


def is_misdirected(start: bytes | bytearray) -> bool:
    """Whether a client that begins like this speaks another protocol. `start`: its first line, or part of it."""
    return _OTHER.match(start) is not None
