"""The message document: everything there is to know of a message, in the words of the topics dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec import Raw, Struct

from penstock.dialects.native.events import TextOf, headers_by_name
from penstock.dialects.wire.json_bodies import message_field, text_or_base64
from penstock.dialects.wire.times import rfc3339_nanos
from penstock.ids import MessageIds
from penstock.limits import NEVER_NS
from penstock.model.answers import Held
from penstock.model.events import (
    Completed,
    Damaged,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    Event,
    Exasperated,
    Expired,
    Extended,
    Fetched,
    HandedToReceiver,
    Invalidated,
    Kicked,
    Logged,
    MessageEvent,
    Moved,
    Queued,
    QueueRemoved,
    Rescheduled,
    ResultStored,
    Retried,
    Succeeded,
    Unchanged,
)
from penstock.model.values import Nanos, Place

Document = dict[str, Any]

# By the number of a state, as `engine.lifecycle` has it.
STATUS = ("gone", "ready", "delayed", "leased", "kept", "damaged")


def held_document(message: Held, queue: str, ids: MessageIds, *, bodies: bool, raw: bool) -> Document:
    """A message as its queue holds it. Who has had it, and when, is in its events alone."""
    status = STATUS[message.state]
    document: Document = {
        "id": ids.make(*message.id).decode(),
        "queue": queue,
        "sequence": message.sequence,
        "status": status,
        "state": _letter(status, message.receives),
        "queued": is_queued(message),
        **payload(message.topics, message.object, message.content_type, message.sender, message.priority),
        "created": said(message.created),
        "visible_at": said(message.visible_at),
        "expires_at": said(message.expires_at),
        "receives": message.receives,
        "consumer": message.consumer or None,
    }
    return document | _held_parts(message, raw=raw) if bodies else document


def _held_parts(message: Held, *, raw: bool) -> Document:
    """Nothing, if the bytes of the message are damaged."""
    if STATUS[message.state] == "damaged":
        return {}
    return _parts(message.body, message.content_type, message.key, message.headers, raw=raw)


def is_queued(message: Held) -> bool:
    """What is kept has been dealt with, unless several are to confirm it."""
    return STATUS[message.state] != "kept" or message.is_awaited


def _letter(status: str, receives: int) -> str | None:
    """What has happened to it last. Of a message that was kept, only its events know that."""
    if status == "kept":
        return None
    if status == "damaged":
        return "B"
    return "F" if status == "leased" else "R" if receives else "Q"


def payload(topics: str, about: str, content_type: str, sender: str, priority: int) -> Document:
    """What a producer has said of a message, but for the message itself."""
    names = topics.split("\n") if topics else []
    return {
        "topics": names,
        "topicCount": len(names),
        "object": about or None,
        "mimeType": content_type or None,
        "sender": sender or None,
        "priority": priority,
    }


def said(time: Nanos | None) -> str | None:
    return None if time is None or time == NEVER_NS else rfc3339_nanos(time).decode()


# ── Folding events ────────────────────────────────────────────────────────────────────────────────────────────


class Stay(Struct, gc=False):
    """A message in one queue, from when it came there."""

    letter: str
    changed: Nanos
    visible_at: Nanos | None = None
    expires_at: Nanos | None = None
    receives: int = 0
    ended: bool = False
    moved: bool = False  # On to another queue: then it is there that it ends.
    completed: Nanos | None = None
    failed: Nanos | None = None


class Consumption(Struct, gc=False):
    """One delivery to one consumer, and what came of it."""

    queue: int
    place: Place  # Where it is to be settled: a dead letter may still be with its last consumer.
    consumer: int
    fetched: Nanos | None
    is_worker: bool  # Not one of several who are told of it, each for itself.
    settled: Nanos | None = None
    letter: str | None = None  # How it was settled: S, I, N; K if nothing was awaited; R or E if nothing came.

    @property
    def who(self) -> int | None:
        """Who has the message, one at a time: the workers are one together."""
        return None if self.is_worker else self.consumer


class Story(Struct, gc=False):
    """What the events of a message add up to."""

    content: Logged | Unchanged | Queued | None = None
    stays: dict[Place, Stay] = {}
    consumptions: list[Consumption] = []
    created: Nanos | None = None
    modified: Nanos | None = None
    processed: Nanos | None = None
    queued: Collection[Place] = ()  # Where it still is, whatever one of several consumers has said of it.

    @property
    def places(self) -> dict[Place, Stay]:
        """Where it is, or where it ended."""
        return {place: stay for place, stay in self.stays.items() if not stay.moved}

    @property
    def current(self) -> Place | None:
        """Where something happened last, of the queues it is still in; if it is in none, of all."""
        places = self.places
        still = [place for place, stay in places.items() if not stay.ended] or places
        return max(still, key=lambda place: places[place].changed, default=None)

    @property
    def completed(self) -> Nanos | None:
        """When the last of its places was complete. Some may have ended otherwise (kicked, expired): then if the
        last thing that happened is that one was completed."""
        places = self.places
        times = [stay.completed for stay in places.values()]
        is_complete = None not in times or (self.current is not None and places[self.current].letter == "X")
        return max(filter(None, times), default=None) if is_complete else None

    @property
    def failed(self) -> Nanos | None:
        return max(filter(None, [stay.failed for stay in self.places.values()]), default=None)


def fold(events: Iterable[Event], queued: Collection[Place] = ()) -> Story:
    """The story of a message, from its events in order; some of the first may be missing."""
    story = Story(queued=queued)
    for event in events:
        if isinstance(event, Logged | Unchanged | Queued):
            _begin(story, event)
        elif isinstance(event, QueueRemoved):
            for place, stay in story.stays.items():
                if place[0] == event.queue and not stay.ended:
                    _note(story, stay, "D", event.time)
                    stay.ended = True
        elif isinstance(event, MessageEvent):
            _go_on(story, event)
    return story


def _begin(story: Story, event: Logged | Unchanged | Queued) -> None:
    unchanged = isinstance(event, Unchanged)
    stay = story.stays[event.queue, event.sequence] = Stay("U" if unchanged else "Q", event.time, ended=unchanged)
    if not isinstance(event, Unchanged):
        stay.visible_at, stay.expires_at = event.visible_at, event.expires_at
    created = event.created if isinstance(event, Queued) else event.time
    story.created = min(story.created or created, created)
    story.modified = event.time
    if story.content is None or isinstance(story.content, Queued):
        story.content = event


def _go_on(story: Story, event: MessageEvent) -> None:
    place = (event.queue, event.sequence)
    stay = story.stays.get(place)
    if stay is None:  # How it came there is no longer told.
        stay = story.stays[place] = Stay("Q", event.time)
        story.created = story.created or event.created
    match event:
        case Fetched() | Delivered():
            _note(story, stay, "F", event.time)
            is_worker = isinstance(event, Fetched)
            delivery = Consumption(event.queue, place, event.consumer, event.time, is_worker)
            _deliver(story, delivery)
            stay.receives, stay.visible_at = event.receives, event.visible_at
        case Kicked() | HandedToReceiver():
            _note(story, stay, "K", event.time)
            is_worker = isinstance(event, Kicked)
            delivery = Consumption(event.queue, place, event.consumer, event.time, is_worker, event.time, "K")
            _deliver(story, delivery)
            stay.receives = event.receives
            if is_worker:
                _end(story, place, stay)
        case Succeeded() | ResultStored() | Invalidated() | Declined():
            _settle(story, stay, event)
        case Completed():
            _note(story, stay, "X", event.time)
            _end(story, place, stay, completed=event.time)
        case Retried():
            _note(story, stay, "R", event.time)
            _settled(story, place, event, "R")
            stay.visible_at = event.visible_at
        case Exasperated():
            _note(story, stay, "E", event.time)
            _settled(story, place, event, "E")
            _end(story, place, stay, failed=event.time)
        case DeadLettered() | Moved():
            _move(story, stay, event)
        case Expired() | Deleted():
            _note(story, stay, "Z" if isinstance(event, Expired) else "D", event.time)
            _end(story, place, stay)
        case Damaged():
            _note(story, stay, "B", event.time)
        case Rescheduled() | Extended():
            stay.visible_at, story.modified = event.visible_at, event.time
            if isinstance(event, Rescheduled):  # So nobody has it: a dead letter may have been given back.
                _give_up(each for each in _open(story, place) if each.is_worker)
        case _:
            pass  # Housekeeping.


def _note(story: Story, stay: Stay, letter: str, time: Nanos) -> None:
    stay.letter, stay.changed, story.modified = letter, time, time


def _end(
    story: Story, place: Place, stay: Stay, *, completed: Nanos | None = None, failed: Nanos | None = None
) -> None:
    """A dead letter has failed before, and stays so unless somebody completes it."""
    if completed:
        stay.completed, stay.failed = completed, None
    if place in story.queued:
        return
    stay.ended = True
    stay.failed = failed or stay.failed


def _settle(story: Story, stay: Stay, event: Succeeded | ResultStored | Invalidated | Declined) -> None:
    letter = "I" if isinstance(event, Invalidated) else "N" if isinstance(event, Declined) else "S"
    place = (event.queue, event.sequence)
    delivery = _settled(story, place, event, letter)
    complete = isinstance(event, Succeeded) and event.complete
    _note(story, stay, "X" if complete else letter, event.time)
    story.processed = story.processed or event.time
    if complete:
        _end(story, place, stay, completed=event.time)
    elif delivery.is_worker and letter in "IN":
        _end(story, place, stay, failed=event.time if letter == "I" else None)


def _settled(story: Story, place: Place, event: MessageEvent, letter: str) -> Consumption:
    """The delivery that has come to its end: of this consumer, or if it does not say who it is, the last one."""
    for delivery in reversed(story.consumptions):
        if delivery.place == place and delivery.consumer == event.consumer and delivery.letter is None:
            break
    else:
        delivery = Consumption(event.queue, place, event.consumer, None, not isinstance(event, ResultStored))
        if letter in "SIN":
            story.consumptions.append(delivery)
    delivery.settled, delivery.letter = event.time, letter
    return delivery


def _deliver(story: Story, delivery: Consumption) -> None:
    """Nothing will come of those before it."""
    _give_up(each for each in _open(story, delivery.place) if each.who == delivery.who)
    story.consumptions.append(delivery)


def _open(story: Story, place: Place) -> list[Consumption]:
    return [each for each in story.consumptions if each.place == place and each.letter is None]


def _give_up(deliveries: Iterable[Consumption]) -> None:
    """They are to be repeated; but for one that made the message a dead letter."""
    for delivery in deliveries:
        delivery.letter = "R" if delivery.queue == delivery.place[0] else "E"


def _move(story: Story, stay: Stay, event: DeadLettered | Moved) -> None:
    place = (event.queue, event.sequence)
    there = (event.to_queue, event.to_sequence)
    failed = event.time if isinstance(event, DeadLettered) else None
    if isinstance(event, DeadLettered):
        if event.fetched:
            story.consumptions.append(Consumption(event.queue, there, event.consumer, event.time, True))
        else:
            _settled(story, place, event, "E")
        _note(story, stay, "E", event.time)
    _give_up(_open(story, place))
    story.modified = event.time
    stay.ended = stay.moved = True
    story.stays[there] = Stay("Q", event.time, event.visible_at, event.expires_at, failed=failed)


# ── Telling a story ───────────────────────────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    """What is known of a message beside its story."""

    place: Place
    content: Logged | None  # Where it is not in the story: the message whose content it shares.
    held: Mapping[Place, Held]  # By the places that have it.
    events: list[Raw]
    whole: bool
    raw: bool = False  # JSON as text too.


def document(story: Story, told: Told, ids: MessageIds, name: TextOf, queue: TextOf) -> Document:
    """All there is to know of a message."""
    stays = story.places
    settled = [delivery for delivery in story.consumptions if delivery.letter in _SETTLED]
    confirmed = [delivery for delivery in story.consumptions if delivery.letter == "S"]
    current = stays[story.current] if story.current else None
    held = told.held.get(story.current) if story.current else next(iter(told.held.values()), None)
    fetched = [delivery.fetched for delivery in story.consumptions if delivery.fetched is not None]
    ended = all(stay.ended for stay in stays.values())
    return {
        "id": ids.make(*told.place).decode(),
        "queue": queue(told.place[0]),
        "sequence": told.place[1],
        "state": current.letter if current else None,
        "status": STATUS[held.state] if held else "gone",
        "queued": not ended,
        "delivered": bool(settled),
        "success": bool(confirmed),
        "archived": ended and not told.held,
        "confirmed": bool(confirmed),
        "confirmedCount": len(confirmed),
        **_content(story.content, told, name),
        "created": said(story.created),
        "modified": said(story.modified),
        "processed": said(story.processed),
        "completed": said(story.completed),
        "failed": said(story.failed),
        "timestamps": {"consumed": said(min(fetched, default=None))},  # The name is that of the deliveries.
        "visible_at": said(current.visible_at if current else None),
        "expires_at": said(current.expires_at if current else None),
        "receives": current.receives if current else 0,
        "consumed": [_consumption(delivery, name, queue) for delivery in story.consumptions],
        "places": [_place(place, stay, ids, queue) for place, stay in stays.items()],
        "complete": told.whole,
        "events": told.events,
    }


_SETTLED = ("S", "I", "N", "K")


def _content(content: Logged | Unchanged | Queued | None, told: Told, name: TextOf) -> Document:
    """The payload, from the record that has it, or else from what the queue holds."""
    source, held = told.content or content, next(iter(told.held.values()), None)
    if content is None:
        facts = payload(held.topics, held.object, held.content_type, held.sender, held.priority) if held else {}
    else:
        texts = [
            name(number) or "" for number in (content.topics, content.object, content.content_type, content.sender)
        ]
        facts = payload(texts[0], texts[1], texts[2], texts[3], content.priority)
    parts = partial(_parts, content_type=facts.get("mimeType") or "", raw=told.raw)
    if isinstance(content, Unchanged):  # Only the body is the same as that of the version it equals.
        body = source.body if isinstance(source, Logged) else None
        return facts | parts(body, key=content.key, headers=content.headers)
    if isinstance(source, Logged):
        return facts | parts(source.body, key=source.key, headers=source.headers)
    return facts | (_held_parts(held, raw=told.raw) if held else {})


def _parts(body: bytes | None, content_type: str, key: bytes, headers: bytes, *, raw: bool) -> Document:
    """The message itself, and what goes with it where there is something."""
    parts = message_field(body, content_type, raw=raw) if body is not None else {}
    return parts | (text_or_base64("key", key) if key else {}) | (_headers(headers) if headers else {})


def _headers(data: bytes) -> Document:
    named = headers_by_name(data)
    return text_or_base64("headers", data) if named is None else named


def _consumption(delivery: Consumption, name: TextOf, queue: TextOf) -> Document:
    both = delivery.fetched is not None and delivery.settled is not None and delivery.letter != "K"
    return {
        "consumerId": name(delivery.consumer) if delivery.consumer else None,
        "queue": queue(delivery.queue),
        "fetchedTS": said(delivery.fetched),
        "confirmedTS": said(delivery.settled) if delivery.letter in ("S", "I", "N") else None,
        "durationMS": ((delivery.settled or 0) - (delivery.fetched or 0)) // 1_000_000 if both else None,
        "state": delivery.letter or "F",
    }


def _place(place: Place, stay: Stay, ids: MessageIds, queue: TextOf) -> Document:
    return {
        "id": ids.make(*place).decode(),
        "queue": queue(place[0]),
        "sequence": place[1],
        "state": stay.letter,
        "queued": not stay.ended,
    }
