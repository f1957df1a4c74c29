"""What dialects keep with a message beside its body: names and values in msgpack, in the field `headers`.

mqs keeps request headers, NQ a tag, the native API the producer's time. Each reads its own
and passes over the others.
"""

from __future__ import annotations

import msgspec

from penstock.dialects.wire.header_values import is_header_value

encode_headers = msgspec.msgpack.Encoder().encode
decode_headers = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode

KEPT_HEADERS = {b"content-encoding": b"Content-Encoding", b"x-trace-id": b"X-TRACE-ID"}


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
