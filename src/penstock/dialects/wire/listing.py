"""Lists of queues, made part by part: there may be many, and others have their turn in between."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from penstock.dialects.wire.http import JSON, Response, Steps
from penstock.limits import QUEUES_PER_PART, UINT32_MAX
from penstock.model.answers import QueueDescription, QueueList, Refused
from penstock.model.commands import ListQueues
from penstock.model.queries import Query

_encode = msgspec.json.Encoder().encode


Before = Callable[[Sequence[QueueDescription]], Generator[Query, Any, None]]


def _nothing(_: Sequence[QueueDescription]) -> Generator[Query, Any, None]:
    yield from ()


def listing(
    asked: ListQueues,
    word: str,
    shown: Callable[[QueueDescription], object],
    refusal: Callable[[Refused], Response],
    *,
    pages: bool = False,
    before: Before = _nothing,
) -> Steps:
    """A JSON object with the total and the chosen queues under this word; `pages`: also with the next offset.
    `before`: what is done before some of them are shown."""
    most = UINT32_MAX if asked.limit is None else asked.limit
    written: list[bytes] = []
    total, offset, after = 0, asked.offset, (0, 0)
    while True:
        size = min(most - len(written), QUEUES_PER_PART)
        answer = yield ListQueues(offset, size, asked.channels, after)
        if isinstance(answer, Refused):
            return refusal(answer)
        assert isinstance(answer, QueueList)
        total = total or answer.total
        yield from before(answer.queues)
        written += [_encode(shown(queue)) for queue in answer.queues]
        if len(answer.queues) < size or len(written) == most:
            break
        offset, after = 0, (answer.queues[-1].created, answer.queues[-1].number)
    following = asked.offset + len(written)
    fields: dict[str, object] = {"total": total}
    if pages:
        fields["next"] = following if written and following < total else None
    head = _encode(fields | {word: []}).removesuffix(b"]}")
    return Response(200, b"%b%b]}\n" % (head, b",".join(written)), JSON)
