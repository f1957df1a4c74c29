"""Messages for a stream processor: leased many at once, named by ranges, read as Arrow, finished together.

`docs/pipeline.md` has it in prose. The processor notes in its own checkpoint what it has leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct

from penstock import limits
from penstock.dialects.native.spark.arrow import check_arrow, claimed_rows
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.ids import MessageIds
from penstock.model.answers import Answer, Claimed, Delivery, Refused
from penstock.model.commands import Fetch, FinishClaimed, ReadClaimed
from penstock.model.times import nanos_of

Ranges = list[tuple[int, int, int]]  # Queue, first and last sequence.

_ARROW = b"Content-Type: application/vnd.apache.arrow.stream\r\n"
_Seconds = Annotated[float, Meta(gt=0, le=limits.LEASE_SECONDS_MAX)]
_Consumer = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
_Sequence = Annotated[int, Meta(ge=1, le=limits.SEQUENCE_MAX)]
_Range = tuple[Annotated[int, Meta(ge=1, le=limits.QUEUE_NUMBER_MAX)], _Sequence, _Sequence]


class _Wish(Struct, forbid_unknown_fields=True):
    consumer: _Consumer
    lease: _Seconds
    count: Annotated[int, Meta(ge=1, le=limits.CLAIMED_MAX)] = limits.CLAIMED_MAX


class _Known(Struct, forbid_unknown_fields=True):
    consumer: _Consumer
    claimed: Annotated[list[_Range], Meta(max_length=limits.CLAIMED_MAX)]
    lease: _Seconds | None = None


_decode_wish = msgspec.json.Decoder(_Wish).decode
_decode_known = msgspec.json.Decoder(_Known).decode


class Claims:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, ids: MessageIds) -> None:
        self._ids = ids
        self.routes: http.Routes = {
            (b"v1/claims", 3): {b"POST": self._claim},
            (b"v1/claims", 4): {b"POST": self._act},
        }

    def _claim(self, request: http.Request, segment: bytes) -> http.Call:
        wish = http.decoded(_decode_wish, request.body)
        lease_ns = nanos_of(wish.lease)
        return http.Call(
            Fetch(http.queue_name(segment), wish.count, 0, lease_ns, http.checked_text(wish.consumer, "consumer")),
            _render_claim,
        )

    def _act(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        if segment not in (b"read", b"finish"):
            return http.not_found(request)
        http.queue_name(http.segments_of(request.target)[2])
        known = http.decoded(_decode_known, request.body)
        consumer = http.checked_text(known.consumer, "consumer")
        if any(first > last for _, first, last in known.claimed):
            raise ProtocolError("a range ends before it begins")
        count = sum(last - first + 1 for _, first, last in known.claimed)
        if count > limits.CLAIMED_MAX:
            raise ProtocolError(f"at most {limits.CLAIMED_MAX} messages per request, got {count}")
        if segment == b"finish":
            return http.Call(FinishClaimed(known.claimed, consumer), lambda answer: _render_finish(answer, count))
        check_arrow()
        if known.lease is None:
            raise ProtocolError("lease is missing; give the seconds for which the messages are needed")
        return http.Call(ReadClaimed(known.claimed, consumer, nanos_of(known.lease)), self._render_read)

    def _render_read(self, answer: Answer) -> http.Response:
        if isinstance(answer, Refused):
            return http.refusal(answer)
        assert isinstance(answer, Claimed)
        headers = _ARROW + b"X-Penstock-Missing: %d\r\n" % answer.missing
        if answer.following:
            headers += b"X-Penstock-Next: %d.%d\r\n" % answer.following
        return http.Response(200, claimed_rows(answer.deliveries, self._ids), headers)


def _render_claim(answer: Answer) -> http.Response:
    if isinstance(answer, Refused):
        return http.refusal(answer)
    deliveries = cast("Sequence[Delivery]", answer)
    return http.json_response(200, {"claimed": _ranges(deliveries), "count": len(deliveries)})


def _render_finish(answer: Answer, count: int) -> http.Response:
    if isinstance(answer, Refused):
        return http.refusal(answer)
    assert isinstance(answer, Claimed)
    return http.json_response(200, {"finished": count - answer.missing})


def _ranges(deliveries: Sequence[Delivery]) -> list[list[int]]:
    """Consecutive sequences of one queue are one range."""
    ranges: list[list[int]] = []
    for each in deliveries:
        if ranges and ranges[-1][0] == each.queue and ranges[-1][2] + 1 == each.sequence:
            ranges[-1][2] = each.sequence
        else:
            ranges.append([each.queue, each.sequence, each.sequence])
    return ranges
