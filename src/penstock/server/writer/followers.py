"""Clients that are told what becomes of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.model.answers import Refused
from penstock.model.events import Event, MessageEvent, MessageRun, QueueRemoved
from penstock.model.kinds import ENDS, LETTERS, Kind
from penstock.model.values import Place


class Follower:
    """`cancel` when it no longer wants to be told."""

    __slots__ = ("_followers", "place", "tell")

    def __init__(self, followers: Followers, place: Place, tell: Callable[[Kind], None]) -> None:
        self._followers = followers
        self.place = place
        self.tell: Callable[[Kind], None] | None = tell

    def cancel(self) -> None:
        self.tell = None
        self._followers.remove(self)

    def told(self, kind: Kind | Refused) -> None:
        """An event is durable, or never will be."""
        if self.tell and not isinstance(kind, Refused):
            self.tell(kind)


Concerned = tuple[Callable[[Kind | Refused], None], Kind]  # Whom to tell, and what.


class Followers:
    def __init__(self) -> None:
        self._by_place: dict[Place, list[Follower]] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def add(self, place: Place, tell: Callable[[Kind], None]) -> Follower:
        follower = Follower(self, place, tell)
        self._by_place.setdefault(place, []).append(follower)
        return follower

    def remove(self, follower: Follower) -> None:
        followers = self._by_place.get(follower.place, [])
        if follower in followers:
            followers.remove(follower)
            if not followers:
                del self._by_place[follower.place]

    def concerned(self, event: Event, origins: Mapping[Place, Place]) -> Iterator[Concerned]:
        """Those who follow a message that an event is about; if it is the last one of the message, they no longer do.
        `origins`: where a message that has moved came from."""
        if isinstance(event, QueueRemoved):
            for place in [place for place in self._by_place if place[0] == event.queue]:
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
        followers = self._by_place.pop(place, ()) if kind in ENDS else self._by_place.get(place, ())
        for follower in followers:
            yield follower.told, kind
