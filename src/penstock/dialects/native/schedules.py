"""Recurring schedules in the native API. `docs/schedules.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from penstock.dialects.native.event_text import headers_by_name
from penstock.dialects.native.looking import Submit
from penstock.dialects.native.parameters import number, parameters, time_of
from penstock.dialects.native.publish import GivenMessage, message_fields, message_of, rendered, with_message_fields
from penstock.dialects.wire import http
from penstock.dialects.wire.json_bodies import message_field
from penstock.dialects.wire.subjects import names_in
from penstock.errors import ProtocolError
from penstock.ids import MessageIds
from penstock.limits import (
    FETCH_BYTES_MAX,
    INT32_MAX,
    NEVER_NS,
    SCHEDULE_BODY_BYTES_MAX,
    SCHEDULE_SECONDS_MIN,
    SCHEDULES_PER_PART,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
)
from penstock.model.access import Need
from penstock.model.answers import Answer, Refused, ScheduleDescription, ScheduleList
from penstock.model.cron import parse_cron
from penstock.model.permissions import needs_of, require
from penstock.model.schedules import (
    CatchUp,
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    RunSchedule,
    Schedule,
    SetSchedule,
)
from penstock.model.settings import QueueSettings, seconds
from penstock.model.times import nanos_of, rfc3339
from penstock.model.values import Nanos, Stage

_BODY_RULE = http.BodyRule(8 * SCHEDULE_BODY_BYTES_MAX)  # Each byte of a message may be escaped.

# A change that names one of these takes the others away.
_INSTEAD = {
    "queue": ("topics",),
    "topics": ("queue",),
    "cron": ("every", "start"),
    "every": ("cron", "time_zone"),
    "message": ("message_base64", "mimeType"),
    "message_base64": ("message", "mimeType"),
}


class _Document(GivenMessage, forbid_unknown_fields=True):
    queue: str = ""
    cron: str = ""
    time_zone: str = ""
    every: Annotated[float, Meta(ge=SCHEDULE_SECONDS_MIN, le=INT32_MAX)] | None = None
    start: str | float = ""
    catch_up: CatchUp = "one"
    paused: bool = False


_decode = msgspec.json.Decoder(with_message_fields(_Document)).decode
_decode_changes = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_NULL = b"null"


class _Named(Struct):
    queue: str = ""
    topics: list[str] = []


def planned(name: str, request: http.Request) -> tuple[Need, ...]:
    """What a schedule needs, as far as its body names something."""
    named = names_in(request, _Named) or _Named()
    return needs_of(SetSchedule(name, Schedule(queue=named.queue, topics=tuple(named.topics))))


class Schedules:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, submit: Submit, ids: MessageIds, settings: QueueSettings) -> None:
        self._submit = submit
        self._ids = ids
        self._settings = settings  # Queues for topics are made with these.
        self.routes: http.Routes = {
            (b"v1/schedules", 2): {b"GET": self._list, b"HEAD": self._list},
            (b"v1/schedules", 3): {
                b"GET": self._get,
                b"HEAD": self._get,
                b"PUT": self._put,
                b"PATCH": self._patch,
                b"DELETE": self._delete,
            },
            (b"v1/schedules", 4): {b"POST": self._run},
        }

    def body_rule(self, _: bytes, __: bytes, ___: http.Headers) -> http.BodyRule:
        return _BODY_RULE

    def _get(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(DescribeSchedule(_name(segment)), self._render)

    def _put(self, request: http.Request, segment: bytes) -> http.Call:
        return http.Call(SetSchedule(_name(segment), self._definition(request.body)), self._render)

    def _patch(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Change some fields. The schedule is read and changed in one turn, so that no other change is undone."""
        name, changes = _name(segment), http.decoded(_decode_changes, request.body)
        require(request.access, *planned(name, request))

        def look(respond: Callable[[http.Response], None]) -> None:
            def act(found: Answer) -> None:
                if not isinstance(found, ScheduleDescription):
                    respond(self._render(found))
                    return
                try:
                    command = SetSchedule(name, self._changed(found.definition, changes))
                except ProtocolError as error:
                    respond(http.bad_request(error))
                    return
                self._submit(request, command, lambda answer: respond(self._render(answer)))

            self._submit(request, DescribeSchedule(name), act, Stage.READY)

        return http.Awaited(look)

    def _delete(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(
            DeleteSchedule(_name(segment)),
            lambda answer: http.refusal(answer) if isinstance(answer, Refused) else http.Response(204),
        )

    def _run(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        if segment != b"run":
            return http.not_found(request)
        name = _name(http.segments_of(request.target)[2])
        return http.Call(RunSchedule(name), lambda answer: rendered(self._ids, request.access, answer, alone=True))

    # ── Documents in ────────────────────────────────────────────────────────────────────────────────────────

    def _definition(self, body: bytes) -> Schedule:
        """Raises `ProtocolError` for what cannot be a schedule."""
        document = http.decoded(_decode, body)
        _check(document)
        message = message_of(document)
        if len(message.body) > SCHEDULE_BODY_BYTES_MAX:
            raise ProtocolError(
                f"the message of a schedule has at most {SCHEDULE_BODY_BYTES_MAX} bytes, got {len(message.body)}"
            )
        return Schedule(
            queue=document.queue,
            topics=message.topics,
            create=self._settings if message.topics else None,
            body=message.body,
            content_type=message.content_type,
            object=message.object,
            key=message.key,
            headers=message.headers,
            priority=message.priority,
            delay_ns=message.delay_ns,
            expires_ns=message.expires_ns,
            cron=document.cron,
            time_zone=document.time_zone or "UTC",
            every_ns=nanos_of(document.every or 0),
            start=_start_of(document),
            catch_up=document.catch_up,
            paused=document.paused,
        )

    def _changed(self, schedule: Schedule, changes: dict[str, Raw]) -> Schedule:
        """The schedule with these fields of its document changed; null takes one away."""
        fields = _written(schedule)
        for name in changes:
            for other in _INSTEAD.get(name, ()):
                fields.pop(other, None)
        given = fields | changes
        fields = {name: value for name, value in given.items() if value != _NULL}
        if changes.keys() & {"message", "message_base64"}:
            return self._definition(_encode(fields))
        return replace(self._definition(_encode(fields)), body=schedule.body)

    # ── Documents out ───────────────────────────────────────────────────────────────────────────────────────

    def _render(self, answer: Answer) -> http.Response:
        if isinstance(answer, Refused):
            return http.refusal(answer)
        assert isinstance(answer, ScheduleDescription)
        return http.json_response(201 if answer.is_new else 200, self._view(answer))

    def _view(self, schedule: ScheduleDescription) -> dict[str, Any]:
        definition, place = schedule.definition, schedule.last_place
        return {
            "name": schedule.name,
            **_written(definition),
            "last_run": _moment(schedule.last_run),
            "next_run": None if definition.paused else _moment(schedule.next),
            "last_id": self._ids.make(*place).decode() if place else None,
            "runs": schedule.runs,
            "missed": schedule.missed,
            **({"last_error": schedule.error} if schedule.error else {}),
        }

    def _list(self, request: http.Request, _: bytes) -> http.Work:
        given = parameters(request, "offset", "limit")
        offset = number(given, "offset", 0, INT32_MAX, 0)
        limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
        return http.Work(self._listing(offset, limit))

    def _listing(self, offset: int, limit: int) -> http.Steps:
        """A page, part by part. It ends early if the documents are long."""
        written: list[bytes] = []
        size = 0
        while True:
            most = min(limit - len(written), SCHEDULES_PER_PART)
            answer = yield ListSchedules(offset + len(written), most)
            if isinstance(answer, Refused):
                return http.refusal(answer)
            assert isinstance(answer, ScheduleList)
            part = [_encode(self._view(schedule)) for schedule in answer.schedules]
            written += part
            size += sum(map(len, part))
            if len(part) < most or len(written) == limit or size > FETCH_BYTES_MAX // 2:
                return _page(answer.total, offset + len(written), written)


def _page(total: int, following: int, written: Iterable[bytes]) -> http.Response:
    head = _encode({"total": total, "next": following if following < total else None, "schedules": []})
    return http.Response(200, b"%b%b]}\n" % (head.removesuffix(b"]}"), b",".join(written)), http.JSON)


def _name(segment: bytes) -> str:
    return http.queue_name(segment, "a schedule name")


def _check(document: _Document) -> None:
    """Fields that go together, and fields that do not."""
    if bool(document.queue) == bool(document.topics):
        raise ProtocolError("give either queue or topics")
    if bool(document.cron) == bool(document.every):
        raise ProtocolError("give either cron or every")
    if document.time_zone and not document.cron:
        raise ProtocolError("time_zone goes with cron, not with every")
    if document.start != "" and not document.every:
        raise ProtocolError("start goes with every, not with cron")
    if document.sender or "timestamp" in message_fields(document):
        raise ProtocolError(
            "a schedule sets sender (schedule:<name>) and timestamp (the time of the tick) itself; leave them out"
        )
    if document.cron:
        parse_cron(document.cron)


def _start_of(document: _Document) -> Nanos | None:
    """To the microsecond, as documents show it."""
    return time_of(str(document.start), "start") // 1000 * 1000 if document.start != "" else None


def _written(schedule: Schedule) -> dict[str, Any]:
    """The fields of its document that a client can set."""
    if schedule.cron:
        timing: dict[str, Any] = {"cron": schedule.cron, "time_zone": schedule.time_zone}
    else:
        timing = {"every": seconds(schedule.every_ns)}
        timing |= {} if schedule.start is None else {"start": rfc3339(schedule.start).decode()}
    is_root = schedule.topics and schedule.object == schedule.topics[0].partition(".")[0]
    optional = {
        "object": None if is_root else schedule.object or None,
        "key": schedule.key.decode() or None,
        "priority": schedule.priority or None,
        "delay": None if schedule.delay_ns is None else seconds(schedule.delay_ns),
        "expires": None if schedule.expires_ns is None else seconds(schedule.expires_ns),
    }
    return {
        **({"queue": schedule.queue} if schedule.queue else {"topics": schedule.topics}),
        **message_field(schedule.body, schedule.content_type, raw=False),
        "mimeType": schedule.content_type,
        **((headers_by_name(schedule.headers) or {}) if schedule.headers else {}),
        **{name: value for name, value in optional.items() if value is not None},
        **timing,
        "catch_up": schedule.catch_up,
        "paused": schedule.paused,
    }


def _moment(time: Nanos) -> str | None:
    return rfc3339(time).decode() if 0 < time < NEVER_NS else None
