"""Fills in what an answer refers to but does not hold, before it is given: bodies, keys, headers, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import cast

from penstock.limits import ROOM_MESSAGE_BYTES
from penstock.model.answers import Answer, Claimed, Delivery, Drawn, Pulled, Received, Refused, StoredResult
from penstock.model.values import Position

Read = Callable[[Position, int], bytes]


def fill(answer: Answer, read: Read) -> int:
    """Read everything that the answer delivers. Returns how much room it takes."""
    if type(answer) is Pulled:
        return sum([_fill_columns(drawn, read) for drawn in answer.drawn])
    if type(answer) is StoredResult:
        answer.result = read(answer.position, answer.size)
        return answer.size
    if type(answer) is Received or type(answer) is Claimed:
        return _fill_all(answer.deliveries, read)
    if type(answer) is not Refused:
        return _fill_all(cast("Sequence[Delivery]", answer), read)
    return 0


def has_bodies(answer: Answer) -> bool:
    """Whether an answer has to be filled."""
    kind = type(answer[0]) if isinstance(answer, list | tuple) and answer else type(answer)
    return kind in (Pulled, StoredResult, Received, Claimed, Delivery)


def first_in(answer: Answer, ranges: Sequence[tuple[Position, Position]]) -> tuple[int | str, int] | None:
    """The first message that has bytes in one of these ranges: its queue (by name, or by number as in its id) and
    sequence. None if there is none, or if the answer is a result."""
    for queue, sequence, position, size in _extents(answer):
        if size and any(start < position + size and position < end for start, end in ranges):
            return queue, sequence
    return None


def _extents(answer: Answer) -> Iterator[tuple[int | str, int, Position, int]]:
    if type(answer) is Pulled:
        for drawn in answer.drawn:
            sizes = map(sum, zip(drawn.body_bytes, drawn.key_bytes, drawn.headers_bytes, strict=True))
            for sequence, position, size in zip(drawn.sequences, drawn.positions, sizes, strict=True):
                yield drawn.queue, sequence, position, size
    elif type(answer) is not StoredResult:
        deliveries = answer.deliveries if type(answer) is Received or type(answer) is Claimed else answer
        for each in cast("Sequence[Delivery]", deliveries):
            size = each.body_bytes + each.key_bytes + each.headers_bytes
            yield each.queue, each.sequence, each.position, size


def _fill_all(deliveries: Sequence[Delivery], read: Read) -> int:
    start, size = 0, len(deliveries) * ROOM_MESSAGE_BYTES
    while start < len(deliveries):
        stop = _end_of_run(deliveries, start)
        if stop - start > 1:
            size += _fill_run(deliveries[start:stop], read)
        else:
            size += _fill_one(deliveries[start], read)
        start = stop
    return size


def _fill_run(deliveries: Sequence[Delivery], read: Read) -> int:
    """Bodies that lie one after the other in the log are read at once."""
    base, last = deliveries[0].position, deliveries[-1]
    bodies = read(base, last.position + last.body_bytes - base)
    for delivery in deliveries:
        start = delivery.position - base
        delivery.body = bodies[start : start + delivery.body_bytes]
    return len(bodies)


def _fill_one(delivery: Delivery, read: Read) -> int:
    body, key = delivery.body_bytes, delivery.key_bytes
    extent = read(delivery.position, body + key + delivery.headers_bytes)
    if len(extent) == body:
        delivery.body = extent
    else:
        delivery.body, delivery.key = extent[:body], extent[body : body + key]
        delivery.headers = extent[body + key :]
    return len(extent)


def _fill_columns(drawn: Drawn, read: Read) -> int:
    """Messages that were published together lie together, and are read at once."""
    sizes, positions = drawn.body_bytes, drawn.positions
    if not any(drawn.key_bytes) and not any(drawn.headers_bytes):
        first = positions[0]
        bounds = list(accumulate(sizes, initial=0))
        if [first + start for start in bounds[:-1]] == positions:
            data = read(first, bounds[-1])
            drawn.bodies = [data[start:end] for start, end in pairwise(bounds)]
            drawn.headers = [b""] * len(sizes)
            return len(data) + len(sizes) * ROOM_MESSAGE_BYTES
    size = len(sizes) * ROOM_MESSAGE_BYTES
    for position, body, key, headers in zip(positions, sizes, drawn.key_bytes, drawn.headers_bytes, strict=True):
        extent = read(position, body + key + headers)
        drawn.bodies.append(extent[:body])
        drawn.headers.append(extent[body + key :])
        size += len(extent)
    return size


def _end_of_run(deliveries: Sequence[Delivery], start: int) -> int:
    """The first delivery after `start` that does not follow the one before it in the log, body on body."""
    expected = deliveries[start].position
    for index in range(start, len(deliveries)):
        delivery = deliveries[index]
        if delivery.position != expected or delivery.key_bytes or delivery.headers_bytes:
            return max(index, start + 1)
        expected += delivery.body_bytes
    return len(deliveries)
