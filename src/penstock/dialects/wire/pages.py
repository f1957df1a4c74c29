"""Lists of documents as answers: a small one at once, a large one piece by piece, so that others have their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from penstock.dialects.wire.http import JSON, Response, Stream
from penstock.limits import PAGE_PIECE_BYTES
from penstock.model.streams import Sink

Soon = Callable[[Callable[[], None]], object]  # Calls something in the next turn of the event loop.

_encode = msgspec.json.Encoder().encode


def page(
    documents: Iterable[Any], body_bytes: int, soon: Soon, head: bytes = b"[", tail: bytes = b"]"
) -> Response | Stream:
    """`body_bytes`: of all messages. `documents` are made when they are needed: that is most of the work."""
    pieces = _pieces(documents, head, tail)
    if body_bytes <= PAGE_PIECE_BYTES:
        return Response(200, b"".join(pieces), JSON)
    return Stream(200, JSON, _Page(pieces, soon, body_bytes))


def _pieces(documents: Iterable[Any], head: bytes, tail: bytes) -> Iterator[bytes]:
    piece = bytearray(head)
    for index, document in enumerate(documents):
        piece += b"," + _encode(document) if index else _encode(document)
        if len(piece) >= PAGE_PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + tail + b"\n"


_HELD_PER_BYTE = 2  # The bodies, and what they were read with.


class _Page:
    def __init__(self, pieces: Iterator[bytes], soon: Soon, body_bytes: int) -> None:
        self._pieces = pieces
        self.held_bytes = _HELD_PER_BYTE * body_bytes  # Until all pieces are taken.
        self._soon = soon

    def pull(self, sink: Sink) -> None:
        self._soon(lambda: self._give(sink))

    def _give(self, sink: Sink) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            sink.end()
        else:
            sink.give(piece)

    def finish(self) -> None:
        """Ends by itself."""

    def close(self) -> None:
        self._pieces = iter(())
