"""Search, messages, schedules and redrives in the native API. `docs/native/messages.md` has them in prose.

What is asked for is understood here. Services look through the queues and the log.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta, Struct, field

from penstock.dialects.native.jobs import Job, JobRoutes, Jobs
from penstock.dialects.native.message_document import Traced, held_document, time_text, traced_document
from penstock.dialects.native.parameters import Given, flag, moment, number, once, parameters, time_of
from penstock.dialects.native.wait import Waiting
from penstock.dialects.wire import http
from penstock.dialects.wire.pages import Soon, page
from penstock.dialects.wire.subjects import Subject, names_in
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import (
    INT32_MAX,
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    NEVER_NS,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
    TEXT_BYTES_MAX,
)
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer, Held, Refused, ScheduledAt
from penstock.model.client import Client
from penstock.model.commands import Cancel, Command, Criteria, Delete, ListScheduled, LookUp, Redrive, Reschedule
from penstock.model.commands import Search as SearchCommand
from penstock.model.values import Place

CRITERIA = (
    *("queue", "topic", "state", "object", "key", "since", "until"),
    *("ready_since", "ready_until", "origin", "reason", "text"),
)
_TIMES = frozenset(("since", "until", "ready_since", "ready_until"))
STATES = ("ready", "delayed", "leased", "kept", "damaged", "Q", "R", "F", "B")

MERGED = b"penstock-merged"
"""A header field of a worker that merges the pages of several shards: each message is shown with its own cursor."""
CursorOf = Callable[[Held], tuple[int, ...]]


class Page(NamedTuple):
    """Messages with the names of their queues, and the place after which the next page begins."""

    messages: Sequence[tuple[Held, str]]
    after: tuple[int, ...] | None


class Searching(Protocol):
    """The service that looks through the queues."""

    async def search(self, criteria: Criteria, after: tuple[int, int], limit: int, *, bodies: bool) -> Page: ...

    async def scheduled(self, wanted: ListScheduled, *, bodies: bool) -> Page: ...


class Tracing(Protocol):
    """The service that reads everything that was logged about a message."""

    async def message(self, place: Place, render: Callable[[Traced], http.Response]) -> http.Response:
        """Raises `RequestError`. `render` is called in a thread."""


class Order(Struct, frozen=True):
    """A redrive to carry out. The criteria name the queue that it takes messages from."""

    criteria: Criteria
    to: str  # Empty: each back to where it came from.
    rate: float | None  # Messages a second, at most.
    dry_run: bool
    filter: dict[str, str | float] = {}  # The criteria as they were given.


class Redriving(Jobs, Protocol):
    """The service that moves messages, however long that takes."""

    async def redrive(self, client: Client, order: Order) -> Job: ...


class Search:
    """Requests in, criteria out; messages in, responses out."""

    def __init__(
        self,
        searching: Searching,
        tracing: Tracing,
        redriving: Redriving,
        ids: MessageIds,
        later: http.Later,
        soon: Soon,
        waiting: Waiting,
        refusal: http.Refusal,
    ) -> None:
        self._refusal = refusal
        self._waiting = waiting
        self._later = later
        self._soon = soon
        self._searching = searching
        self._tracing = tracing
        self._redriving = redriving
        self._redrives = JobRoutes("redrive", "redrives", redriving)
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
        limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
        queue, sequence = _cursor(given, 2)
        bodies = flag(given, "bodies", default=True)
        raw = flag(given, "raw", default=False)
        criteria = criteria_of(given, request.access)
        http.check(self._refusal(request, SearchCommand(criteria)))
        found = self._searching.search(criteria, (queue, sequence), limit, bodies=bodies)
        return self._later(self._page(found, request, _place, bodies=bodies, raw=raw))

    def _message(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        given = parameters(request, "raw", "until", "wait")
        render = partial(traced_document, ids=self._ids, access=request.access, raw=flag(given, "raw", default=False))
        place = self._ids.find(segment)
        if place is None:
            return http.error_response(Reason.NO_MESSAGE)
        http.check(self._refusal(request, LookUp(*place)))

        def document() -> http.Awaited:
            return self._later(self._tracing.message(place, lambda traced: http.json_response(200, render(traced))))

        return self._waiting.before(place, given, document) if "until" in given or "wait" in given else document()

    def _delete(self, _: http.Request, segment: bytes) -> http.Response | http.Call:
        place = self._ids.find(segment)
        return _settled(place and Delete(*place), lambda _: http.Response(204))

    def _scheduled(self, request: http.Request, _: bytes) -> http.Awaited:
        given = parameters(request, "queue", "limit", "cursor", "bodies", "raw")
        limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
        time, queue, sequence = _cursor(given, 3)
        bodies = flag(given, "bodies", default=True)
        raw = flag(given, "raw", default=False)
        wanted = ListScheduled(_queue(given), (time, queue, sequence), limit=limit, access=request.access)
        http.check(self._refusal(request, wanted))
        found = self._searching.scheduled(wanted, bodies=bodies)
        return self._later(self._page(found, request, _moment, bodies=bodies, raw=raw))

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
        http.check(self._refusal(request, Redrive(source, (), to)))
        criteria = msgspec.structs.replace(criteria_of(_as_given(order.filter)), queue=source)
        begun = self._redriving.redrive(request, Order(criteria, to, order.rate, order.dry_run, order.filter))
        return self._later(self._redrives.begun(begun))

    async def _page(
        self, found: Awaitable[Page], request: http.Request, cursor_of: CursorOf, *, bodies: bool, raw: bool
    ) -> http.Response | http.Stream:
        messages, after = await found
        render = partial(held_document, ids=self._ids, access=request.access, bodies=bodies, raw=raw)
        if MERGED in request.headers:
            documents = (render(message, queue) | {"cursor": cursor_of(message)} for message, queue in messages)
        else:
            documents = (render(message, queue) for message, queue in messages)
        size = sum([message.body_bytes for message, _ in messages]) if bodies else 0
        tail = b'],"next":' + msgspec.json.encode(after and cursor_text(after)) + b"}"
        return page(documents, size, self._soon, b'{"messages":[', tail)


def criteria_of(given: Given, access: Access = EVERYTHING) -> Criteria:
    """What a search, or the filter of a redrive, asks for. Raises `ProtocolError`."""
    return Criteria(
        queue=_queue(given),
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


def _states(given: Given) -> frozenset[str]:
    if "state" not in given:
        return frozenset()
    states = frozenset(given["state"][0].split(","))
    if not states <= set(STATES):
        raise ProtocolError(f"state must be one or more of {', '.join(STATES)}, separated by commas")
    return states


def _cursor(given: Given, parts: int) -> tuple[int, ...]:
    return read_cursor(given["cursor"][0], parts) if "cursor" in given else (0,) * parts


def read_cursor(written: str, parts: int) -> tuple[int, ...]:
    """Raises `ProtocolError` for what `cursor_text` does not write."""
    try:
        text = base64.urlsafe_b64decode(written.encode("ascii")).decode("ascii")
    except ValueError:
        text = ""
    if not re.fullmatch(rf"[0-9]{{1,19}}(\.[0-9]{{1,19}}){{{parts - 1}}}", text):
        raise ProtocolError("cursor must be the next of an earlier page")
    cursor = tuple(int(part) for part in text.split("."))
    if max(cursor) > NEVER_NS:
        raise ProtocolError("cursor must be the next of an earlier page")
    return cursor


def cursor_text(after: tuple[int, ...]) -> str:
    return base64.urlsafe_b64encode(".".join(map(str, after)).encode()).decode()


def _place(message: Held) -> tuple[int, ...]:
    return message.queue, message.sequence


def _moment(message: Held) -> tuple[int, ...]:
    return message.visible_at, message.queue, message.sequence


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
