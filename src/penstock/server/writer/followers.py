"""Clients that follow a message: each of its events is reported to them, when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.model.answers import Refused
from penstock.model.events import Event, MessageEvent, MessageRun, QueueRemoved
from penstock.model.kinds import ENDS, LETTERS, Kind
from penstock.model.values import Place


class Follower:
    """Follows one message. `cancel` if it no longer wants to."""

    __slots__ = ("_followers", "place", "report")

    def __init__(self, followers: Followers, place: Place, report: Callable[[Kind], None]) -> None:
        self._followers = followers
        self.place = place
        self.report: Callable[[Kind], None] | None = report

    def cancel(self) -> None:
        self.report = None
        self._followers.remove(self)

    def durable(self, kind: Kind | Refused) -> None:
        """An event is durable; or never will be, and is not reported."""
        if self.report and not isinstance(kind, Refused):
            self.report(kind)


Concerned = tuple[Callable[[Kind | Refused], None], Kind]  # What to call, and with which kind.


class Followers:
    def __init__(self) -> None:
        self.by_place: dict[Place, list[Follower]] = {}

    def add(self, place: Place, report: Callable[[Kind], None]) -> Follower:
        follower = Follower(self, place, report)
        self.by_place.setdefault(place, []).append(follower)
        return follower

    def remove(self, follower: Follower) -> None:
        followers = self.by_place.get(follower.place, [])
        if follower in followers:
            followers.remove(follower)
            if not followers:
                del self.by_place[follower.place]

    def concerned(self, event: Event, origins: Mapping[Place, Place]) -> Iterator[Concerned]:
        """The followers of the message of an event; after its last event they are removed. `origins`: where messages
        that have moved came from."""
        if isinstance(event, QueueRemoved):
            for place in [place for place in self.by_place if place[0] == event.queue]:
                yield from self._at(place, Kind.DELETED)
        elif event.kind not in LETTERS:
            return  # Housekeeping.
        elif isinstance(event, MessageEvent):
            place = (event.queue, event.sequence)
            yield from self._at(origins.get(place, place), event.kind)
        elif isinstance(event, MessageRun):
            for sequence in event.sequence:  # No run has a message that was moved.
                yield from self._at((event.queue, sequence), event.kind)

    def _at(self, place: Place, kind: Kind) -> Iterator[Concerned]:
        followers = self.by_place.pop(place, ()) if kind in ENDS else self.by_place.get(place, ())
        for follower in followers:
            yield follower.durable, kind
