"""Consuming in the native API: fetch the messages of a queue or channel, confirm them, extend their leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock import limits
from penstock.dialects.native.message_document import kept_fields
from penstock.dialects.native.parameters import flag, number, parameters, seconds
from penstock.dialects.wire import http
from penstock.dialects.wire.json_bodies import given_bytes, message_field, text_or_base64
from penstock.dialects.wire.json_bounds import longer_than
from penstock.dialects.wire.pages import Soon, page
from penstock.dialects.wire.subjects import Form, Subject, message_named, names_in
from penstock.errors import ErrorCode, Fault, ProtocolError, Reason
from penstock.ids import MessageIds, is_uuid
from penstock.model.answers import Answer, Delivery, Discarded, LeasedUntil, Received, Refused
from penstock.model.commands import Command, Extend, Outcome, Settle, SettleMany
from penstock.model.consuming import Consume
from penstock.model.probe import Probe
from penstock.model.times import nanos_of, rfc3339_nanos

_Seconds = Annotated[float, Meta(ge=0, le=limits.INT32_MAX)]
_Delivery = Annotated[int, Meta(ge=1, le=limits.INT32_MAX)]


class _Confirmation(Struct, forbid_unknown_fields=True):
    id: str
    outcome: Outcome = "success"
    consumer: str | None = None
    delivery: _Delivery | None = None
    delay: _Seconds = 0
    result: Raw = Raw()
    result_base64: str | UnsetType = UNSET
    reason: str = ""
    begun: bool = True


class _Extension(Struct, forbid_unknown_fields=True):
    id: str
    seconds: _Seconds
    consumer: str | None = None
    delivery: _Delivery | None = None
    begin: bool = False


_decode_confirmation = msgspec.json.Decoder(_Confirmation).decode
_decode_confirmations = msgspec.json.Decoder(list[_Confirmation]).decode
_are_too_many = longer_than(limits.BATCH_MESSAGES_MAX)
_decode_extension = msgspec.json.Decoder(_Extension).decode
_decode_extensions = msgspec.json.Decoder(list[_Extension]).decode


def _no_channel(refused: Refused) -> http.Response:
    if refused.reason is Reason.NO_QUEUE:
        return http.error_response(Fault.NO_CHANNEL, refused.detail)
    return http.refusal(refused)


CHANNEL_FORM = Form(_no_channel, http.bad_request)
"""Of what is about a channel."""


class Consuming:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, ids: MessageIds, request_bytes_max: int, soon: Soon) -> None:
        self._ids = ids
        self._soon = soon
        self._body_rule = http.BodyRule(request_bytes_max)
        self.routes: http.Routes = {
            (b"v1/queues", 4): {b"GET": self._queue_messages},
            (b"v1/channels", 4): {b"GET": self._channel_messages},
            (b"v1/confirm", 2): {b"POST": self._confirm},
            (b"v1/extend", 2): {b"POST": self._extend},
        }

    def body_rule(self, _: bytes, __: bytes, ___: http.Headers) -> http.BodyRule:
        return self._body_rule

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _queue_messages(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        if segment != b"messages":
            return http.not_found(request)
        return self._consume(request)

    def _channel_messages(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        if segment != b"messages":
            return http.not_found(request)
        return self._consume(request, channel=True)

    def _consume(self, request: http.Request, *, channel: bool = False) -> http.Call:
        name = http.queue_name(http.segments_of(request.target)[2])
        given = parameters(request, "max", "wait", "lease", "consumer", "raw", "ahead")
        most = number(given, "max", 1, limits.BATCH_MESSAGES_MAX, 1)
        wait_ns = number(given, "wait", 0, limits.LONG_POLL_SECONDS_MAX, 0) * limits.SECOND_NS
        consumer = http.checked_text(given["consumer"][0], "consumer") if "consumer" in given else ""
        raw = flag(given, "raw", default=False)
        lease = seconds(given, "lease", limits.LEASE_SECONDS_MAX)
        lease_ns = None if lease is None else nanos_of(lease)
        consume = Consume(name, most, wait_ns, lease_ns, consumer, channel, flag(given, "ahead", default=False))
        refused = CHANNEL_FORM.refusal if channel else http.refusal
        return http.Call(consume, lambda answer: self._render_messages(name, answer, refused, raw=raw))

    def _render_messages(
        self, name: str, answer: Answer, refused: Callable[[Refused], http.Response], *, raw: bool
    ) -> http.Response | http.Stream:
        if isinstance(answer, Refused):
            return refused(answer)
        deliveries = answer.deliveries if isinstance(answer, Received) else cast("Sequence[Delivery]", answer)
        documents = (self._document(name, delivery, raw=raw) for delivery in deliveries)
        return page(documents, sum([delivery.body_bytes for delivery in deliveries]), self._soon)

    def _document(self, name: str, delivery: Delivery, *, raw: bool) -> dict[str, Any]:
        document: dict[str, Any] = {
            "id": self._ids.make(delivery.queue, delivery.sequence).decode(),
            "queue": name,
            "receives": delivery.receives,
            "created": rfc3339_nanos(delivery.created).decode(),
            "visible_at": rfc3339_nanos(delivery.visible_at).decode(),
            "priority": delivery.priority,
        }
        texts = {"mimeType": delivery.content_type, "sender": delivery.sender, "object": delivery.object}
        document |= {field: text for field, text in texts.items() if text}
        if delivery.topics:
            document["topics"] = delivery.topics.split("\n")
        if delivery.key:
            document |= text_or_base64("key", delivery.key)
        if delivery.headers:
            document |= kept_fields(delivery.headers)
        return document | message_field(delivery.body, delivery.content_type, raw=raw)

    # ── Outcomes ────────────────────────────────────────────────────────────────────────────────────────────

    def _confirm(self, request: http.Request, _: bytes) -> http.Response | http.Call | http.Calls:
        return _each(request, self._ids, _decode_confirmation, _decode_confirmations, self._settle, _settled)

    def _extend(self, request: http.Request, _: bytes) -> http.Response | http.Call | http.Calls:
        return _each(request, self._ids, _decode_extension, _decode_extensions, self._lengthen, _extended)

    def _settle(self, confirmation: _Confirmation) -> Settle | None:
        place = self._place(confirmation.id)
        result, _ = given_bytes(confirmation.result, confirmation.result_base64, "result") or (b"", "")
        if len(result) > limits.RESULT_BYTES_MAX:
            raise ProtocolError(f"a result has at most {limits.RESULT_BYTES_MAX} bytes, got {len(result)}")
        reason = _reason(confirmation)
        consumer = None if confirmation.consumer is None else http.checked_text(confirmation.consumer, "consumer")
        delay_ns = nanos_of(confirmation.delay)
        if place is None:
            return None
        delivery, begun = confirmation.delivery, confirmation.begun
        return Settle(*place, confirmation.outcome, consumer, delivery, delay_ns, result, reason, begun)

    def _lengthen(self, extension: _Extension) -> Extend | None:
        place = self._place(extension.id)
        consumer = None if extension.consumer is None else http.checked_text(extension.consumer, "consumer")
        return place and Extend(*place, nanos_of(extension.seconds), consumer, extension.delivery, extension.begin)

    def _place(self, text: str) -> tuple[int, int] | None:
        """None for an id that was never given out."""
        raw = text.encode()
        place = self._ids.find(raw)
        if place is None and not is_uuid(raw):
            raise ProtocolError("id: a message id is a UUID")
        return place


def _reason(confirmation: _Confirmation) -> bytes:
    reason = confirmation.reason.encode()
    if len(reason) > limits.REASON_BYTES_MAX:
        raise ProtocolError(f"a reason has at most {limits.REASON_BYTES_MAX} bytes, got {len(reason)}")
    return reason


def _settled(confirmation: _Confirmation, answer: Answer) -> dict[str, Any]:
    return {
        "id": confirmation.id,
        "outcome": confirmation.outcome,
        "discarded": isinstance(answer, Discarded),
    }


def _extended(extension: _Extension, answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, LeasedUntil)
    return {"id": extension.id, "visible_at": rfc3339_nanos(answer.visible_at).decode()}


class _Identified(Struct):
    id: str


def confirmed(request: http.Request, ids: MessageIds) -> Subject:
    """The message that a confirmation is about, or an extension, that is wrong in something else. In a list each
    entry is answered for itself."""
    named = names_in(request, _Identified)
    if named is None or not is_uuid(named.id.encode()):
        return None
    return message_named(named.id.encode(), ids, Settle)


# ── One message or a list ─────────────────────────────────────────────────────────────────────────────────────

_Entry = TypeVar("_Entry", _Confirmation, _Extension)
_CommandOf = Callable[[_Entry], Command | None]  # None for an id that was never given out.
_Shown = Callable[[_Entry, Answer], dict[str, Any]]


def _each(
    request: http.Request,
    ids: MessageIds,
    decode_one: Callable[[bytes], _Entry],
    decode_many: Callable[[bytes], list[_Entry]],
    command_of: _CommandOf[_Entry],
    shown: _Shown[_Entry],
) -> http.Response | http.Call | http.Calls:
    """One entry is answered with its status, each entry of a list for itself."""
    if not request.body.lstrip().startswith(b"["):
        entry = http.decoded(decode_one, request.body)
        command = command_of(entry)
        if command is None:
            return http.error_response(Reason.NO_MESSAGE)
        return http.Call(command, lambda answer: _render_one(entry, answer, shown))
    if _are_too_many(request.body):
        raise http.too_many_messages()
    entries = http.decoded(decode_many, request.body)
    if len(entries) > limits.BATCH_MESSAGES_MAX:
        raise http.too_many_messages(len(entries))
    found = [(entry, _command_or_error(entry, command_of, ids)) for entry in entries]
    commands = [_asked(command) for _, command in found if not isinstance(command, dict)]
    if not commands:
        return http.json_response(200, _render_all(found, (), shown))
    return _together(commands, lambda answers: http.json_response(200, _render_all(found, answers, shown)))


def _together(commands: Sequence[Command], render: Callable[[Sequence[Answer]], http.Response]) -> http.Calls:
    """Outcomes of one request are one command, so that of several about one message the first counts, wherever they
    are decided."""
    settles = [command for command in commands if type(command) is Settle]
    if len(settles) < 2:
        return http.Calls(commands, render)
    others = [command for command in commands if type(command) is not Settle]

    def render_in_order(answers: Sequence[Answer]) -> http.Response:
        settled, rest = answers[0], iter(answers[1:])
        each = iter([settled] * len(settles) if isinstance(settled, Refused) else cast("Sequence[Answer]", settled))
        return render([next(each if type(command) is Settle else rest) for command in commands])

    return http.Calls([SettleMany(settles), *others], render_in_order)


class _Wrong(NamedTuple):
    """An entry that cannot be carried out. Is its client allowed to do that, and is there such a message? If so, this
    is the answer."""

    probe: Probe
    error: ProtocolError


def _asked(command: Command | _Wrong) -> Command:
    return command.probe if isinstance(command, _Wrong) else command


def _command_or_error(
    entry: _Entry, command_of: _CommandOf[_Entry], ids: MessageIds
) -> Command | _Wrong | dict[str, Any]:
    try:
        return command_of(entry) or _failed(entry, Reason.NO_MESSAGE, Reason.NO_MESSAGE.sentence)
    except ProtocolError as error:
        raw = entry.id.encode()
        if place := ids.find(raw):
            return _Wrong(Probe(Settle(*place)), error)
        return _failed(entry, Reason.NO_MESSAGE, Reason.NO_MESSAGE.sentence) if is_uuid(raw) else _fault(entry, error)


def _render_one(entry: _Entry, answer: Answer, shown: _Shown[_Entry]) -> http.Response:
    return http.refusal(answer) if isinstance(answer, Refused) else http.json_response(200, shown(entry, answer))


def _render_all(
    found: Sequence[tuple[_Entry, Command | _Wrong | dict[str, Any]]],
    answers: Sequence[Answer],
    shown: _Shown[_Entry],
) -> list[dict[str, Any]]:
    remaining = iter(answers)
    return [
        command if isinstance(command, dict) else _entry(entry, command, next(remaining), shown)
        for entry, command in found
    ]


def _entry(entry: _Entry, command: Command | _Wrong, answer: Answer, shown: _Shown[_Entry]) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return _failed(entry, answer.reason, answer.sentence)
    return _fault(entry, command.error) if isinstance(command, _Wrong) else shown(entry, answer)


def _fault(entry: _Confirmation | _Extension, error: ProtocolError) -> dict[str, Any]:
    return _failed(entry, error.fault, str(error))


def _failed(entry: _Confirmation | _Extension, error: ErrorCode, sentence: str) -> dict[str, Any]:
    return {"id": entry.id, "error": sentence, "code": error.code}
