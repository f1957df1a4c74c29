"""Bugs seeded on purpose: the simulation must find each. `python -m tests.simulation --shards --bug NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.model.answers import Refused
from penstock.model.values import Stage
from penstock.server.shards import destinations
from penstock.server.shards.codec import Answered, Ask, Frames, unpack
from penstock.server.shards.link import Link
from penstock.server.shards.mesh import Mesh


class Bug(NamedTuple):
    what: str
    of: Any  # A class or module of the broker,
    name: str  # and what of it is replaced
    instead: Callable[..., Any]  # by this.


def _answer_and_keep(self: Link, entry: Answered) -> None:
    if call := self.calls.get(entry.number):
        call.reply(unpack(entry.answer))


def _forget_calls(self: Link, _: Exception | None) -> None:
    self._transport = None
    self._served.cancel_all()
    self.calls, self.unanswered_bytes = {}, 0
    self._when_lost(self)


def _ask_for_less(self: Link, entry: Ask) -> None:
    port, reply = self._ports[entry.shard], self._served.begin(entry.number)
    self._served.waits(entry.number, port.submit(entry.command, reply, Stage.READY))


def _leave_earlier(self: Mesh, new: Link) -> None:
    assert new.peer is not None
    self.links.pop(new.peer, None)
    _greeted(self, new)


_greeted = Mesh._greeted


def _as_they_come(_: list[list[int]], answers: list[Any]) -> Any:
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    return refused[0] if refused else [each for answer in answers for each in getattr(answer, "published", answer)]


def _forget_beginning(self: Frames, data: bytes) -> list[Any]:
    return self._entries(data)[0]


BUGS = {
    "answer-twice": Bug(
        "a command that was answered is answered again when the link is lost", Link, "_answered", _answer_and_keep
    ),
    "forget-in-flight": Bug(
        "a link that is lost forgets what is not answered", Link, "connection_lost", _forget_calls
    ),
    "ready-is-enough": Bug("the owner of a shard answers before the log is synced", Link, "_asked", _ask_for_less),
    "late-greeting": Bug("a late greeting replaces a link that works", Mesh, "_greeted", _leave_earlier),
    "parts-mixed-up": Bug(
        "the answers of several shards are joined in the wrong order", destinations, "_gathered", _as_they_come
    ),
    "frame-cut": Bug("a frame that arrives in pieces loses its beginning", Frames, "receive", _forget_beginning),
}


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """The broker with this bug."""
    bug = BUGS[name]
    before = vars(bug.of)[bug.name]
    setattr(bug.of, bug.name, bug.instead)
    try:
        yield
    finally:
        setattr(bug.of, bug.name, before)
