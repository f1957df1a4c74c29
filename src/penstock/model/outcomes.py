"""What became of a message: whether it was taken, and how it ended.

Most messages have one place and end with one event, which says everything. For the others the log is read, and their
story tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from penstock.errors import Reason, RequestError
from penstock.model.events import CameFrom, CopiedFrom, Logged, MessageEvent, Unchanged
from penstock.model.events import Event as LogEvent
from penstock.model.happening import Happening
from penstock.model.kinds import ENDS, Kind
from penstock.model.letters import DELIVERS
from penstock.model.story import Stay, Story
from penstock.model.traces import Event, Traced
from penstock.model.values import Nanos, Place

Until = Literal["taken", "done"]
# What one of several shards is asked about. The home of a message, which is in its id, says whether it was moved to
# another shard, and whether others may have copies. They are asked about a message that was moved there, about copies
# that they have, or about both.
Part = Literal["all", "home", "moved", "copies", "any"]

_OUTCOMES = {
    "X": "success",
    "S": "success",
    "I": "invalid",
    "N": "not_interested",
    "E": "failed",
    "K": "handed_over",
    "Z": "expired",
    "D": "deleted",
    "U": "unchanged",
}
_DEPARTURES = frozenset((Kind.SENT, Kind.SENT_AS_DEAD))
_PASSAGES = _DEPARTURES | {Kind.ARRIVED}
OF_NOBODY = frozenset("ZDU")  # No consumer did it.
_DEAD_LETTERED = "dead_lettered"


class Outcome(Struct, frozen=True):
    """What a client that waits for a message gets. Without an `outcome`, the message was only taken."""

    letter: str
    time: Nanos
    consumer: int
    outcome: str | None = None
    result: bytes = b""
    is_copied: bool = False  # Other shards may have copies, which are not done yet.


def outcome_of(what: Happening, until: Until) -> Outcome | None:
    """For a message with one place: None if it goes on."""
    letters, facts = what.kind.row.letters, (what.time, what.consumer)
    if what.kind in ENDS:
        outcome = _DEAD_LETTERED if what.kind == Kind.SENT_AS_DEAD else _OUTCOMES[letters[-1]]
        return Outcome(letters[-1], *facts, outcome, what.result)
    if what.kind == Kind.DEAD_LETTERED and not what.is_held:
        return Outcome("E", *facts, _DEAD_LETTERED)
    if until == "taken" and letters[:1] in (*DELIVERS,):
        return Outcome("F", *facts)
    return None


class Progress(NamedTuple):
    """How far a message has come: its outcome, or where it is to be followed and when to look again."""

    outcome: Outcome | None
    places: Iterable[Place]
    look_again_at: Nanos | None = None
    is_away: bool = False  # It was moved to another shard, which knows the rest.
    promised: int = 0  # Other shards may have copies, made from before this offset of the log; 0: they have none.
    is_copy: bool = False  # Here are only copies of it.


def progress_of(traced: Traced, until: Until, now: Nanos) -> Progress:
    progress, content = _progress_here(traced, until, now), traced.story.content
    if content is None or not content.topics:
        return progress
    events = [event for _, event in traced.records]
    if any(isinstance(event, CopiedFrom) and _is_at(event, traced.place) for event in events):
        return progress  # It is a copy itself.
    logged = [offset for offset, event in traced.records if _is_at(event, traced.place)]
    is_here = any(held.id == traced.place for held in traced.held.values())
    has_come = is_here or any(_is_from(event, traced.place) for event in events)
    return progress._replace(promised=min(logged, default=0) + 1, is_copy=not logged and not has_come)


def _is_at(event: LogEvent, place: Place) -> bool:
    return isinstance(event, Logged | Unchanged | MessageEvent) and (event.queue, event.sequence) == place


def _is_from(event: LogEvent, place: Place) -> bool:
    return isinstance(event, CameFrom) and (event.to_queue, event.to_sequence) == place


def _progress_here(traced: Traced, until: Until, now: Nanos) -> Progress:
    story = traced.story
    places = list(story.stays)
    if not story.places:
        return Progress(None, places)
    held = [stay.visible_at for stay in story.places.values() if _is_held(story, stay, now)]
    if not held and all(stay.ended or stay.failed for stay in story.places.values()):
        events = list(traced.events)  # They may be read only once.
        if _last_passage(events) == Kind.SENT:
            return Progress(None, places, is_away=True)
        return Progress(_end_of(story, events), places)
    fetched = [each for each in story.consumptions if each.fetched is not None]
    if until == "taken" and fetched:
        return Progress(Outcome("F", fetched[0].fetched or 0, fetched[0].consumer), places)
    return Progress(None, places, min(filter(None, held), default=None))


def _is_held(story: Story, stay: Stay, now: Nanos) -> bool:
    """A dead letter that its last consumer has until its lease ends: it may still succeed."""
    has_it = any(each.place == stay.place and each.letter is None for each in story.consumptions)
    return not stay.ended and stay.failed is not None and has_it and (stay.visible_at or 0) > now


def _last_passage(events: Iterable[Event]) -> int | None:
    """How a message left this shard or came to it last."""
    return next((event.kind for event in reversed([*events]) if event.kind in _PASSAGES), None)


def _end_of(story: Story, events: Sequence[Event]) -> Outcome:
    """Where it has failed, if it has; else where it ended last."""
    stay = max(_final(story, events), key=lambda stay: (stay.failed or 0, stay.changed))
    has_left = _last_passage(events) == Kind.SENT_AS_DEAD
    if stay.failed and (stay.letter not in "IE" or has_left):
        return Outcome("E", stay.failed, _last_consumer(story, "E"), _DEAD_LETTERED)
    results = [event.result for event in events if event.result is not None]
    facts = (stay.letter, stay.changed, _last_consumer(story, "SINKE", stay.place))
    return Outcome(*facts, _OUTCOMES[stay.letter], results[-1] if results else b"")


def _final(story: Story, events: Iterable[Event]) -> Iterable[Stay]:
    """Where it is or ended. A stay that it left for another shard does not count, if it has come back."""
    left = {(event.queue, event.sequence) for event in events if event.kind in _DEPARTURES}
    return [stay for place, stay in story.places.items() if place not in left] or story.places.values()


def _last_consumer(story: Story, letters: str, place: Place | None = None) -> int:
    settled = [each for each in story.consumptions if each.letter and each.letter in letters]
    return next((each.consumer for each in reversed(settled) if place in (None, each.place)), 0)


def away() -> RequestError:
    """The message has left the shard."""
    return RequestError(Reason.UNAVAILABLE, "the message is on its way to another shard")
