"""The story of a message: what its events add up to, letter by letter.

The lake makes its table of messages from the same letters in SQL (`pipeline/`), by the same table of letters. A test
compares the two over random lives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec import Struct

from penstock.model.events import Arrived, Event, Logged, MessageEvent, Queued, QueueRemoved, Unchanged
from penstock.model.letters import LEAVES, SETTLES
from penstock.model.values import Nanos, Place


class Stay(Struct, gc=False):
    """A message in one queue, from its arrival there."""

    place: Place
    letter: str  # What happened to it last.
    changed: Nanos
    visible_at: Nanos | None = None
    expires_at: Nanos | None = None
    receives: int = 0  # Deliveries to workers.
    ended: bool = False
    moved: bool = False  # On to another queue: then it ends there.
    completed: Nanos | None = None
    failed: Nanos | None = None


class Consumption(Struct, gc=False):
    """One delivery to one consumer, and its outcome."""

    queue: int
    place: Place  # Where it is to be settled: the last consumer of a dead letter may still have it.
    consumer: int
    fetched: Nanos | None
    is_worker: bool  # Not one of several consumers that get the message, each for itself.
    settled: Nanos | None = None
    letter: str | None = None  # How it was settled: S, I, N; K if nothing was awaited; R or E if nothing came.
    reason: str = ""  # Why it was given back, or is invalid: what the consumer reported, or that its time was up.

    @property
    def who(self) -> int | None:
        """Who has the message, one at a time: all workers together count as one."""
        return None if self.is_worker else self.consumer


class Story(Struct, gc=False):
    """What the events of a message add up to."""

    content: Logged | Unchanged | Queued | None = None
    stays: dict[Place, Stay] = {}
    consumptions: list[Consumption] = []
    created: Nanos | None = None
    modified: Nanos | None = None
    processed: Nanos | None = None
    queued: Collection[Place] = ()  # Where it still is, whatever one of several consumers has reported.

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
        """When it was completed in the last of its queues. If it ended otherwise in some of them (handed over,
        expired), it counts as completed if that is what happened last."""
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
    place = (event.queue, event.sequence)
    stay = story.stays[place] = Stay(place, event.kind.row.letters[-1], event.time)
    if isinstance(event, Unchanged):
        stay.ended = True
    else:
        stay.visible_at, stay.expires_at = event.visible_at, event.expires_at
    created = event.created if isinstance(event, Queued | Arrived) else event.time
    story.created = min(story.created or created, created)
    story.modified = event.time
    if story.content is None or isinstance(story.content, Queued):
        story.content = event


def _go_on(story: Story, event: Any) -> None:
    """Something happens to a message in a queue: one thing for each letter, or a change of when it is visible."""
    place, row = (event.queue, event.sequence), event.kind.row
    stay = story.stays.get(place)
    if stay is None:  # The log no longer has its arrival.
        stay = story.stays[place] = Stay(place, "Q", event.time)
        story.created = story.created or event.created
    if row.moves:
        _move(story, stay, event)
        return
    for letter in row.letters:
        if letter not in row.only_if or getattr(event, row.only_if[letter]):
            _note(story, stay, letter, event.time)
            _STEPS[letter](story, stay, event)
    if not row.letters and "visible_at" in row.stores:
        stay.visible_at, story.modified = event.visible_at, event.time
        if row.wakes:  # No consumer holds it: the last consumer of a dead letter may have given it back.
            _give_up((each for each in _open(story, place) if each.is_worker), _reason(event))


def _note(story: Story, stay: Stay, letter: str, time: Nanos) -> None:
    stay.letter, stay.changed, story.modified = letter, time, time


def _fetched(story: Story, stay: Stay, event: Any) -> None:
    _delivered(story, stay, event)
    stay.visible_at = event.visible_at


def _handed_over(story: Story, stay: Stay, event: Any) -> None:
    delivery = _delivered(story, stay, event)
    delivery.settled, delivery.letter = event.time, "K"
    if delivery.is_worker:
        _end(story, stay)


def _settled(story: Story, stay: Stay, event: Any) -> None:
    _delivery_of(story, stay, event, stay.letter)
    story.processed = story.processed or event.time
    if event.kind.row.whose != "receivers" and stay.letter in LEAVES:
        _end(story, stay, failed=event.time if stay.letter == "I" else None)


def _completed(story: Story, stay: Stay, event: Any) -> None:
    stay.completed, stay.failed = event.time, None
    _end(story, stay)


def _retried(story: Story, stay: Stay, event: Any) -> None:
    _delivery_of(story, stay, event, "R")
    stay.visible_at = event.visible_at


def _failed(story: Story, stay: Stay, event: Any) -> None:
    _delivery_of(story, stay, event, "E")
    _end(story, stay, failed=event.time)


def _end(story: Story, stay: Stay, _: Any = None, *, failed: Nanos | None = None) -> None:
    """A dead letter has failed before, and stays failed unless it is completed."""
    if stay.place not in story.queued:
        stay.ended = True
        stay.failed = failed or stay.failed


_STEPS: dict[str, Callable[[Story, Stay, Any], None]] = {
    "F": _fetched,
    "K": _handed_over,
    **dict.fromkeys(SETTLES, _settled),
    "X": _completed,
    "R": _retried,
    "E": _failed,
    **dict.fromkeys("ZD", _end),
    "B": lambda *_: None,
}


def _delivery_of(story: Story, stay: Stay, event: Any, letter: str) -> Consumption:
    """The delivery that has ended with this letter: the last one to this consumer that was still open."""
    for delivery in reversed(story.consumptions):
        if delivery.place == stay.place and delivery.consumer == event.consumer and delivery.letter is None:
            break
    else:
        is_worker = event.kind.row.whose != "receivers"
        delivery = Consumption(event.queue, stay.place, event.consumer, None, is_worker)
        if letter in SETTLES:
            story.consumptions.append(delivery)
    delivery.settled, delivery.letter, delivery.reason = event.time, letter, _reason(event)
    return delivery


def _reason(event: Any) -> str:
    given: bytes = getattr(event, "reason", b"")
    return given.decode(errors="replace") or event.kind.row.reason


def _delivered(story: Story, stay: Stay, event: Any) -> Consumption:
    """A new delivery. Nothing will come of those before it."""
    delivery = Consumption(event.queue, stay.place, event.consumer, event.time, event.kind.row.whose == "workers")
    _give_up(each for each in _open(story, stay.place) if each.who == delivery.who)
    story.consumptions.append(delivery)
    if delivery.is_worker:
        stay.receives = event.receives
    return delivery


def _open(story: Story, place: Place) -> list[Consumption]:
    return [each for each in story.consumptions if each.place == place and each.letter is None]


def _give_up(deliveries: Iterable[Consumption], reason: str = "") -> None:
    """They are to be repeated; except for one that made the message a dead letter."""
    for delivery in deliveries:
        delivery.letter = "R" if delivery.queue == delivery.place[0] else "E"
        delivery.reason = reason


def _move(story: Story, stay: Stay, event: Any) -> None:
    there, failed = (event.to_queue, event.to_sequence), "E" in event.kind.row.letters
    if failed:
        if event.fetched:
            story.consumptions.append(Consumption(event.queue, there, event.consumer, event.time, True))
        else:
            _delivery_of(story, stay, event, "E")
        _note(story, stay, "E", event.time)
        stay.receives = max(stay.receives, event.receives)
    _give_up(_open(story, stay.place))
    story.modified = event.time
    stay.ended = stay.moved = True
    arrival = (event.time, event.visible_at, event.expires_at)
    story.stays[there] = Stay(there, "Q", *arrival, failed=event.time if failed else None)
