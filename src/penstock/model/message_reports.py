"""Everything that is known about a message, as one shard knows it; and what several shards know, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.access import Access
from penstock.model.commands import Command, LookUp
from penstock.model.events import Logged, Unchanged
from penstock.model.kinds import Kind, kinds_where
from penstock.model.letters import SETTLES
from penstock.model.queries import Query
from penstock.model.story import Consumption, Stay
from penstock.model.traces import STATUS, Event, TextOf, Traced
from penstock.model.values import Nanos, Packed, Place


class TraceMessage(Query, frozen=True):
    """What the shard that it is sent to knows of a message."""

    waits_for_log: ClassVar[bool] = False  # The service looks it up with a command, whose answer waits.
    place: Place
    is_home: bool = True  # It decides whether the client may see the message. Else that is decided.

    def needs(self) -> Command | None:
        return LookUp(*self.place) if self.is_home else None


class Content(Struct, frozen=True):
    """What a producer has sent."""

    topics: str  # Joined by line feeds.
    object: str
    content_type: str
    sender: str
    priority: int
    body: bytes | None = None  # None: it is not known any more.
    key: bytes = b""
    headers: bytes = b""


class Taking(Struct, frozen=True):
    """One delivery to one consumer, and what came of it."""

    consumer: str | None
    queue: str | None
    fetched: Nanos | None
    settled: Nanos | None
    letter: str | None
    reason: str


class Standing(Struct, frozen=True):
    """Where it is, or where it ended."""

    place: Place
    queue: str | None
    letter: str
    is_queued: bool


GONE = "gone"


class MessageReport(Packed, frozen=True):
    """What the client sees of it. Names of queues that it may not read are missing."""

    place: Place
    queue: str | None
    letter: str | None
    status: str
    is_queued: bool
    is_delivered: bool
    is_success: bool
    is_archived: bool
    confirmed: int
    content: Content | None
    created: Nanos | None
    modified: Nanos | None
    processed: Nanos | None
    completed: Nanos | None
    failed: Nanos | None
    consumed: Nanos | None  # When it was first delivered.
    visible_at: Nanos | None
    expires_at: Nanos | None
    receives: int
    takings: list[Taking]
    standings: list[Standing]
    is_whole: bool  # The log still has all of it.
    events: list[Event]
    names: dict[int, str | None]  # What the numbers in the events stand for,
    queues: dict[int, str | None]  # and those of queues.
    is_new: bool  # Nothing has happened to it here but that it came.
    stays: list[Place]  # Where it is or ended, and
    left: list[Place]  # what it has left for other shards: also queues that the client may not read.

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether other shards may know more."""
        return self.status == GONE or bool(self.content and self.content.topics) or bool(self.left)


_AWAY = kinds_where(lambda row: row.reason == Kind.SENT.row.reason)
_DELIVERED = (*SETTLES, "K")
_NAMED = (
    "consumer",
    "content_type",
    "sender",
    "object",
    "topics",
)  # The fields of an event that are numbers of names.


# ── One shard ─────────────────────────────────────────────────────────────────────────────────────────────────


