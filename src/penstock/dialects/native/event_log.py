"""The Event Log in the native API: what a reader asks for, and the form of the answers (`docs/native/events.md`)."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from penstock.dialects.native.event_text import EventStreamText
from penstock.dialects.native.parameters import (
    flag,
    moment,
    number,
    once,
    one_shard,
    parameters,
    shard_in,
)
from penstock.dialects.wire import http
from penstock.dialects.wire.flows import Rendered
from penstock.errors import Fault, ProtocolError
from penstock.limits import (
    INT32_MAX,
    NAME_NUMBER_MAX,
    NEVER_NS,
    RANGE_BYTES_DEFAULT,
    RANGE_BYTES_MAX,
    TEXT_BYTES_MAX,
)
from penstock.model.event_log import (
    OFFSET_MAX,
    DescribeLog,
    From,
    LogDescription,
    LogDescriptions,
    ReadEvents,
    ReadLog,
)
from penstock.model.streams import Flow
from penstock.model.times import rfc3339_nanos
from penstock.model.traces import WORDS

_is_id = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_BATCHES = b"application/vnd.penstock.log"
_WORDS: dict[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest", "now": "latest"}
_EACH = _WORDS | {"0": "earliest"}  # What names a place in every shard.
Format = Literal["json", "sse", "arrow"]


class EventLog:
    """Requests in, questions out; streams and descriptions in, responses out."""

    def __init__(self, asked: http.Asked, shards: int = 1) -> None:
        """`shards`: how many the store has."""
        self._asked = asked
        self._shards = shards
        self.routes: http.Routes = {
            (b"v1/events", 2): {b"GET": self._events, b"HEAD": self._events},
            (b"v1/log", 2): {b"GET": self._log, b"HEAD": self._log},
            (b"v1/log", 3): {b"GET": self._batches, b"HEAD": self._batches},
        }

    def _events(self, request: http.Request, _: bytes) -> http.Response | http.Awaited:
        chosen = format_of(request.headers.get(b"accept", b""))
        if chosen is None:
            return http.error_response(Fault.NOT_ACCEPTABLE, ", ".join(_MEDIA_TYPES))
        query = self._event_query(request, chosen)
        return self._asked(request, query, partial(self._streamed, query, chosen))

    def _log(self, request: http.Request, _: bytes) -> http.Awaited:
        given = parameters(request, "names_from", "shard")
        shard, first = shard_in(given, self._shards), number(given, "names_from", 0, NAME_NUMBER_MAX + 1, 0)
        return self._asked(request, DescribeLog(first, shard), _described)

    def _batches(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment != b"batches":
            return http.not_found(request)
        given = parameters(request, "from", "to", "max_bytes", "shard")
        shard = one_shard(given, self._shards)
        if "from" not in given:
            raise ProtocolError("from is missing; give the first offset")
        query = ReadLog(
            number(given, "from", 0, OFFSET_MAX, 0),
            number(given, "to", 0, OFFSET_MAX, OFFSET_MAX),
            number(given, "max_bytes", 1, RANGE_BYTES_MAX, RANGE_BYTES_DEFAULT),
            shard,
        )
        if query.stop < query.start:
            raise ProtocolError(f"to ({query.stop}) is before from ({query.start})")
        return self._asked(request, query, _ranged)

    def _event_query(self, request: http.Request, chosen: Format) -> ReadEvents:
        times = ("from", "since", "until")
        chosen_by = ("caused_by", "text", "queue", "topic", "state", "shard")
        given = parameters(request, *times, *chosen_by, "follow", "limit", "bodies", "raw")
        query = ReadEvents(
            shard=shard_in(given, self._shards),
            since=moment(given, "since", 0),
            until=moment(given, "until", NEVER_NS),
            caused_by=_id(given["caused_by"][0]) if "caused_by" in given else "",
            text=once(given, "text", TEXT_BYTES_MAX).encode(),
            queues=frozenset(given.get("queue", ())),
            topics=tuple(given.get("topic", ())),
            states=_states(given["state"][0]) if "state" in given else "",
            follow=flag(given, "follow", default=False),
            limit=number(given, "limit", 1, INT32_MAX, 1) if "limit" in given else None,
            bodies=flag(given, "bodies", default=True),
            raw=flag(given, "raw", default=False),
            form="arrow" if chosen == "arrow" else "text",
        )
        if "from" in given:
            query = self._begun(query, given["from"][0], "from")
        if last_seen := request.headers.get(b"last-event-id", b""):
            query = self._begun(query, last_seen.decode("latin-1"), "Last-Event-ID")
        return query

    def _begun(self, query: ReadEvents, text: str, what: str) -> ReadEvents:
        """Where the reader begins, in its shard or in all of them."""
        if query.shard is None:
            starts = () if text in _EACH else _starts(text, what, self._shards)
            return replace(query, start=_EACH.get(text, "earliest"), starts=starts)
        if self._shards == 1:
            text = text.removeprefix("0:")  # A node with one shard wrote places like those of several.
        return replace(query, start=_WORDS.get(text) or _from(text, what))

    def _streamed(self, query: ReadEvents, chosen: Format, flow: Flow) -> http.Stream:
        headers = b"Content-Type: " + _CONTENT_TYPES[chosen] + b"\r\nCache-Control: no-store\r\n"
        source = flow.source
        if chosen == "sse":
            headers += b"X-Accel-Buffering: no\r\n"  # Asks a proxy in front to pass events on as they come.
        if chosen != "arrow":
            shards = self._shards if query.shard is None else 1
            source = Rendered(source, EventStreamText(sent_events=chosen == "sse", shards=shards))
        return http.Stream(200, headers, source, endless=query.follow)


def _ranged(flow: Flow) -> http.Stream:
    found = flow.head
    headers = (
        b"Content-Type: %b\r\nCache-Control: no-store\r\nX-Penstock-First-Offset: %d\r\n"
        b"X-Penstock-Next-Offset: %d\r\nX-Penstock-End-Offset: %d\r\n"
    ) % (_BATCHES, found.first, found.next, found.end)
    return http.Stream(200, headers, flow.source, length=found.bytes)


def _described(found: LogDescription | LogDescriptions) -> http.Response:
    if isinstance(found, LogDescription):
        return http.json_response(200, _document(found))
    logs = [_document(log) for log in found.logs]
    return http.json_response(200, {"shards": len(logs), "logs": logs}, b"Cache-Control: no-store\r\n")


def _document(log: LogDescription) -> dict[str, Any]:
    return {
        "log": log.log,
        "ancestors": [{"log": each, "end": end} for each, end in log.ancestors],
        "shard": log.shard,
        "shards": log.shards,
        "format": log.format,
        "earliest": log.earliest,
        "end": log.end,
        "bytes": log.bytes,
        "segments": [{"first": first, "created": rfc3339_nanos(created).decode()} for first, created in log.parts],
        "names_from": log.names_from,
        "names_to": log.names_to,
        "texts": log.texts,
        "queues": log.queues,
    }


def _from(text: str, what: str = "from") -> From:
    match = re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]))?", text)
    if match is None:
        raise ProtocolError(f"{what} must be an offset, the next of an event, earliest, latest or now")
    return From(int(match[1]), int(match[2] or 0))


def _starts(text: str, what: str, shards: int) -> tuple[From, ...]:
    """A place in each shard."""
    found = dict(re.findall(r"([0-9]{1,4}):([0-9]{1,18}(?:\.[0-9])?)", text))
    if ",".join([f"{shard}:{found.get(str(shard))}" for shard in range(shards)]) != text:
        raise ProtocolError(
            f"{what} must be the next of an event, such as 0:17,1:4 with an offset for each of {shards} shards, or"
            " earliest, latest or now, or 0 for the beginning of every shard; another number needs shard"
        )
    return tuple([_from(found[str(shard)]) for shard in range(shards)])


def _id(text: str) -> str:
    if not _is_id(text):
        raise ProtocolError("caused_by must be the id of a message")
    return text.lower()


def _states(text: str) -> str:
    if not text or not set(text) <= WORDS.keys():
        raise ProtocolError(f"state must be one or more of the letters {''.join(WORDS)}")
    return text


_MEDIA_TYPES: dict[str, Format] = {
    "application/x-ndjson": "json",
    "text/event-stream": "sse",
    "application/vnd.apache.arrow.stream": "arrow",
}
_CONTENT_TYPES = {form: media_type.encode() for media_type, form in _MEDIA_TYPES.items()}


def format_of(accept: bytes) -> Format | None:
    """The format that a client prefers; of equally good ones, our first."""
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
