"""What an answer tells of but does not hold, read from the log before it is given: bodies, headers, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import cast

from penstock.model import Answer, Claimed, Delivery, Drawn, Position, Pulled, Received, Refused, StoredResult

Read = Callable[[Position, int], bytes]


def load(answer: Answer, read: Read) -> None:
    """Fill in what is to be delivered."""
    if type(answer) is Pulled:
        for drawn in answer.drawn:
            _load_columns(drawn, read)
    elif type(answer) is StoredResult:
        answer.result = read(answer.position, answer.size)
    elif type(answer) is Received or type(answer) is Claimed:
        _load_all(answer.deliveries, read)
    elif type(answer) is not Refused:
        _load_all(cast("Sequence[Delivery]", answer), read)


def _load_all(deliveries: Sequence[Delivery], read: Read) -> None:
    start = 0
    while start < len(deliveries):
        stop = _end_of_run(deliveries, start)
        if stop - start > 1:
            _load_run(deliveries[start:stop], read)
        else:
            _load_one(deliveries[start], read)
        start = stop


def _load_run(deliveries: Sequence[Delivery], read: Read) -> None:
    """Bodies that lie one after the other in the log: one read for all of them."""
    base, last = deliveries[0].position, deliveries[-1]
    bodies = read(base, last.position + last.body_bytes - base)
    for delivery in deliveries:
        start = delivery.position - base
        delivery.body = bodies[start : start + delivery.body_bytes]


def _load_one(delivery: Delivery, read: Read) -> None:
    body, key = delivery.body_bytes, delivery.key_bytes
    extent = read(delivery.position, body + key + delivery.headers_bytes)
    if len(extent) == body:
        delivery.body = extent
    else:
        delivery.body, delivery.key = extent[:body], extent[body : body + key]
        delivery.headers = extent[body + key :]


def _load_columns(drawn: Drawn, read: Read) -> None:
    """Messages that were published together lie together, and are read together."""
    sizes, positions = drawn.body_bytes, drawn.positions
    if not any(drawn.key_bytes) and not any(drawn.headers_bytes):
        first = positions[0]
        bounds = list(accumulate(sizes, initial=0))
        if [first + start for start in bounds[:-1]] == positions:
            data = read(first, bounds[-1])
            drawn.bodies = [data[start:end] for start, end in pairwise(bounds)]
            drawn.headers = [b""] * len(sizes)
            return
    for position, body, key, headers in zip(positions, sizes, drawn.key_bytes, drawn.headers_bytes, strict=True):
        extent = read(position, body + key + headers)
        drawn.bodies.append(extent[:body])
        drawn.headers.append(extent[body + key :])


def _end_of_run(deliveries: Sequence[Delivery], start: int) -> int:
    """The first delivery after `start` that does not follow the one before it in the log, body on body."""
    expected = deliveries[start].position
    for index in range(start, len(deliveries)):
        delivery = deliveries[index]
        if delivery.position != expected or delivery.key_bytes or delivery.headers_bytes:
            return max(index, start + 1)
        expected += delivery.body_bytes
    return len(deliveries)