def report_of(traced: Traced, access: Access) -> MessageReport:
    """As far as the client may read it."""
    place, story, _, held_by_place, _, read_once, whole, name, queue_of = traced
    events = list(read_once)
    reads_all = access.sees_all or access.reads(None)

    def queue(number: int) -> str | None:
        found = queue_of(number)
        return found if access.sees_all or access.reads(found) else None

    # The removal of a queue is an event of the messages that were still in it.
    removed = {stay.changed for stay in story.stays.values() if stay.letter == "D"}
    shown = [
        event
        for event in events
        if (access.sees_all or access.reads(queue_of(event.queue)))
        and (event.sequence is not None or event.time in removed)
    ]
    stays, letters = story.places, [delivery.letter for delivery in story.consumptions]
    current = stays[story.current] if story.current else None
    held = held_by_place.get(story.current) if story.current else next(iter(held_by_place.values()), None)
    has_ended = all(stay.ended for stay in stays.values())
    fetched = [delivery.fetched for delivery in story.consumptions if delivery.fetched is not None]
    return MessageReport(
        place=place,
        queue=queue(place[0]),
        letter=current.letter if current else None,
        status=STATUS[held.state] if held else GONE,
        is_queued=not has_ended,
        is_delivered=any(letter in _DELIVERED for letter in letters),
        is_success="S" in letters,
        is_archived=has_ended and not held_by_place,
        confirmed=letters.count("S"),
        content=_content(traced),
        created=story.created,
        modified=story.modified,
        processed=story.processed,
        completed=story.completed,
        failed=story.failed,
        consumed=min(fetched, default=None),
        visible_at=current.visible_at if current else None,
        expires_at=current.expires_at if current else None,
        receives=current.receives if current else 0,
        takings=[
            _taking(each, name, queue) for each in story.consumptions if reads_all or queue(each.queue) is not None
        ],
        standings=[_standing(at, stay, queue) for at, stay in stays.items() if reads_all or queue(at[0]) is not None],
        is_whole=whole,
        events=shown,
        names={number: name(number) for event in shown for number in _names_in(event)},
        queues={number: queue(number) for event in shown for number in (event.queue, event.to_queue) if number},
        is_new=all(stay.letter == "Q" for stay in stays.values()),
        stays=list(stays),
        left=[(event.queue, event.sequence or 0) for event in events if event.kind in _AWAY],
    )


def _names_in(event: Event) -> Iterable[int]:
    return filter(None, (event.consumer, event.content_type, event.sender, event.object, event.topics))


def _taking(delivery: Consumption, name: TextOf, queue: TextOf) -> Taking:
    consumer = name(delivery.consumer) if delivery.consumer else None
    facts = (delivery.fetched, delivery.settled, delivery.letter, delivery.reason)
    return Taking(consumer, queue(delivery.queue), *facts)


def _standing(place: Place, stay: Stay, queue: TextOf) -> Standing:
    return Standing(place, queue(place[0]), stay.letter, not stay.ended)


def _content(traced: Traced) -> Content | None:
    """From the record that has it, or else from what the queue holds."""
    content, held, name = traced.story.content, next(iter(traced.held.values()), None), traced.name
    source = traced.content or content
    if content:
        texts = (content.topics, content.object, content.content_type, content.sender)
        topics, about, content_type, sender = [name(number) or "" for number in texts]
        facts = Content(topics, about, content_type, sender, content.priority)
    elif held:
        facts = Content(held.topics, held.object, held.content_type, held.sender, held.priority)
    else:
        return None
    if isinstance(content, Unchanged):  # Only the body is the same as that of the version it equals.
        body = source.body if isinstance(source, Logged) else None
        return replace(facts, body=body, key=content.key, headers=content.headers)
    if isinstance(source, Logged):
        return replace(facts, body=source.body, key=source.key, headers=source.headers)
    if held is None or STATUS[held.state] == "damaged":
        return facts
    return replace(facts, body=held.body, key=held.key, headers=held.headers)


# ── Several shards ────────────────────────────────────────────────────────────────────────────────────────────


def is_on_its_way(reports: Sequence[MessageReport]) -> bool:
    """Whether it has left every place that is known: one shard owes it to another."""
    left = _left(reports)
    return bool(left) and left >= {place for each in reports for place in each.stays}


