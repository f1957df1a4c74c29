"""The message document: everything that is known about a message, as JSON."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Raw

from penstock.dialects.native.event_text import EventWriter, headers_by_name
from penstock.dialects.wire.json_bodies import message_field, text_or_base64
from penstock.ids import MessageIds
from penstock.limits import NEVER_NS
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Held
from penstock.model.events import Logged, Unchanged
from penstock.model.letters import SETTLES
from penstock.model.story import Consumption, Stay
from penstock.model.times import rfc3339_nanos
from penstock.model.traces import STATUS, TextOf, Traced, is_queued
from penstock.model.values import Nanos, Place

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


def _visible(traced: Traced, access: Access) -> Traced:
    """Without the events in queues that the client may not read, and without the names of these queues."""

    def queue(number: int) -> str | None:
        name = traced.queue(number)
        return name if access.reads(name) else None

    shown = (event for event in traced.events if access.reads(traced.queue(event.queue)))
    return traced._replace(events=shown, queue=queue)


def traced_document(traced: Traced, ids: MessageIds, *, raw: bool, access: Access = EVERYTHING) -> Document:
    """Everything that is known about a message, as far as the client may read it."""
    if not access.sees_all:
        traced = _visible(traced, access)
    place, story, _, held_by_place, _, events, whole, name, queue = traced
    all_queues = access.reads(None)
    # The removal of a queue is an event of the messages that were still in it.
    left = {stay.changed for stay in story.stays.values() if stay.letter == "D"}
    shown = (event for event in events if event.sequence is not None or event.time in left)
    lines = [Raw(line) for line in EventWriter(ids, name, queue, raw=raw).lines(shown)]
    stays = story.places
    settled = [delivery for delivery in story.consumptions if delivery.letter in _SETTLED]
    confirmed = [delivery for delivery in story.consumptions if delivery.letter == "S"]
    current = stays[story.current] if story.current else None
    held = held_by_place.get(story.current) if story.current else next(iter(held_by_place.values()), None)
    fetched = [delivery.fetched for delivery in story.consumptions if delivery.fetched is not None]
    ended = all(stay.ended for stay in stays.values())
    return {
        "id": ids.make(*place).decode(),
        "queue": queue(place[0]),
        "sequence": place[1],
        "state": current.letter if current else None,
        "status": STATUS[held.state] if held else "gone",
        "queued": not ended,
        "delivered": bool(settled),
        "success": bool(confirmed),
        "archived": ended and not held_by_place,
        "confirmed": bool(confirmed),
        "confirmedCount": len(confirmed),
        **_content(traced, raw=raw),
        "created": time_text(story.created),
        "modified": time_text(story.modified),
        "processed": time_text(story.processed),
        "completed": time_text(story.completed),
        "failed": time_text(story.failed),
        "timestamps": {"consumed": time_text(min(fetched, default=None))},  # The name is that of the deliveries.
        "visible_at": time_text(current.visible_at if current else None),
        "expires_at": time_text(current.expires_at if current else None),
        "receives": current.receives if current else 0,
        "consumed": [
            _consumption(delivery, name, queue)
            for delivery in story.consumptions
            if all_queues or queue(delivery.queue) is not None
        ],
        "places": [
            _place(place, stay, ids, queue)
            for place, stay in stays.items()
            if all_queues or queue(place[0]) is not None
        ],
        "complete": whole,
        "events": lines,
    }


_SETTLED = (*SETTLES, "K")


def _content(traced: Traced, *, raw: bool) -> Document:
    """The payload, from the record that has it, or else from what the queue holds."""
    content, held, name = traced.story.content, next(iter(traced.held.values()), None), traced.name
    source = traced.content or content
    if content is None:
        facts = payload(held.topics, held.object, held.content_type, held.sender, held.priority) if held else {}
    else:
        texts = [
            name(number) or "" for number in (content.topics, content.object, content.content_type, content.sender)
        ]
        facts = payload(texts[0], texts[1], texts[2], texts[3], content.priority)
    parts = partial(_parts, content_type=facts.get("mimeType") or "", raw=raw)
    if isinstance(content, Unchanged):  # Only the body is the same as that of the version it equals.
        body = source.body if isinstance(source, Logged) else None
        return facts | parts(body, key=content.key, headers=content.headers)
    if isinstance(source, Logged):
        return facts | parts(source.body, key=source.key, headers=source.headers)
    return facts | (_held_parts(held, raw=raw) if held else {})


def _parts(body: bytes | None, content_type: str, key: bytes, headers: bytes, *, raw: bool) -> Document:
    """The body, and the key and headers if there are any."""
    parts = message_field(body, content_type, raw=raw) if body is not None else {}
    return parts | (text_or_base64("key", key) if key else {}) | (kept_fields(headers) if headers else {})


def kept_fields(data: bytes) -> Document:
    """The producer's time and the headers."""
    named = headers_by_name(data)
    return text_or_base64("headers", data) if named is None else named


def _consumption(delivery: Consumption, name: TextOf, queue: TextOf) -> Document:
    both = delivery.fetched is not None and delivery.settled is not None and delivery.letter != "K"
    return {
        "consumerId": name(delivery.consumer) if delivery.consumer else None,
        "queue": queue(delivery.queue),
        "fetchedTS": time_text(delivery.fetched),
        "confirmedTS": time_text(delivery.settled) if delivery.letter and delivery.letter in SETTLES else None,
        "durationMS": ((delivery.settled or 0) - (delivery.fetched or 0)) // 1_000_000 if both else None,
        "state": delivery.letter or "F",
        **({"reason": delivery.reason} if delivery.reason else {}),
    }


def _place(place: Place, stay: Stay, ids: MessageIds, queue: TextOf) -> Document:
    return {
        "id": ids.make(*place).decode(),
        "queue": queue(place[0]),
        "sequence": place[1],
        "state": stay.letter,
        "queued": not stay.ended,
    }
