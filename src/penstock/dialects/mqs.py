"""The Mini Queue Service: an SQS-like HTTP service. `docs/mqs.md` has it in prose, `/openapi.json` for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.dialects.wire.http import (
    BodyRule,
    Call,
    Headers,
    Request,
    Response,
    Routes,
    Work,
    decoded,
    error_response,
    json_response,
    queue_name,
    refusal,
    segments_of,
    whole_number,
)
from penstock.dialects.wire.listing import listing
from penstock.dialects.wire.multipart import boundary_of, is_multipart, join_parts, split_parts
from penstock.dialects.wire.setting_documents import document_type, settings_in
from penstock.dialects.wire.stored_bodies import check_use, content_type_line, stored_bodies, stored_body
from penstock.errors import Fault, ProtocolError, Reason
from penstock.ids import MessageIds, is_uuid
from penstock.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    INT32_MAX,
    LONG_POLL_SECONDS_MAX,
    SECOND_NS,
)
from penstock.model.answers import Answer, Delivery, QueueDescription, Receipt, Refused
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    Finish,
    ListQueues,
    NewMessage,
    Publish,
    UpdateQueue,
)
from penstock.model.header_values import checked_header_value, content_type_of
from penstock.model.kept_headers import KEPT_HEADERS, encode_headers, kept_header_lines
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.times import rfc3339_seconds
from penstock.model.values import Nanos
from penstock.remembering import remembered

_SMALL_BODY = BodyRule(64 << 10)

# ── The queue document ────────────────────────────────────────────────────────────────────────────────────

_Positive = Annotated[int, Meta(ge=1, le=INT32_MAX)]
_NotNegative = Annotated[int, Meta(ge=0, le=INT32_MAX)]


_SETTINGS = ("redrive_policy", "retention_ns", "visibility_ns", "delay_ns", "deduplication")
_QueueDocument = document_type(
    *("Queue", QueueSettings, _SETTINGS),
    first_names=True,
    required=("retention_timeout", "visibility_timeout", "message_deduplication"),
    retention_timeout=_Positive,
    visibility_timeout=_NotNegative,
    message_delay=_NotNegative,
)


class _Status(Struct):
    messages: int
    visible_messages: int
    oldest_message_age: int


class _QueueView(Struct):
    name: str
    redrive_policy: RedrivePolicy | None
    retention_timeout: int
    visibility_timeout: int
    message_delay: int
    message_deduplication: bool
    status: _Status | UnsetType = UNSET


_decode_queue = msgspec.json.Decoder(_QueueDocument).decode


class Mqs:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, ids: MessageIds, *, oversize: str, delete_status: int, batch_bytes_max: int) -> None:
        self._ids = ids
        self._deleted = Response(delete_status)
        self._message_rule = BodyRule(BODY_BYTES_MAX, cut=oversize == "cut")
        self._batch_rule = BodyRule(batch_bytes_max)
        # A receive without options is the same call each time.
        self._plain_receive = remembered(1024)(lambda name: Call(Fetch(queue_name(name)), self._render_receive))
        self.routes: Routes = {
            (b"messages", 2): {b"GET": self._receive, b"POST": self._publish, b"DELETE": self._delete_message},
            (b"queues", 2): {
                b"GET": self._get_queue,
                b"HEAD": self._get_queue,
                b"PUT": self._put_queue,
                b"POST": self._post_queue,
                b"DELETE": self._delete_queue,
            },
            (b"queues", 1): {b"GET": self._list_queues, b"HEAD": self._list_queues},
        }

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        if method != b"POST" or segments_of(target)[0] != b"messages":
            return _SMALL_BODY
        return self._batch_rule if is_multipart(headers.get(b"content-type", b"")) else self._message_rule

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self, request: Request, segment: bytes) -> Response | Call:
        queue = queue_name(segment)
        headers = request.headers
        boundary = _boundary(headers.get(b"content-type", b""))
        if boundary is None:
            messages: tuple[NewMessage, ...] = (_new_message(headers, request.body),)
        else:
            parts = split_parts(request.body, boundary, BATCH_MESSAGES_MAX)
            messages = tuple(_new_message(part, body) for part, body in parts)
            for message in messages:
                if len(message.body) > BODY_BYTES_MAX:
                    raise ProtocolError(f"a message has at most {BODY_BYTES_MAX} bytes", Fault.TOO_LARGE)
        if request.cut:
            return Call(Publish(queue, messages), self._render_cut_publish)
        return Call(Publish(queue, messages), self._render_publish)

    def _render_publish(self, answer: Answer) -> Response:
        if isinstance(answer, Refused):
            return refusal(answer)
        receipts: Sequence[Receipt] = answer  # type: ignore[assignment]
        make = self._ids.make
        if len(receipts) == 1:
            receipt = receipts[0]
            header = b"X-MQS-MESSAGE-ID: %b\r\n" % make(receipt.queue, receipt.sequence)
            return Response(201 if receipt.fresh else 200, b"", header)
        status = 201 if any(receipt.fresh for receipt in receipts) else 200
        return json_response(
            status, {"ids": [make(receipt.queue, receipt.sequence).decode() for receipt in receipts]}
        )

    def _render_cut_publish(self, answer: Answer) -> Response:
        response = self._render_publish(answer)
        response.headers += f"X-MQS-TRUNCATED-TO: {BODY_BYTES_MAX}\r\n".encode()
        return response

    def _receive(self, request: Request, segment: bytes) -> Response | Call:
        check_use(request.headers)
        wait = request.headers.get(b"x-mqs-max-wait-time")
        most = request.headers.get(b"x-mqs-max-messages")
        if wait is None and most is None:
            return self._plain_receive(segment)
        command = Fetch(
            queue_name(segment),
            count=1 if most is None else whole_number(most, "X-MQS-MAX-MESSAGES", 1, BATCH_MESSAGES_MAX),
            wait_ns=0
            if wait is None
            else whole_number(wait, "X-MQS-MAX-WAIT-TIME", 1, LONG_POLL_SECONDS_MAX) * SECOND_NS,
        )
        return Call(command, self._render_receive)

    def _render_receive(self, answer: Answer) -> Response:
        if isinstance(answer, Refused):
            return refusal(answer)
        deliveries: Sequence[Delivery] = answer  # type: ignore[assignment]
        if not deliveries:
            return Response(204)
        if len(deliveries) == 1:
            delivery = deliveries[0]
            return stored_body(delivery.body, delivery.content_type, self._message_headers(delivery))
        parts = [
            (content_type_line(delivery.content_type) + self._message_headers(delivery), delivery.body)
            for delivery in deliveries
        ]
        boundary, body = join_parts(parts, self._ids.make(deliveries[0].queue, deliveries[0].sequence))
        return stored_bodies(body, boundary)

    def _message_headers(self, delivery: Delivery) -> bytes:
        lines = _MESSAGE_HEADERS % (
            self._ids.make(delivery.queue, delivery.sequence),
            delivery.receives,
            rfc3339_seconds(delivery.created),
            rfc3339_seconds(delivery.visible_at),
        )
        if delivery.headers:
            lines += kept_header_lines(delivery.headers)
        return lines

    def _delete_message(self, _: Request, segment: bytes) -> Response | Call:
        place = self._ids.find(segment)
        if place is not None:
            return Call(Finish(*place), self._render_delete)
        if not is_uuid(segment):
            raise ProtocolError("a message id is a UUID")
        return error_response(Reason.NO_MESSAGE)

    def _render_delete(self, answer: Answer) -> Response:
        return refusal(answer) if type(answer) is Refused else self._deleted

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _put_queue(self, request: Request, segment: bytes) -> Response | Call:
        command = CreateQueue(queue_name(segment), _settings_in(request.body))
        return Call(command, lambda answer: _render_queue(answer, 201))

    def _post_queue(self, request: Request, segment: bytes) -> Response | Call:
        command = UpdateQueue(queue_name(segment), _settings_in(request.body), _SETTINGS)
        return Call(command, lambda answer: _render_queue(answer, 200))

    def _delete_queue(self, _: Request, segment: bytes) -> Response | Call:
        return Call(DeleteQueue(queue_name(segment)), lambda answer: _render_queue(answer, 200))

    def _get_queue(self, _: Request, segment: bytes) -> Response | Call:
        return Call(DescribeQueue(queue_name(segment)), _render_described)

    def _list_queues(self, request: Request, _: bytes) -> Work:
        try:
            query = dict(parse_qsl(request.query.decode("ascii"), keep_blank_values=True, errors="strict"))
        except ValueError:
            raise ProtocolError("the query string is not percent-encoded ASCII") from None
        numbers = {
            name: whole_number(query[name].encode(), name, 0, INT32_MAX)
            for name in ("offset", "limit")
            if name in query
        }
        return Work(listing(ListQueues(numbers.get("offset", 0), numbers.get("limit")), "queues", _view, refusal))


_MESSAGE_HEADERS = (
    b"X-MQS-MESSAGE-ID: %b\r\nX-MQS-MESSAGE-RECEIVES: %d\r\n"
    b"X-MQS-MESSAGE-PUBLISHED-AT: %b\r\nX-MQS-MESSAGE-VISIBLE-AT: %b\r\n"
)


def _new_message(headers: Headers, body: bytes) -> NewMessage:
    content_type = content_type_of(headers.get(b"content-type", b""))
    if b"x-trace-id" in headers or b"content-encoding" in headers:
        return NewMessage(body, content_type, headers=_kept_headers(headers))
    return NewMessage(body, content_type)


def _kept_headers(headers: Headers) -> bytes:
    """Request headers that come back with the message."""
    kept = {
        name: checked_header_value(headers[name], written.decode())
        for name, written in KEPT_HEADERS.items()
        if name in headers
    }
    if b"x-trace-id" in kept and not is_uuid(kept[b"x-trace-id"]):
        raise ProtocolError("X-TRACE-ID must be a UUID")
    return encode_headers(kept)


def _settings_in(body: bytes) -> QueueSettings:
    return QueueSettings(**settings_in(decoded(_decode_queue, body), QueueSettings))


def _view(queue: QueueDescription) -> _QueueView:
    settings = queue.settings
    return _QueueView(
        queue.name,
        settings.redrive_policy,
        _seconds(settings.retention_ns),
        _seconds(settings.visibility_ns),
        _seconds(settings.delay_ns),
        settings.deduplication,
    )


def _render_queue(answer: Answer, status: int) -> Response:
    if isinstance(answer, Refused):
        return refusal(answer)
    assert isinstance(answer, QueueDescription)
    return json_response(status, _view(answer))


def _render_described(answer: Answer) -> Response:
    if isinstance(answer, Refused):
        return refusal(answer)
    assert isinstance(answer, QueueDescription)
    view = _view(answer)
    view.status = _Status(answer.messages, answer.ready, answer.oldest_age_ns // SECOND_NS)
    return json_response(200, view)


def _seconds(nanos: Nanos) -> int:
    """Whole seconds, rounded up; no end is the largest number that the protocol knows."""
    return min(-(-nanos // SECOND_NS), INT32_MAX)


_boundary = remembered(1024)(boundary_of)