def joined(reports: Sequence[MessageReport], *, is_whole: bool) -> MessageReport:
    """The first report is that of the shard in the id, and has the beginning. `is_whole`: all shards have said what
    they know."""
    begun, left = reports[0], _left(reports)
    rank = _rank_in(begun)
    last = max(
        reports,
        key=lambda each: (each.status != GONE, _happened(each, begun), -min(map(rank, each.standings), default=0)),
    )
    takings = {(each.queue, each.fetched, each.consumer): each for one in reports for each in one.takings}
    standings = {each.place: each for one in reports for each in one.standings}
    still = [each for each in reports if any(place not in left for place in each.stays)]
    is_complete = last.letter == "X" or all(each.completed for each in still)
    told = _told(reports, left)
    return replace(
        begun,
        **{name: getattr(last, name) for name in _CURRENT},
        is_delivered=any(each.is_delivered for each in reports),
        is_success=any(each.is_success for each in reports),
        is_archived=all(each.is_archived for each in reports),
        confirmed=sum(each.letter == "S" for each in takings.values()),
        modified=max(_known(reports, "modified"), default=None),
        failed=max(_known(reports, "failed"), default=None),
        processed=min(_known(reports, "processed"), default=None),
        completed=max(_known(reports, "completed"), default=None) if is_complete else None,
        consumed=min(_known(reports, "consumed"), default=None),
        takings=list(takings.values()),
        standings=sorted([each for place, each in standings.items() if place not in left], key=rank),
        is_whole=is_whole and begun.is_whole,
        events=told.events,
        names=told.names,
        queues=told.queues,
    )


_CURRENT = ("letter", "status", "is_queued", "visible_at", "expires_at", "receives")  # As the last shard knows them.


def _happened(report: MessageReport, begun: MessageReport) -> Nanos:
    """When something happened to it last. A copy comes a moment after the original, but is of the same moment."""
    return (begun.created if report.is_new else report.modified) or 0


def _rank_in(begun: MessageReport) -> Callable[[Standing], int]:
    """First come the queues that its topics name, in their order."""
    topics = begun.content.topics.split("\n") if begun.content else []
    names = [*dict.fromkeys(topic.partition(".")[0] for topic in topics)]
    ranks = {name: rank for rank, name in enumerate(names)}
    return lambda standing: ranks.get(standing.queue or "", len(ranks))


def _left(reports: Iterable[MessageReport]) -> set[Place]:
    return {place for each in reports for place in each.left}


def _known(reports: Iterable[MessageReport], name: str) -> list[Nanos]:
    return [value for each in reports if (value := getattr(each, name)) is not None]


class _Told(NamedTuple):
    events: list[Event]
    names: dict[int, str | None]
    queues: dict[int, str | None]


def _told(reports: Sequence[MessageReport], left: set[Place]) -> _Told:
    """The events of all shards in the order of time, as a store with one shard has them."""
    home = reports[0]
    are_copies = bool(home.content and home.content.topics) and not left
    names: dict[int, str | None] = {}
    queues: dict[int, str | None] = {home.place[0]: home.queue}
    found: dict[tuple[Any, ...], Event] = {}
    for report in reports:
        number_of = _numbers_in(names, report.names)
        for number, name in report.queues.items():
            queues[number] = queues.get(number) or name
        for event in report.events:
            event = replace(event, **{field: number_of(getattr(event, field)) for field in _NAMED})
            if are_copies and report is not home and _is_copy(event, home.place):
                event = replace(event, to_queue=home.place[0], to_sequence=home.place[1])
            # Two shards have the same event if it is from before the store had several.
            found[event.offset, event.following, event.time, event.queue] = event
    return _Told(_without_moves(sorted(found.values(), key=attrgetter("time"))), names, queues)


def _numbers_in(names: dict[int, str | None], known: Mapping[int, str | None]) -> Callable[[int], int]:
    """The numbers of a shard, as those of all shards: each has its own."""
    shift = max(names, default=0)
    names |= {number + shift: name for number, name in known.items()}
    return lambda number: number + shift if number else 0


def _is_copy(event: Event, original: Place) -> bool:
    """Copies name their original, whose name other shards do not know. Events of the original itself are in all of
    them if they are from before the store had several."""
    return event.letter == "Q" and (event.queue, event.sequence) != original


def _without_moves(events: Sequence[Event]) -> list[Event]:
    """A dead letter names where it went, and a move to another shard is no event."""
    told: list[Event] = []
    for index, event in enumerate(events):
        if event.kind not in _AWAY:
            told.append(event)
        elif event.letter == "E":
            arrived = next((each for each in events[index:] if each.queue != event.queue), None)
            to = (arrived.queue, arrived.sequence) if arrived else (None, None)
            told.append(replace(event, kind=int(Kind.DEAD_LETTERED), to_queue=to[0], to_sequence=to[1]))
    return told
