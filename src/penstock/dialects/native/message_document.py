"""The message document: everything that is known about a message, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from penstock.dialects.native.event_text import EventWriter, headers_by_name
from penstock.dialects.wire.http import Response, Stream
from penstock.dialects.wire.json_bodies import message_field, text_or_base64
from penstock.dialects.wire.pages import Soon, page
from penstock.ids import MessageIds
from penstock.limits import NEVER_NS
from penstock.model.access import Access
from penstock.model.answers import Held
from penstock.model.letters import SETTLES
from penstock.model.message_reports import Content, MessageReport, Standing, Taking
from penstock.model.times import rfc3339_nanos
from penstock.model.traces import STATUS, is_queued
from penstock.model.values import Nanos

Document = dict[str, Any]


def held_document(message: Held, queue: str, ids: MessageIds, access: Access, *, bodies: bool, raw: bool) -> Document:
    """A message as its queue holds it. Only its events say who had it, and when."""
    status = STATUS[message.state]
    document: Document = {
        "id": ids.make(*message.id).decode(),
        "queue": queue,
        "sequence": message.sequence,
        "status": status,
        "state": _letter(status, message.receives),
        "queued": is_queued(message),
        **payload(message.topics, message.object, message.content_type, message.sender, message.priority),
        "created": time_text(message.created),
        "visible_at": time_text(message.visible_at),
        "expires_at": time_text(message.expires_at),
        "receives": message.receives,
        "consumer": message.consumer or None,
    }
    if message.origin and access.reads(message.origin):
        document["origin"] = message.origin
    if message.reason:
        document["reason"] = message.reason
    return document | _held_parts(message, raw=raw) if bodies else document


def _held_parts(message: Held, *, raw: bool) -> Document:
    """Nothing, if the bytes of the message are damaged."""
    if STATUS[message.state] == "damaged":
        return {}
    return _parts(message.body, message.content_type, message.key, message.headers, raw=raw)


def _letter(status: str, receives: int) -> str | None:
    """What happened to a message last. For a kept message, only its events say that."""
    if status == "kept":
        return None
    if status == "damaged":
        return "B"
    return "F" if status == "leased" else "R" if receives else "Q"


def payload(topics: str, about: str, content_type: str, sender: str, priority: int) -> Document:
    """What a producer sent with a message, except its body."""
    names = topics.split("\n") if topics else []
    return {
        "topics": names,
        "topicCount": len(names),
        "object": about or None,
        "mimeType": content_type or None,
        "sender": sender or None,
        "priority": priority,
    }


def time_text(time: Nanos | None) -> str | None:
    return None if time is None or time == NEVER_NS else rfc3339_nanos(time).decode()


# ── A message with its story ──────────────────────────────────────────────────────────────────────────────────


def reported(report: MessageReport, ids: MessageIds, soon: Soon, *, raw: bool) -> Response | Stream:
    """Everything that is known about a message."""
    writer = EventWriter(ids, report.names.get, report.queues.get, raw=raw)
    content = report.content
    size = len(content.body or b"") if content else 0
    size += sum([_EVENT_BYTES + len(event.body or b"") + len(event.result or b"") for event in report.events])
    head = msgspec.json.encode(_beginning(report, ids, raw=raw)).removesuffix(b"}") + b',"events":['
    return page(map(Raw, writer.documents(report.events)), size, soon, head, b"]}")


_EVENT_BYTES = 256  # About as much as the text of an event has beside the bodies.


def _beginning(report: MessageReport, ids: MessageIds, *, raw: bool) -> Document:
    """All of it but the events."""
    return {
        "id": ids.make(*report.place).decode(),
        "queue": report.queue,
        "sequence": report.place[1],
        "state": report.letter,
        "status": report.status,
        "queued": report.is_queued,
        "delivered": report.is_delivered,
        "success": report.is_success,
        "archived": report.is_archived,
        "confirmed": report.is_success,
        "confirmedCount": report.confirmed,
        **(_content(report.content, raw=raw) if report.content else {}),
        "created": time_text(report.created),
        "modified": time_text(report.modified),
        "processed": time_text(report.processed),
        "completed": time_text(report.completed),
        "failed": time_text(report.failed),
        "timestamps": {"consumed": time_text(report.consumed)},  # The name is that of the deliveries.
        "visible_at": time_text(report.visible_at),
        "expires_at": time_text(report.expires_at),
        "receives": report.receives,
        "consumed": [_taking(each) for each in report.takings],
        "places": [_standing(each, ids) for each in report.standings],
        "complete": report.is_whole,
    }


def _content(content: Content, *, raw: bool) -> Document:
    facts = payload(content.topics, content.object, content.content_type, content.sender, content.priority)
    return facts | _parts(content.body, content.content_type, content.key, content.headers, raw=raw)


def _parts(body: bytes | None, content_type: str, key: bytes, headers: bytes, *, raw: bool) -> Document:
    """The body, and the key and headers if there are any."""
    parts = message_field(body, content_type, raw=raw) if body is not None else {}
    return parts | (text_or_base64("key", key) if key else {}) | (kept_fields(headers) if headers else {})


def kept_fields(data: bytes) -> Document:
    """The producer's time and the headers."""
    named = headers_by_name(data)
    return text_or_base64("headers", data) if named is None else named


def _taking(taking: Taking) -> Document:
    fetched, settled, letter = taking.fetched, taking.settled, taking.letter
    both = fetched is not None and settled is not None and letter != "K"
    return {
        "consumerId": taking.consumer,
        "queue": taking.queue,
        "fetchedTS": time_text(fetched),
        "confirmedTS": time_text(settled) if letter and letter in SETTLES else None,
        "durationMS": ((settled or 0) - (fetched or 0)) // 1_000_000 if both else None,
        "state": letter or "F",
        **({"reason": taking.reason} if taking.reason else {}),
    }


def _standing(standing: Standing, ids: MessageIds) -> Document:
    return {
        "id": ids.make(*standing.place).decode(),
        "queue": standing.queue,
        "sequence": standing.place[1],
        "state": standing.letter,
        "queued": standing.is_queued,
    }
