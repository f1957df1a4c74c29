"""The native API's first rooms: queues with all their settings, and the Event Log. `docs/native.md` has it in prose.

What a spectator asks for is understood here; reading the log is the business of the `Reading` it is handed to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from penstock.dialects.native.events import WORDS
from penstock.dialects.native.parameters import flag, moment, number, parameters
from penstock.dialects.native.queue_documents import ChannelDocument, QueueDocument, changed, listed, view
from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.http import (
    Awaited,
    Call,
    Request,
    Response,
    Routes,
    Work,
    bad_request,
    error_response,
    json_response,
    not_found,
    queue_name,
    refusal,
)
from penstock.errors import Fault, ProtocolError, Reason
from penstock.limits import INT32_MAX, NAME_NUMBER_MAX, RANGE_BYTES_DEFAULT, RANGE_BYTES_MAX
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.commands import Command, CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Stage

_OFFSET_MAX = (1 << 63) - 1


# ── What a spectator may ask ──────────────────────────────────────────────────────────────────────────────────


class From(NamedTuple):
    """An event: the offset of its record, and which of the record's letters it is."""

    offset: int
    part: int = 0


Format = Literal["json", "sse", "arrow"]


class EventQuery(Struct, frozen=True, kw_only=True):
    start: From | Literal["earliest", "latest"] = "earliest"
    since: Nanos = 0
    queues: frozenset[str] = frozenset()  # Empty, here and below: all.
    topics: tuple[str, ...] = ()  # Names, or beginnings of names with a star at the end.
    states: str = ""
    follow: bool = False
    limit: int | None = None
    bodies: bool = True
    raw: bool = False  # JSON as text too.
    format: Format = "json"


class RangeQuery(Struct, frozen=True):
    """Whole batches that hold the offsets from `start` up to, and without, `stop`."""

    start: int
    stop: int = _OFFSET_MAX
    bytes_max: int = RANGE_BYTES_DEFAULT


class Reading(Protocol):
    """What reads the log."""

    def events(self, query: EventQuery) -> Response | Awaited: ...
    def batches(self, query: RangeQuery) -> Response | Awaited: ...
    def describe(self, names_from: int) -> Response | Awaited: ...


