"""Search, messages, schedules and redrives in the native API. `docs/native/messages.md` has them in prose.

What is asked for is understood here. Services look through the queues and the log.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from penstock.dialects.native.jobs import JobRoutes
from penstock.dialects.native.message_document import held_document, reported, time_text
from penstock.dialects.native.parameters import Given, flag, moment, number, once, parameters, time_of
from penstock.dialects.native.wait import Waiting
from penstock.dialects.wire import http
from penstock.dialects.wire.pages import Soon, page
from penstock.dialects.wire.subjects import Subject, names_in
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds, is_uuid
from penstock.limits import (
    INT32_MAX,
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    NEVER_NS,
    SEARCH_IDS_MAX,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
    TEXT_BYTES_MAX,
)
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer, Refused, ScheduledAt
from penstock.model.commands import Cancel, Command, Criteria, Delete, Redrive, Reschedule
from penstock.model.jobs import Order, StartRedrive
from penstock.model.message_reports import TraceMessage
from penstock.model.searches import Cursor, Messages, ReadScheduled, SearchMessages, WrongCursor
from penstock.model.values import Place

CRITERIA = (
    *("queue", "id", "topic", "state", "object", "key", "since", "until"),
    *("ready_since", "ready_until", "origin", "reason", "text"),
)
_TIMES = frozenset(("since", "until", "ready_since", "ready_until"))
STATES = ("ready", "delayed", "leased", "kept", "damaged", "Q", "R", "F", "B")


class Search:
    """Requests in, criteria out; messages in, responses out."""

    def __init__(self, ids: MessageIds, soon: Soon, waiting: Waiting, asked: http.Asked) -> None:
        self._waiting = waiting
        self._asked = asked
        self._soon = soon
        self._redrives = JobRoutes("redrive", "redrives", asked)
        self._ids = ids
        self.routes: http.Routes = {
            (b"v1/search", 2): {b"GET": self._search, b"HEAD": self._search},
            (b"v1/messages", 3): {b"GET": self._message, b"HEAD": self._message, b"DELETE": self._delete},
            (b"v1/schedule", 2): {b"GET": self._scheduled, b"HEAD": self._scheduled},
            (b"v1/schedule", 3): {b"PATCH": self._reschedule, b"DELETE": self._cancel},
            **self._redrives.routes,
        }
        self.routes[b"v1/redrive", 2][b"POST"] = self._redrive

    def _search(self, request: http.Request, _: bytes) -> http.Awaited:
        given = parameters(request, *CRITERIA, "limit", "cursor", "bodies", "raw")
        criteria = criteria_of(given, self._ids, request.access)
        after, afters = _cursor(given, 2)
        query = SearchMessages(criteria.queue, after, afters, *_size(given), criteria)
        return self._paged(request, query, raw=flag(given, "raw", default=False))

    def _message(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        given = parameters(request, "raw", "until", "wait")
        render = partial(reported, ids=self._ids, soon=self._soon, raw=flag(given, "raw", default=False))
        place = self._ids.find(segment)
        if place is None:
            return http.error_response(Reason.NO_MESSAGE)

        def document() -> http.Awaited:
            return self._asked(request, TraceMessage(place), render)

        return (
            self._waiting.before(request, place, given, document)
            if "until" in given or "wait" in given
            else document()
        )

    def _delete(self, _: http.Request, segment: bytes) -> http.Response | http.Call:
        place = self._ids.find(segment)
        return _settled(place and Delete(*place), lambda _: http.Response(204))

    def _scheduled(self, request: http.Request, _: bytes) -> http.Awaited:
        given = parameters(request, "queue", "limit", "cursor", "bodies", "raw")
        query = ReadScheduled(_queue(given), *_cursor(given, 3), *_size(given))
        return self._paged(request, query, raw=flag(given, "raw", default=False))

    def _reschedule(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        place = self._ids.find(segment)
        nanos = time_of(_time_text(http.decoded(_decode_move, request.body).visible_at), "visible_at")

        def render(answer: Answer) -> http.Response:
            assert isinstance(answer, ScheduledAt)
            document = {"id": segment.decode("latin-1").lower(), "visible_at": time_text(answer.visible_at)}
            return http.json_response(200, document)

        return _settled(place and Reschedule(*place, nanos), render)

    def _cancel(self, _: http.Request, segment: bytes) -> http.Response | http.Call:
        place = self._ids.find(segment)
        return _settled(place and Cancel(*place), lambda _: http.Response(204))

    def _redrive(self, request: http.Request, _: bytes) -> http.Response | http.Awaited:
        order = http.decoded(_decode_redrive, request.body)
        source, to = http.checked_name(order.source.encode()), order.to and http.checked_name(order.to.encode())
        if source == to:
            raise ProtocolError(f"to and from are the same queue ({to}); leave to out, or name another queue")
        criteria = msgspec.structs.replace(criteria_of(_as_given(order.filter), self._ids), queue=source)
        wanted = Order(criteria, to, order.rate, order.dry_run, order.filter)
        return self._redrives.start(request, StartRedrive(wanted))

    def _paged(self, request: http.Request, query: SearchMessages | ReadScheduled, *, raw: bool) -> http.Awaited:
        document = partial(held_document, ids=self._ids, access=request.access, bodies=query.bodies, raw=raw)

        def shown(found: Messages | WrongCursor) -> http.Response | http.Stream:
            if isinstance(found, WrongCursor):
                return http.bad_request(ProtocolError(_WRONG_CURSOR))
            documents = (document(message, queue) for message, queue in found.messages)
            size = sum([message.body_bytes for message, _ in found.messages]) if query.bodies else 0
            tail = b'],"next":' + msgspec.json.encode(_next(found)) + b"}"
            return page(documents, size, self._soon, b'{"messages":[', tail)

        return self._asked(request, query, shown)


def criteria_of(given: Given, ids: MessageIds, access: Access = EVERYTHING) -> Criteria:
    """What a search, or the filter of a redrive, asks for. Raises `ProtocolError`."""
    return Criteria(
        queue=_queue(given),
        ids=_places(given, ids),
        topic=once(given, "topic", NAME_BYTES_MAX),
        states=_states(given),
        object=once(given, "object", NAME_BYTES_MAX),
        since=moment(given, "since", 0),
        until=moment(given, "until", NEVER_NS),
        ready_since=moment(given, "ready_since", 0),
        ready_until=moment(given, "ready_until", NEVER_NS),
        origin=once(given, "origin", NAME_BYTES_MAX),
        reason=once(given, "reason", TEXT_BYTES_MAX),
        key=once(given, "key", KEY_BYTES_MAX).encode() if "key" in given else None,
        text=once(given, "text", TEXT_BYTES_MAX).encode(),
        access=access,
    )


def _queue(given: Given) -> str:
    return http.checked_name(once(given, "queue", NAME_BYTES_MAX).encode()) if "queue" in given else ""


def _places(given: Given, ids: MessageIds) -> frozenset[Place] | None:
    """The places in ids that are separated by commas. One that was never given out is that of no message."""
    if "id" not in given:
        return None
    texts = given["id"][0].encode("latin-1", "replace").split(b",")
    if len(given["id"]) > 1 or len(texts) > SEARCH_IDS_MAX or not all(map(is_uuid, texts)):
        raise ProtocolError(f"id must be one to {SEARCH_IDS_MAX} ids of messages, separated by commas")
    return frozenset(filter(None, map(ids.find, texts)))


def _states(given: Given) -> frozenset[str]:
    if "state" not in given:
        return frozenset()
    states = frozenset(given["state"][0].split(","))
    if not states <= set(STATES):
        raise ProtocolError(f"state must be one or more of {', '.join(STATES)}, separated by commas")
    return states


def _size(given: Given) -> tuple[int, bool]:
    limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
    return limit, flag(given, "bodies", default=True)


_WRONG_CURSOR = "cursor must be the next of an earlier page"
_of_shard = re.compile(r"([0-9]{1,4}):(.*)").fullmatch


def _cursor(given: Given, parts: int) -> tuple[Cursor, dict[int, Cursor] | None]:
    """Where a page begins: in one shard, or in each of those that have more (`0:…,2:…`). Raises `ProtocolError`."""
    written = given["cursor"][0] if "cursor" in given else ""
    if ":" not in written:
        return read_cursor(written, parts) if "cursor" in given else (), None
    found: dict[int, Cursor] = {}
    for each in written.split(","):
        match = _of_shard(each)
        if match is None or int(match[1]) in found:
            raise ProtocolError(_WRONG_CURSOR)
        found[int(match[1])] = read_cursor(match[2], parts) if match[2] else ()
    return (), found


def read_cursor(written: str, parts: int) -> Cursor:
    """Raises `ProtocolError` for what `cursor_text` does not write."""
    try:
        text = base64.urlsafe_b64decode(written.encode("ascii")).decode("ascii")
    except ValueError:
        text = ""
    if not re.fullmatch(rf"[0-9]{{1,19}}(\.[0-9]{{1,19}}){{{parts - 1}}}", text):
        raise ProtocolError(_WRONG_CURSOR)
    cursor = tuple(int(part) for part in text.split("."))
    if max(cursor) > NEVER_NS:
        raise ProtocolError(_WRONG_CURSOR)
    return cursor


def _next(found: Messages) -> str | None:
    if found.afters is None:
        return cursor_text(found.after) if found.after else None
    return ",".join([f"{shard}:{cursor_text(after) if after else ''}" for shard, after in found.afters.items()])


def cursor_text(after: tuple[int, ...]) -> str:
    return base64.urlsafe_b64encode(".".join(map(str, after)).encode()).decode()


# ── Changes ───────────────────────────────────────────────────────────────────────────────────────────────────


_Time = str | Annotated[float, Meta(ge=0, le=INT32_MAX * 4)]


class _Move(Struct, forbid_unknown_fields=True):
    visible_at: _Time


class _Redrive(Struct, forbid_unknown_fields=True):
    source: str = field(name="from")
    to: str = ""
    filter: dict[str, _Time] = {}
    rate: Annotated[float, Meta(gt=0, le=INT32_MAX)] | None = None
    dry_run: bool = False


_decode_move = msgspec.json.Decoder(_Move).decode
_decode_redrive = msgspec.json.Decoder(_Redrive).decode


class _Moved(Struct):
    source: str = field(name="from")
    to: str = ""


def redriven(request: http.Request) -> Subject:
    """The queues of a redrive that is wrong in something else."""
    named = names_in(request, _Moved)
    return Redrive(named.source, (), named.to) if named else None


def _time_text(value: str | float) -> str:
    """A time in JSON, as it is written in a parameter."""
    return value if isinstance(value, str) else f"{value:.9f}"


def _as_given(criteria: dict[str, str | float]) -> Given:
    """A filter in JSON, as parameters."""
    known = CRITERIA[1:]
    if unknown := criteria.keys() - set(known):
        raise ProtocolError(f"unknown filter {min(unknown)!r}; the filters are {', '.join(known)}")
    for name in criteria.keys() - _TIMES:
        if not isinstance(criteria[name], str):
            raise ProtocolError(f"{name} must be text")
    return {name: [_time_text(value)] for name, value in criteria.items()}


def _settled(command: Command | None, render: Callable[[Answer], http.Response]) -> http.Response | http.Call:
    if command is None:
        return http.error_response(Reason.NO_MESSAGE)
    return http.Call(command, lambda answer: http.refusal(answer) if isinstance(answer, Refused) else render(answer))
