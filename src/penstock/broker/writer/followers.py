"""Clients that follow a message: each of its events is reported to them, when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.broker.writer.port import Lost, Report, nobody
from penstock.model.answers import Refused
from penstock.model.events import CopiedFrom, Event, MessageEvent, MessageRun, QueueRemoved
from penstock.model.happening import REPORTED, Happening, happening, happening_in
from penstock.model.kinds import ENDS, Kind
from penstock.model.values import Nanos, Place


class Follower:
    """Follows one message. `cancel` if it no longer wants to."""

    __slots__ = ("_followers", "lost", "place", "report")

    def __init__(self, followers: Followers, place: Place, report: Report, lost: Lost) -> None:
        self._followers = followers
        self.place = place
        self.report: Report | None = report
        self.lost = lost

    def cancel(self) -> None:
        self.report = None
        self._followers.remove(self)

    def durable(self, happening: Happening | Refused) -> None:
        """An event is durable; or never will be: it is not reported, and the message goes on."""
        if self.report is None:
            return
        if isinstance(happening, Refused):
            self._followers.keep(self)
        else:
            self.report(happening)


Places = Mapping[Place, Place]
Concerned = tuple[Callable[[Happening | Refused], None], Happening]  # What to call, and with what.


class Followers:
    def __init__(self) -> None:
        self.by_place: dict[Place, list[Follower]] = {}

    def add(self, place: Place, report: Report, lost: Lost = nobody) -> Follower:
        follower = Follower(self, place, report, lost)
        self.by_place.setdefault(place, []).append(follower)
        return follower

    def remove(self, follower: Follower) -> None:
        followers = self.by_place.get(follower.place, [])
        if follower in followers:
            followers.remove(follower)
            if not followers:
                del self.by_place[follower.place]

    def keep(self, follower: Follower) -> None:
        """Follow on: what was the last event of the message is lost with the end of the log."""
        followers = self.by_place.setdefault(follower.place, [])
        if follower not in followers:
            followers.append(follower)

    def end_lost(self, exists: Callable[[Place], bool], time: Nanos) -> None:
        """End following messages that are lost with the end of the log: others will have their places."""
        for place in [place for place in self.by_place if not exists(place)]:
            for follower in self.by_place.pop(place):
                follower.durable(Happening(Kind.DELETED, time))

    def dismiss_all(self) -> None:
        """Nothing more will be reported from here."""
        by_place, self.by_place = self.by_place, {}
        for follower in [each for followers in by_place.values() for each in followers]:
            follower.lost()

    def concerned(self, event: Event, moved: Places, origins: Places) -> Iterator[Concerned]:
        """The followers of the message of an event; after its last event they are removed. `moved`: where messages
        are now, `origins`: where they came from, as they are before the event."""
        if isinstance(event, QueueRemoved):
            for place in [place for place in self.by_place if moved.get(place, place)[0] == event.queue]:
                yield from self._at(place, Happening(Kind.DELETED, event.time))
        elif event.kind not in REPORTED:
            if isinstance(event, CopiedFrom) and (event.to_queue, event.to_sequence) in self.by_place:
                yield from self._at((event.to_queue, event.to_sequence), happening(event))
        elif isinstance(event, MessageEvent):
            place = (event.queue, event.sequence)
            place = origins.get(place, place)
            if place in self.by_place:
                yield from self._at(place, happening(event))
        elif isinstance(event, MessageRun):
            for at, sequence in enumerate(event.sequence):  # No run has a message that was moved.
                if (event.queue, sequence) in self.by_place:
                    yield from self._at((event.queue, sequence), happening_in(event, at))

    def _at(self, place: Place, what: Happening) -> Iterator[Concerned]:
        followers = self.by_place.pop(place) if what.kind in ENDS else self.by_place[place]
        for follower in followers:
            yield follower.durable, what