class Submit(Protocol):
    def __call__(
        self, command: Command, reply: Callable[[Any], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None: ...


class Native:
    """Requests in, commands and queries out; answers in, responses out."""

    def __init__(self, submit: Submit, reading: Reading) -> None:
        self._submit = submit
        self._reading = reading
        self.routes: Routes = {
            (b"v1/queues", 2): {b"GET": self._list_queues, b"HEAD": self._list_queues},
            (b"v1/queues", 3): {
                b"GET": self._get_queue,
                b"HEAD": self._get_queue,
                b"PUT": self._put_queue,
                b"PATCH": self._patch_queue,
                b"DELETE": self._delete_queue,
            },
            (b"v1/events", 2): {b"GET": self._events, b"HEAD": self._events},
            (b"v1/log", 2): {b"GET": self._log, b"HEAD": self._log},
            (b"v1/log", 3): {b"GET": self._batches, b"HEAD": self._batches},
        }

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _list_queues(self, request: Request, _: bytes) -> Work:
        return listed(request, "queues", view)

    def _get_queue(self, _: Request, segment: bytes) -> Call:
        return Call(DescribeQueue(queue_name(segment)), lambda answer: _tell_queue(answer, 200))

    def _delete_queue(self, _: Request, segment: bytes) -> Call:
        return Call(
            DeleteQueue(queue_name(segment)),
            lambda answer: refusal(answer) if isinstance(answer, Refused) else Response(204),
        )

    def _put_queue(self, request: Request, segment: bytes) -> Awaited:
        """Make a queue. One that is there with just these settings is as good as made."""
        name = queue_name(segment)
        wanted = changed(QueueSettings(), request.body or b"{}")

        def look(respond: Callable[[Response], None]) -> None:
            def act(found: Answer) -> None:
                if isinstance(found, QueueDescription):
                    if found.settings == wanted:
                        self._submit(DescribeQueue(name), lambda answer: respond(_tell_queue(answer, 200)))
                    else:
                        why = "it is a channel" if found.settings.topics else "its settings differ"
                        respond(error_response(Reason.QUEUE_EXISTS, f"{name}; {why}"))
                else:
                    self._submit(CreateQueue(name, wanted), lambda answer: respond(_tell_queue(answer, 201)))

            self._submit(DescribeQueue(name), act, Stage.READY)

        return Awaited(look)

    def _patch_queue(self, request: Request, segment: bytes) -> Awaited:
        """Looked at and changed in one turn, so that nobody else's change is undone. What all queues have can be
        changed, by the rules of what is found."""
        name = queue_name(segment)
        changed(QueueSettings(), request.body)

        def look(respond: Callable[[Response], None]) -> None:
            def act(found: Answer) -> None:
                if not isinstance(found, QueueDescription):
                    respond(_tell_queue(found, 200))
                    return
                rules = ChannelDocument if found.settings.topics else QueueDocument
                try:
                    command = UpdateQueue(name, changed(found.settings, request.body, rules))
                except ProtocolError as error:
                    respond(bad_request(error))
                    return
                self._submit(command, lambda answer: respond(_tell_queue(answer, 200)))

            self._submit(DescribeQueue(name), act, Stage.READY)

        return Awaited(look)

    # ── The Event Log ───────────────────────────────────────────────────────────────────────────────────────

    def _events(self, request: Request, _: bytes) -> Response | Awaited:
        chosen = _format(request.headers.get(b"accept", b""))
        if chosen is None:
            return error_response(Fault.NOT_ACCEPTABLE, ", ".join(_MEDIA_TYPES))
        query = _event_query(request, chosen)
        return self._reading.events(query)

    def _log(self, request: Request, _: bytes) -> Response | Awaited:
        given = parameters(request, "names_from")
        return self._reading.describe(number(given, "names_from", 0, NAME_NUMBER_MAX + 1, 0))

    def _batches(self, request: Request, segment: bytes) -> Response | Awaited:
        if segment != b"batches":
            return not_found(request)
        given = parameters(request, "from", "to", "max_bytes")
        if "from" not in given:
            raise ProtocolError("from is missing: the offset to begin with")
        query = RangeQuery(
            number(given, "from", 0, _OFFSET_MAX, 0),
            number(given, "to", 0, _OFFSET_MAX, _OFFSET_MAX),
            number(given, "max_bytes", 1, RANGE_BYTES_MAX, RANGE_BYTES_DEFAULT),
        )
        if query.stop < query.start:
            raise ProtocolError("to is before from")
        return self._reading.batches(query)


def _tell_queue(answer: Answer, status: int) -> Response:
    if isinstance(answer, Refused):
        return refusal(answer)
    assert isinstance(answer, QueueDescription)
    return json_response(status, view(answer))


# ── What is asked of the Event Log ──────────────────────────────────────────────────────────────────────────────


def _event_query(request: Request, chosen: Format) -> EventQuery:
    given = parameters(request, "from", "since", "queue", "topic", "state", "follow", "limit", "bodies", "raw")
    start: From | Literal["earliest", "latest"] = _from(given["from"][0]) if "from" in given else "earliest"
    last_seen = request.headers.get(b"last-event-id", b"")
    if last_seen:
        start = _from(last_seen.decode("latin-1"), "Last-Event-ID")
    return EventQuery(
        start=start,
        since=moment(given, "since", 0),
        queues=frozenset(given.get("queue", ())),
        topics=tuple(given.get("topic", ())),
        states=_states(given["state"][0]) if "state" in given else "",
        follow=flag(given, "follow", default=False),
        limit=number(given, "limit", 1, INT32_MAX, 1) if "limit" in given else None,
        bodies=flag(given, "bodies", default=True),
        raw=flag(given, "raw", default=False),
        format=chosen,
    )


def _from(text: str, what: str = "from") -> From | Literal["earliest", "latest"]:
    if text == "earliest":
        return "earliest"
    if text in ("latest", "now"):
        return "latest"
    match = re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]))?", text)
    if match is None:
        raise ProtocolError(f"{what} is an offset, the next of an event, earliest, latest or now")
    return From(int(match[1]), int(match[2] or 0))


def _states(text: str) -> str:
    if not text or not set(text) <= WORDS.keys():
        raise ProtocolError(f"state is one or more of the letters {''.join(WORDS)}")
    return text


_MEDIA_TYPES: dict[str, Format] = {
    "application/x-ndjson": "json",
    "text/event-stream": "sse",
    "application/vnd.apache.arrow.stream": "arrow",
}


def _format(accept: bytes) -> Format | None:
    """The form that a client likes best; of those that it likes as much, the first of ours."""
    best, best_weight = None, 0.0
    ranges = (
        [_media_range(part) for part in accept.decode("latin-1").split(",")] if accept.strip() else [("*/*", 1.0)]
    )
    weights = dict(ranges)
    for media_type, form in _MEDIA_TYPES.items():
        wildcard = media_type.partition("/")[0] + "/*"
        weight = next((weights[name] for name in (media_type, wildcard, "*/*") if name in weights), 0.0)
        if weight > best_weight:
            best, best_weight = form, weight
    return best


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = [piece.strip().lower() for piece in part.split(";")]
    for parameter in parameters:
        if re.fullmatch(r"q=[01](\.[0-9]{0,3})?", parameter):
            return name, float(parameter[2:])
    return name, 1.0
