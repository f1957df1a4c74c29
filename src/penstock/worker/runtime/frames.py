"""What a worker and its child processes say to each other: msgpack with its length in front."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from penstock.worker.context import Progress
from penstock.worker.outcome import Outcome

LENGTH_BYTES = 4


class Order(Struct):
    """To a child: run this."""

    id: str
    task: str
    queue: str
    attempt: int
    created: datetime
    args: bytes
    as_json: bool


class Report(Struct, tag="progress"):
    """From a child, while it runs."""

    progress: Progress


class Line(Struct, tag="line"):
    """From a child, while it runs: a line of its log."""

    logger: str
    level: int
    text: str


class Ended(Struct, tag="ended"):
    """From a child, at the end."""

    outcome: Outcome


Answer = Report | Line | Ended
_encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def frame(value: Order | Report | Line | Ended) -> bytes:
    data = _encode(value)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
